import { KubeError, type WorkQueue } from './contract.ts';
import { DueHeap } from './due-heap.ts';
import { backoffMilliseconds, type Cancel, type Runtime } from './timers.ts';

export interface WorkQueueOptions {
  /** For logs and metrics. */
  name: string;
  runtime: Runtime;
  backoff?: { initialMilliseconds: number; ceilingMilliseconds: number };
  /** Told of each key handled. */
  observe?: (observation: WorkQueueObservation) => void;
}

export interface WorkQueueObservation {
  queue: string;
  outcome: 'done' | 'failed';
  /** From being added to being handed out. */
  waitedMilliseconds: number;
  milliseconds: number;
  /** Keys waiting now. */
  length: number;
}

/**
 * Keys to work on, after client-go: a key waits once however often it is added, is handled by one handler at a time,
 * and when added meanwhile comes again afterwards.
 */
export class KeyQueue implements WorkQueue {
  readonly #name: string;
  readonly #runtime: Runtime;
  readonly #backoff: { initialMilliseconds: number; ceilingMilliseconds: number };
  readonly #observe: (observation: WorkQueueObservation) => void;
  /** Keys to hand out, in order, from `#head` on. */
  #waiting: string[] = [];
  #head = 0;
  /** Keys that need work, with the moment they were added; those being processed are not in `#waiting`. */
  readonly #dirty = new Map<string, number>();
  readonly #processing = new Set<string>();
  readonly #delayed = new DueHeap();
  readonly #failures = new Map<string, number>();
  #alarm: { at: number; cancel: Cancel } | undefined;
  #handler: ((key: string) => Promise<void>) | undefined;
  #workers = 0;
  #pumpScheduled = false;
  #draining: PromiseWithResolvers<void> | undefined;

  constructor(options: WorkQueueOptions) {
    this.#name = options.name;
    this.#runtime = options.runtime;
    this.#backoff = options.backoff ?? { initialMilliseconds: 200, ceilingMilliseconds: 300_000 };
    this.#observe = options.observe ?? (() => undefined);
  }

  /** Keys ready to be handed out; neither the delayed ones nor those being processed. */
  get length(): number {
    return this.#waiting.length - this.#head;
  }

  /** Keys that will be added later. */
  get delayed(): number {
    return this.#delayed.size;
  }

  add(key: string): void {
    if (this.#draining !== undefined || this.#dirty.has(key)) return;
    this.#dirty.set(key, this.#runtime.clock.monotonic());
    if (this.#processing.has(key)) return;
    this.#waiting.push(key);
    this.#schedulePump();
  }

  /** Of several delays of a key the one that ends first counts. */
  addAfter(key: string, milliseconds: number): void {
    if (this.#draining !== undefined) return;
    if (!(milliseconds > 0)) {
      this.add(key);
      return;
    }
    this.#delayed.add(key, this.#runtime.clock.monotonic() + milliseconds);
    this.#setAlarm();
  }

  addRateLimited(key: string): void {
    this.#addAfterFailure(key, 0);
  }

  forget(key: string): void {
    this.#failures.delete(key);
  }

  run(handler: (key: string) => Promise<void>, workers: number): void {
    if (this.#handler !== undefined) throw new Error(`work queue ${this.#name} already runs`);
    if (!Number.isInteger(workers) || workers < 1) {
      throw new RangeError(`work queue ${this.#name}: workers is ${workers}, must be a whole number from 1`);
    }
    this.#handler = handler;
    this.#workers = workers;
    this.#schedulePump();
  }

  drain(): Promise<void> {
    if (this.#draining === undefined) {
      this.#draining = Promise.withResolvers<void>();
      this.#alarm?.cancel();
      this.#alarm = undefined;
      this.#delayed.clear();
      this.#waiting = [];
      this.#head = 0;
      this.#dirty.clear();
      this.#failures.clear();
      if (this.#processing.size === 0) this.#draining.resolve();
    }
    return this.#draining.promise;
  }

  /** A turn of the event loop lies between handlers, so that a long queue cannot starve timers and sockets. */
  #schedulePump(): void {
    if (this.#pumpScheduled || this.#handler === undefined) return;
    this.#pumpScheduled = true;
    setImmediate(() => {
      this.#pumpScheduled = false;
      this.#pump();
    });
  }

  #pump(): void {
    while (this.#handler !== undefined && this.#processing.size < this.#workers) {
      const key = this.#take();
      if (key === undefined) return;
      void this.#handle(key, this.#handler);
    }
  }

  #take(): string | undefined {
    const key = this.#waiting[this.#head];
    if (key === undefined) return undefined;
    this.#head += 1;
    if (this.#head > 1024 && this.#head * 2 > this.#waiting.length) {
      this.#waiting = this.#waiting.slice(this.#head);
      this.#head = 0;
    }
    return key;
  }

  /** Must not reject: nobody waits for it. */
  async #handle(key: string, handler: (key: string) => Promise<void>): Promise<void> {
    const { clock, logger } = this.#runtime;
    const startedAt = clock.monotonic();
    const waitedMilliseconds = startedAt - (this.#dirty.get(key) ?? startedAt);
    this.#processing.add(key);
    this.#dirty.delete(key);
    const failuresBefore = this.#failures.get(key) ?? 0;
    let outcome: 'done' | 'failed' = 'done';
    try {
      await handler(key);
      // A handler that asked for its own slow repetition keeps its count.
      if ((this.#failures.get(key) ?? 0) === failuresBefore) this.forget(key);
    } catch (error) {
      outcome = 'failed';
      logger.warn('handling a key failed, trying again', {
        queue: this.#name,
        key,
        failures: failuresBefore + 1,
        error: error instanceof Error ? error.message : String(error),
      });
      const told = error instanceof KubeError ? (error.retryAfterSeconds ?? 0) * 1000 : 0;
      this.#addAfterFailure(key, told);
    }
    this.#processing.delete(key);
    if (this.#dirty.has(key)) this.#waiting.push(key);
    this.#observe({
      queue: this.#name,
      outcome,
      waitedMilliseconds,
      milliseconds: clock.monotonic() - startedAt,
      length: this.length,
    });
    if (this.#draining === undefined) this.#schedulePump();
    else if (this.#processing.size === 0) this.#draining.resolve();
  }

  #addAfterFailure(key: string, atLeastMilliseconds: number): void {
    if (this.#draining !== undefined) return;
    const failures = (this.#failures.get(key) ?? 0) + 1;
    this.#failures.set(key, failures);
    const { initialMilliseconds, ceilingMilliseconds } = this.#backoff;
    const delay = backoffMilliseconds(
      failures,
      initialMilliseconds,
      ceilingMilliseconds,
      this.#runtime.random,
    );
    this.addAfter(key, Math.max(delay, atLeastMilliseconds));
  }

  #setAlarm(): void {
    const at = this.#delayed.next;
    if (at === undefined || (this.#alarm !== undefined && this.#alarm.at <= at)) return;
    this.#alarm?.cancel();
    const { clock, timers } = this.#runtime;
    const cancel = timers.after(Math.max(0, at - clock.monotonic()), () => {
      this.#alarm = undefined;
      const now = clock.monotonic();
      for (let key = this.#delayed.takeDue(now); key !== undefined; key = this.#delayed.takeDue(now)) {
        this.add(key);
      }
      this.#setAlarm();
    });
    this.#alarm = { at, cancel };
  }
}
