/**
 * Faults of the engine that no line must pay for: a replica that refuses connections, a key that is not accepted,
 * a model that is not there. The replica, the deployment or the job is held, asked again with back-off, and
 * opened when it answers. Other workers and the operator see the hold in Redis, where it expires with this worker.
 */
import type { EngineClient, EngineOutcome } from '../engine/contract.ts';
import type { Clock, Logger } from '../observability/contract.ts';
import {
  type Hold,
  type JobDescriptor,
  jobHoldScope,
  type QueueId,
  type WorkerQueue,
} from '../queue/contract.ts';

export type HoldOutcome = Extract<EngineOutcome, { kind: 'hold' }>;

export interface HoldSettings {
  initialProbeMilliseconds: number;
  maxProbeMilliseconds: number;
  holdValidMilliseconds: number;
}

export interface HoldDependencies {
  queue: Pick<WorkerQueue, 'putHold' | 'clearHold' | 'holds' | 'plan'>;
  engine: Pick<EngineClient, 'probe'>;
  /** The key for the engine, read again for each probe so that a corrected Secret is noticed. */
  apiKey: (descriptor: JobDescriptor) => Promise<string | undefined>;
  clock: Clock;
  random: () => number;
  logger: Logger;
  settings: HoldSettings;
  /** Called when something opened. */
  onOpen: () => void;
}

interface OwnHold {
  queue: QueueId;
  hold: Hold;
  descriptor: JobDescriptor;
  address: string;
  pauseMilliseconds: number;
  probeAt: number;
}

export class Holds {
  readonly #deps: HoldDependencies;
  readonly #own = new Map<string, OwnHold>();
  readonly #stop = new AbortController();
  readonly #timer: NodeJS.Timeout;
  #ticking = false;

  constructor(deps: HoldDependencies) {
    this.#deps = deps;
    const tick = Math.max(20, Math.min(500, deps.settings.initialProbeMilliseconds / 2));
    this.#timer = setInterval(() => void this.#tick(), tick);
  }

  isHeld(queue: QueueId, address: string): boolean {
    return this.#has(queue, address) || this.#has(queue, '*');
  }

  isJobHeld(queue: QueueId, uid: string): boolean {
    return this.#has(queue, jobHoldScope(uid));
  }

  /** Closes what the outcome names. A hold that exists already keeps its back-off. */
  raise(descriptor: JobDescriptor, address: string, outcome: HoldOutcome): void {
    const scope = scopeOf(descriptor, address, outcome);
    const key = keyOf(descriptor.queue, scope);
    const existing = this.#own.get(key);
    if (existing !== undefined) {
      existing.hold = { ...existing.hold, reason: outcome.reason, message: outcome.message };
      return;
    }
    const { clock, settings, logger } = this.#deps;
    const hold: Hold = { scope, reason: outcome.reason, message: outcome.message, since: clock.now() };
    const pause = settings.initialProbeMilliseconds;
    this.#own.set(key, {
      queue: descriptor.queue,
      hold,
      descriptor,
      address,
      pauseMilliseconds: pause,
      probeAt: this.#in(pause),
    });
    logger.warn('engine hold', {
      queue: descriptor.queue,
      scope,
      reason: outcome.reason,
      detail: outcome.message,
    });
    void this.#publish(descriptor.queue, hold);
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    this.#stop.abort(new Error('worker stops'));
    await Promise.allSettled(
      [...this.#own.values()].map(({ queue, hold }) => this.#deps.queue.clearHold(queue, hold.scope)),
    );
    this.#own.clear();
  }

  #has(queue: QueueId, scope: string): boolean {
    return (
      this.#own.has(keyOf(queue, scope)) || this.#deps.queue.holds(queue).some((hold) => hold.scope === scope)
    );
  }

  async #tick(): Promise<void> {
    if (this.#ticking) return;
    this.#ticking = true;
    try {
      const now = this.#deps.clock.monotonic();
      const due = [...this.#own.entries()].filter(([, own]) => own.probeAt <= now);
      await Promise.all(due.map(([key, own]) => this.#ask(key, own)));
    } finally {
      this.#ticking = false;
    }
  }

  async #ask(key: string, own: OwnHold): Promise<void> {
    // A replica or deployment that left the plan needs no answer any more.
    const plan = this.#deps.queue.plan(own.queue);
    const replicas = plan?.replicas.map(({ address }) => address) ?? [];
    const gone =
      own.hold.scope !== '*' && !own.hold.scope.startsWith('job:') && !replicas.includes(own.address);
    if (plan === undefined || gone || (await this.#answers(own, replicas))) {
      this.#own.delete(key);
      await this.#deps.queue.clearHold(own.queue, own.hold.scope).catch(() => undefined);
      this.#deps.logger.info('engine hold ended', { queue: own.queue, scope: own.hold.scope });
      this.#deps.onOpen();
      return;
    }
    const { settings } = this.#deps;
    own.pauseMilliseconds = Math.min(own.pauseMilliseconds * 2, settings.maxProbeMilliseconds);
    own.probeAt = this.#in(own.pauseMilliseconds);
    await this.#publish(own.queue, own.hold);
  }

  /** Whether the cause is gone. For a missing route only a real line can tell, so time opens it. */
  async #answers(own: OwnHold, replicas: readonly string[]): Promise<boolean> {
    if (own.hold.scope.startsWith('job:'))
      return own.pauseMilliseconds >= this.#deps.settings.maxProbeMilliseconds;
    const address = replicas.includes(own.address) ? own.address : replicas[0];
    if (address === undefined) return false;
    try {
      const apiKey = await this.#deps.apiKey(own.descriptor);
      const answer = await this.#deps.engine.probe(address, apiKey, own.descriptor.model, this.#stop.signal);
      if (!answer.ok) own.hold = { ...own.hold, reason: answer.reason, message: answer.message };
      return answer.ok;
    } catch (error) {
      own.hold = { ...own.hold, message: error instanceof Error ? error.message : String(error) };
      return false;
    }
  }

  async #publish(queue: QueueId, hold: Hold): Promise<void> {
    const valid = Math.max(
      this.#deps.settings.holdValidMilliseconds,
      this.#deps.settings.maxProbeMilliseconds * 1.5,
    );
    // Without Redis the hold still works for this worker; the next probe publishes it again.
    await this.#deps.queue.putHold(queue, hold, valid).catch(() => undefined);
  }

  /** Jittered, so that workers that saw the same fault do not ask in step. */
  #in(milliseconds: number): number {
    return this.#deps.clock.monotonic() + milliseconds * (0.8 + 0.4 * this.#deps.random());
  }
}

const keyOf = (queue: QueueId, scope: string): string => `${queue} ${scope}`;

function scopeOf(descriptor: JobDescriptor, address: string, outcome: HoldOutcome): string {
  // A route that the engine lacks concerns the jobs that use it, not the deployment's other jobs.
  if (outcome.reason === 'RouteNotFound') return jobHoldScope(descriptor.uid);
  return outcome.scope === 'Replica' ? address : '*';
}
