/**
 * Scheduler, step times and metrics together: an engine without a clock. Whoever drives it says what time it is:
 * `begin` chooses a step and says how long it takes, `end` applies it. paced-inference.ts drives it in real time;
 * a replay may drive it in virtual time.
 */
import type { EngineMetrics } from './engine-metrics.ts';
import type { Profile } from './profiles.ts';
import { lognormalFactor } from './random.ts';
import {
  Scheduler,
  type Arrival,
  type SchedulerLimits,
  type Sequence,
  type Step,
  type StepOutcome,
} from './scheduler.ts';
import { stepMilliseconds } from './step-model.ts';

export interface CoreSettings {
  profile: Profile;
  limits: SchedulerLimits;
  metrics: EngineMetrics;
  random: () => number;
}

export interface BegunStep {
  step: Step;
  durationSeconds: number;
}

export class EngineCore {
  readonly #settings: CoreSettings;
  readonly #scheduler: Scheduler;

  constructor(settings: CoreSettings) {
    this.#settings = settings;
    this.#scheduler = new Scheduler(settings.limits);
  }

  get idle(): boolean {
    return this.#scheduler.idle;
  }

  /** @param now seconds on the driver's clock, here as everywhere below. */
  add(arrival: Arrival, now: number): Sequence {
    return this.#scheduler.add(arrival, now);
  }

  /** The request is gone before the next step. vLLM counts an aborted request nowhere. */
  abort(sequence: Sequence): void {
    this.#scheduler.abort(sequence);
    if (this.#scheduler.idle) this.#updateGauges();
  }

  /** undefined: nothing to do until something arrives or is aborted. */
  begin(now: number): BegunStep | undefined {
    const step = this.#scheduler.next(now);
    if (step === undefined) {
      this.#updateGauges();
      return undefined;
    }
    const { profile, metrics, random } = this.#settings;
    metrics.preemptions += step.preempted;
    const milliseconds = stepMilliseconds(profile, step.load) * lognormalFactor(profile.jitter, random);
    return { step, durationSeconds: milliseconds / 1_000 };
  }

  end(step: Step, now: number): StepOutcome {
    const outcome = this.#scheduler.complete(step, now);
    this.#book(outcome, now);
    this.#updateGauges();
    return outcome;
  }

  #book(outcome: StepOutcome, now: number): void {
    const { metrics } = this.#settings;
    let iterationTokens = outcome.tokens.length;
    for (const { promptTokens, cached } of outcome.prefilled) {
      metrics.bookPrompt(promptTokens, cached);
      iterationTokens += promptTokens;
    }
    metrics.bookGenerated(outcome.tokens.length);
    metrics.bookIteration(iterationTokens);
    for (const { sequence, gapSeconds } of outcome.tokens) {
      if (gapSeconds === undefined) metrics.bookFirstToken(now - sequence.arrivedAt);
      else metrics.bookGaps(gapSeconds, 1);
    }
  }

  /** Once a step, as in vLLM: between two steps a page shows the past. */
  #updateGauges(): void {
    const { metrics } = this.#settings;
    metrics.running = this.#scheduler.running;
    metrics.waiting = this.#scheduler.waiting;
    metrics.kvUsage = this.#scheduler.kvUsage;
  }
}
