/**
 * The lines of one open shard on their way through the engine: which may be sent, which are in flight, which wait
 * for their next attempt, and the records of those that are finished.
 *
 * A run ends `Complete` (every line has its record) or `HandedBack` (it must not, or cannot, go on here).
 */
import type { LineRecord, Shard } from '../../batch/model.ts';
import type { EngineOutcome } from '../../engine/contract.ts';
import type { JobDescriptor, Place, PoolId, QueueId } from '../../queue/contract.ts';
import type { DispatchableRun } from './dispatcher.ts';
import type { ByteBudget } from './byte-budget.ts';
import type { Clock } from '../../observability/contract.ts';
import { type LineFate, judge, retryPause } from './line-fate.ts';

/** A line that has no record yet. */
export interface PendingLine {
  /** Position in the shard. */
  position: number;
  ordinal: number;
  line: number;
  customId: string;
  bytes: Uint8Array;
  attempts: number;
  busyAnswers: number;
}

export type RunEnd = 'Complete' | 'HandedBack';

export interface ShardRunDependencies {
  send: (request: {
    address: string;
    line: PendingLine;
    descriptor: JobDescriptor;
    signal: AbortSignal;
  }) => Promise<EngineOutcome>;
  record: (line: PendingLine, fate: Extract<LineFate, { kind: 'answered' | 'unanswered' }>) => LineRecord;
  onHold: (
    descriptor: JobDescriptor,
    address: string,
    outcome: Extract<EngineOutcome, { kind: 'hold' }>,
  ) => void;
  onBusy: (address: string, milliseconds: number) => void;
  /** A record is finished and not yet in S3. */
  onRecord: (record: LineRecord) => void;
  onRetry: (reason: string) => void;
  /** A fault used up an attempt of this line, which will be sent again. */
  onAttempt: (line: PendingLine) => void;
  /** Whether finished records find their way to S3, so that further lines may be sent. */
  mayStart: () => boolean;
  /** Something changed that the dispatcher should look at. */
  wake: () => void;
  budget: Pick<ByteBudget, 'charge'>;
  clock: Clock;
  random: () => number;
  settings: {
    idleHandBackMilliseconds: number;
    initialBusyMilliseconds: number;
    maxBusyMilliseconds: number;
  };
}

export class ShardRun implements DispatchableRun {
  readonly queue: QueueId;
  readonly jobUID: string;
  /** Taken from whether or not the job has a maxInFlight now, so that one set while it runs counts what is in flight. */
  readonly jobPool: PoolId;
  readonly shard: Shard;
  readonly ended: Promise<RunEnd>;
  readonly #deps: ShardRunDependencies;
  #descriptor: JobDescriptor;
  #ready: PendingLine[];
  /** Lines before this position of `#ready` have been taken. */
  #head = 0;
  readonly #calls = new Set<AbortController>();
  readonly #timers = new Set<NodeJS.Timeout>();
  #unfinished: number;
  #closing: 'No' | 'Finish' | 'Abort' = 'No';
  #lastProgress: number;
  readonly #idleTimer: NodeJS.Timeout;
  #end!: (end: RunEnd) => void;
  #settled = false;

  constructor(deps: ShardRunDependencies, descriptor: JobDescriptor, shard: Shard, lines: PendingLine[]) {
    this.#deps = deps;
    this.#descriptor = descriptor;
    this.queue = descriptor.queue;
    this.jobUID = descriptor.uid;
    this.jobPool = { job: descriptor.uid };
    this.shard = shard;
    this.#ready = lines;
    this.#unfinished = lines.length;
    this.#lastProgress = deps.clock.monotonic();
    this.ended = new Promise((resolve) => (this.#end = resolve));
    const period = Math.max(10, deps.settings.idleHandBackMilliseconds / 4);
    this.#idleTimer = setInterval(() => this.#handBackIfIdle(), period);
    this.#settleIfOver();
  }

  get ready(): number {
    return this.#closing === 'No' && this.#deps.mayStart() ? this.#ready.length - this.#head : 0;
  }

  get inFlight(): number {
    return this.#calls.size;
  }

  /** The job changed: caps and keys count from the next line on. */
  update(descriptor: JobDescriptor): void {
    this.#descriptor = descriptor;
  }

  /** Starts no new line; `Abort` also ends the calls in flight, whose lines stay without a record. */
  close(how: 'Finish' | 'Abort'): void {
    if (this.#settled || this.#closing === 'Abort') return;
    this.#closing = how;
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
    if (how === 'Abort') for (const call of this.#calls) call.abort();
    this.#settleIfOver();
  }

  start(address: string, place: Place): void {
    const line = this.#ready[this.#head];
    if (line === undefined || this.#closing !== 'No') {
      place.release();
      return;
    }
    this.#head += 1;
    // Taken lines are let go in bulk, so that a long queue is not shifted line by line.
    if (this.#head > 64 && this.#head * 2 > this.#ready.length) {
      this.#ready = this.#ready.slice(this.#head);
      this.#head = 0;
    }
    this.#lastProgress = this.#deps.clock.monotonic();
    void this.#call(line, address, place);
  }

  /** Never rejects: `send` answers with values, and what follows only moves lines between lists. */
  async #call(line: PendingLine, address: string, place: Place): Promise<void> {
    const call = new AbortController();
    const onPlaceLost = (): void => call.abort();
    this.#calls.add(call);
    place.signal.addEventListener('abort', onPlaceLost);
    const descriptor = this.#descriptor;
    const outcome = place.signal.aborted
      ? ({ kind: 'aborted' } as const)
      : await this.#deps.send({ address, line, descriptor, signal: call.signal });
    place.signal.removeEventListener('abort', onPlaceLost);
    this.#calls.delete(call);
    place.release();
    this.#lastProgress = this.#deps.clock.monotonic();
    this.#settle(line, address, outcome);
    this.#settleIfOver();
    this.#deps.wake();
  }

  #settle(line: PendingLine, address: string, outcome: EngineOutcome): void {
    const fate = judge(outcome, line, this.#descriptor);
    switch (fate.kind) {
      case 'answered':
      case 'unanswered':
        this.#finish(this.#deps.record(line, fate));
        return;
      case 'again':
        if (outcome.kind === 'hold') this.#deps.onHold(this.#descriptor, address, outcome);
        else this.#deps.onRetry('HandedBack');
        this.#ready.push(line);
        return;
      case 'busy': {
        line.busyAnswers += 1;
        const { initialBusyMilliseconds: initial, maxBusyMilliseconds: max } = this.#deps.settings;
        const pause =
          fate.retryAfterMilliseconds ?? retryPause(line.busyAnswers, initial, max, this.#deps.random);
        this.#deps.onRetry('Busy');
        this.#deps.onBusy(address, pause);
        this.#later(line, pause);
        return;
      }
      case 'retry': {
        line.attempts += 1;
        this.#deps.onAttempt(line);
        const { initialBackoffSeconds: initial, maxBackoffSeconds: max } = this.#descriptor.retry;
        this.#deps.onRetry(fate.reason);
        this.#later(line, retryPause(line.attempts, initial * 1000, max * 1000, this.#deps.random));
        return;
      }
    }
  }

  #finish(record: LineRecord): void {
    this.#unfinished -= 1;
    this.#deps.budget.charge(record.bytes.byteLength);
    this.#deps.onRecord(record);
  }

  #later(line: PendingLine, milliseconds: number): void {
    if (this.#closing !== 'No') return;
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      this.#ready.push(line);
      this.#deps.wake();
    }, milliseconds);
    this.#timers.add(timer);
  }

  /** Keeps no hand busy that another job could use: nothing in flight, and nothing could be started for a while. */
  #handBackIfIdle(): void {
    if (this.#closing !== 'No' || this.#calls.size > 0) return;
    const idle = this.#deps.clock.monotonic() - this.#lastProgress;
    if (idle >= this.#deps.settings.idleHandBackMilliseconds) this.close('Finish');
  }

  #settleIfOver(): void {
    if (this.#settled || this.#calls.size > 0) return;
    if (this.#unfinished > 0 && this.#closing === 'No') return;
    this.#settled = true;
    clearInterval(this.#idleTimer);
    for (const timer of this.#timers) clearTimeout(timer);
    this.#ready = [];
    this.#end(this.#unfinished === 0 ? 'Complete' : 'HandedBack');
  }
}
