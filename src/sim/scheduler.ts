/**
 * Continuous batching as vLLM V1 does it, step by step, in whatever time its caller lives in: running requests first
 * (one token each while decoding, a chunk each while in prefill), then the waiting ones in order of (priority,
 * arrival) as far as token budget, sequences and KV cache allow, the head of the line blocking the rest. When a
 * running request finds no block, the last in that order is preempted and computed again from zero. A waiting
 * request never preempts. Aborted requests are gone before the next step. Pure: no clock, no I/O.
 */
import { PrefixCache } from './prefix-cache.ts';
import type { StepLoad } from './step-model.ts';

export interface SchedulerLimits {
  maxNumBatchedTokens: number;
  maxNumSeqs: number;
  kvTokens: number;
  blockSize: number;
  policy: 'fcfs' | 'priority';
}

export interface Arrival {
  id: number;
  promptTokens: number;
  promptText: string;
  /** 0: done when the prompt is computed (embeddings). */
  outputTokens: number;
  priority: number;
}

/** One request inside the engine. Times are seconds on the caller's clock. */
export interface Sequence extends Arrival {
  readonly arrivedAt: number;
  /** Tokens whose KV is there. */
  computed: number;
  generated: number;
  /** Prompt tokens found in the prefix cache when it was first scheduled. */
  cached: number;
  preemptions: number;
  scheduledAt: number | undefined;
  firstTokenAt: number | undefined;
  lastTokenAt: number | undefined;
  readonly blockNames: readonly number[];
}

export interface ScheduledChunk {
  sequence: Sequence;
  tokens: number;
  /** Context before the chunk. */
  context: number;
  prefill: boolean;
}

export interface Step {
  chunks: ScheduledChunk[];
  tokens: number;
  load: StepLoad;
  preempted: number;
}

/** What a finished step brought. */
export interface StepOutcome {
  /** Sequences whose prompt is computed for the first time. */
  prefilled: Sequence[];
  /** Sequences that got a token. `gapSeconds` since their last one; undefined for the first. */
  tokens: { sequence: Sequence; gapSeconds: number | undefined }[];
  finished: Sequence[];
}

export class Scheduler {
  readonly #limits: SchedulerLimits;
  readonly #cache: PrefixCache;
  readonly #totalBlocks: number;
  #running: Sequence[] = [];
  #waiting: Sequence[] = [];
  readonly #blocks = new Map<Sequence, number>();
  #usedBlocks = 0;

  constructor(limits: SchedulerLimits) {
    this.#limits = limits;
    this.#cache = new PrefixCache(limits.blockSize);
    this.#totalBlocks = Math.floor(limits.kvTokens / limits.blockSize);
  }

  get running(): number {
    return this.#running.length;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get idle(): boolean {
    return this.#running.length === 0 && this.#waiting.length === 0;
  }

  /** Share of the KV blocks that running requests hold; blocks that are only cached count as free. */
  get kvUsage(): number {
    return this.#totalBlocks === 0 ? 0 : this.#usedBlocks / this.#totalBlocks;
  }

  add(arrival: Arrival, now: number): Sequence {
    const sequence: Sequence = {
      ...arrival,
      arrivedAt: now,
      computed: 0,
      generated: 0,
      cached: 0,
      preemptions: 0,
      scheduledAt: undefined,
      firstTokenAt: undefined,
      lastTokenAt: undefined,
      blockNames: this.#cache.blocksOf(arrival.promptText),
    };
    this.#enqueue(sequence);
    return sequence;
  }

  /** Takes a request out, wherever it is. False when it is not here. */
  abort(sequence: Sequence): boolean {
    const running = this.#running.indexOf(sequence);
    if (running >= 0) {
      this.#running.splice(running, 1);
      this.#free(sequence);
      return true;
    }
    const waiting = this.#waiting.indexOf(sequence);
    if (waiting < 0) return false;
    this.#waiting.splice(waiting, 1);
    return true;
  }

  /** Chooses what the next step computes; undefined when there is nothing to do, or nothing that fits. */
  next(now: number): Step | undefined {
    const chunks: ScheduledChunk[] = [];
    let budget = this.#limits.maxNumBatchedTokens;
    let preempted = 0;

    for (let at = 0; at < this.#running.length && budget > 0; at++) {
      const sequence = this.#running[at];
      if (sequence === undefined) break;
      const tokens = Math.min(known(sequence) - sequence.computed, budget);
      let kept = true;
      while (!this.#reserve(sequence, sequence.computed + tokens)) {
        const victim = this.#lastRunning();
        preempted++;
        budget += this.#withdraw(chunks, victim);
        this.#preempt(victim);
        if (victim === sequence) {
          kept = false;
          break;
        }
        at = this.#running.indexOf(sequence);
      }
      if (!kept) break;
      budget -= tokens;
      chunks.push(chunk(sequence, tokens));
    }

    // Who was just preempted would be let in again at once, and the two would take turns at computing nothing.
    while (preempted === 0 && budget > 0 && this.#running.length < this.#limits.maxNumSeqs) {
      const head = this.#waiting[0];
      if (head === undefined) break;
      const cached = this.#cache.hit(head.blockNames, head.promptTokens);
      const tokens = Math.min(known(head) - cached, budget);
      if (!this.#reserve(head, cached + tokens)) break;
      this.#waiting.shift();
      this.#running.push(head);
      head.computed = cached;
      head.cached = head.preemptions === 0 ? cached : head.cached;
      head.scheduledAt ??= now;
      budget -= tokens;
      chunks.push(chunk(head, tokens));
    }
    this.#cache.shrink(this.#totalBlocks - this.#usedBlocks);
    if (chunks.length === 0) return undefined;
    return { chunks, tokens: this.#limits.maxNumBatchedTokens - budget, load: loadOf(chunks), preempted };
  }

  /** Applies a step that ended at `now`. Chunks of requests that were aborted meanwhile count for nothing. */
  complete(step: Step, now: number): StepOutcome {
    const outcome: StepOutcome = { prefilled: [], tokens: [], finished: [] };
    for (const { sequence, tokens, prefill } of step.chunks) {
      if (!this.#blocks.has(sequence)) continue;
      sequence.computed += tokens;
      if (sequence.computed < known(sequence)) continue;
      if (prefill) this.#cache.insert(sequence.blockNames);
      if (sequence.generated === 0) outcome.prefilled.push(sequence);
      if (sequence.outputTokens > 0) {
        const last = sequence.lastTokenAt;
        sequence.generated++;
        sequence.firstTokenAt ??= now;
        sequence.lastTokenAt = now;
        outcome.tokens.push({ sequence, gapSeconds: last === undefined ? undefined : now - last });
      }
      if (sequence.generated >= sequence.outputTokens) outcome.finished.push(sequence);
    }
    for (const sequence of outcome.finished) {
      this.#running.splice(this.#running.indexOf(sequence), 1);
      this.#free(sequence);
    }
    return outcome;
  }

  /** Blocks for so many tokens; false, and nothing changed, where there are not enough. */
  #reserve(sequence: Sequence, tokens: number): boolean {
    const held = this.#blocks.get(sequence) ?? 0;
    const needed = Math.max(held, Math.ceil(tokens / this.#limits.blockSize));
    if (this.#usedBlocks + needed - held > this.#totalBlocks) return false;
    this.#usedBlocks += needed - held;
    this.#blocks.set(sequence, needed);
    return true;
  }

  #free(sequence: Sequence): void {
    this.#usedBlocks -= this.#blocks.get(sequence) ?? 0;
    this.#blocks.delete(sequence);
  }

  #lastRunning(): Sequence {
    const { policy } = this.#limits;
    return this.#running.reduce((last, each) =>
      policy === 'priority' && isBefore(each, last, policy) ? last : each,
    );
  }

  #preempt(victim: Sequence): void {
    this.#running.splice(this.#running.indexOf(victim), 1);
    this.#free(victim);
    victim.computed = 0;
    victim.preemptions++;
    if (this.#limits.policy === 'fcfs') this.#waiting.unshift(victim);
    else this.#enqueue(victim);
  }

  /** A victim may already have been given its part of this step. Returns the tokens that are free again. */
  #withdraw(chunks: ScheduledChunk[], victim: Sequence): number {
    const at = chunks.findIndex(({ sequence }) => sequence === victim);
    return at < 0 ? 0 : (chunks.splice(at, 1)[0]?.tokens ?? 0);
  }

  #enqueue(sequence: Sequence): void {
    const { policy } = this.#limits;
    let at = this.#waiting.length;
    while (at > 0) {
      const before = this.#waiting[at - 1];
      if (before === undefined || !isBefore(sequence, before, policy)) break;
      at--;
    }
    this.#waiting.splice(at, 0, sequence);
  }
}

/** Tokens of which the next one follows. */
const known = (sequence: Sequence): number => sequence.promptTokens + sequence.generated;

function isBefore(a: Sequence, b: Sequence, policy: SchedulerLimits['policy']): boolean {
  if (policy === 'priority' && a.priority !== b.priority) return a.priority < b.priority;
  return a.arrivedAt === b.arrivedAt ? a.id < b.id : a.arrivedAt < b.arrivedAt;
}

const chunk = (sequence: Sequence, tokens: number): ScheduledChunk => ({
  sequence,
  tokens,
  context: sequence.computed,
  // What was generated before a preemption is computed like a prompt.
  prefill: sequence.generated === 0 || sequence.computed + 1 < known(sequence),
});

function loadOf(chunks: readonly ScheduledChunk[]): StepLoad {
  const load: StepLoad = { tokens: 0, decodingSequences: 0, decodingContext: 0, prefillPairs: 0 };
  for (const { tokens, context, prefill } of chunks) {
    load.tokens += tokens;
    if (prefill) {
      load.prefillPairs += tokens * (context + tokens / 2);
    } else {
      load.decodingSequences++;
      load.decodingContext += context;
    }
  }
  return load;
}
