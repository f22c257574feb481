/** Builders and short durations for the tests of this room. */
import { noOutcomes, noUsage } from '../../batch/model.ts';
import type { Clock } from '../../observability/contract.ts';
import type { Fence, JobDescriptor, ShardDone } from '../contract.ts';
import type { QueueSettings } from '../settings.ts';

export const FIRST: Fence = { transitions: 1, leaderUID: 'leader-a' };

export const shortSettings: QueueSettings = {
  commandTimeoutMilliseconds: 1_000,
  pollMilliseconds: 100,
  leaseMilliseconds: 600,
  leaseMarginMilliseconds: 100,
  renewMilliseconds: 100,
  negotiationDelayMilliseconds: 5,
  rotationMilliseconds: 15_000,
  workerTtlMilliseconds: 1_000,
  progressMilliseconds: 50,
  lockMilliseconds: 800,
  stalledMilliseconds: 200,
  retryMilliseconds: 50,
  maxRetryMilliseconds: 400,
  idleBlockMilliseconds: 200,
  watchdogMilliseconds: 2_000,
};

export function descriptor(uid: string, changes: Partial<JobDescriptor> = {}): JobDescriptor {
  return {
    uid,
    namespace: 'default',
    name: `job-${uid}`,
    generation: 1,
    queue: 'default.llama',
    endpoint: '/v1/chat/completions',
    input: {
      connection: { bucket: 'data' },
      keys: ['in.jsonl'],
      compression: 'Auto',
      invalidLines: 'Record',
    },
    output: { connection: { bucket: 'data' }, prefix: 'out/' },
    model: 'llama',
    aliases: [],
    engine: 'vLLM',
    retry: { maxAttempts: 3, initialBackoffSeconds: 1, maxBackoffSeconds: 30 },
    requestTimeoutSeconds: 600,
    priority: 1_000,
    deadline: 4_000_000_000_000,
    run: 'Run',
    ...changes,
  };
}

export function shardDone(completed: number, changes: Partial<ShardDone> = {}): ShardDone {
  return {
    counts: { ...noOutcomes(), completed },
    usage: { ...noUsage(), inputTokens: completed * 10, outputTokens: completed * 5 },
    resultsBytes: completed * 100,
    errorsBytes: 0,
    recentErrors: [],
    ...changes,
  };
}

/** The machine's time plus a jump: what a process sees that was stopped for a while. */
export class JumpingClock implements Clock {
  #ahead = 0;
  now(): number {
    return Date.now() + this.#ahead;
  }
  monotonic(): number {
    return performance.now() + this.#ahead;
  }
  jump(milliseconds: number): void {
    this.#ahead += milliseconds;
  }
}

/** Time that moves only by hand. */
export class ManualClock implements Clock {
  #now = 1_000;
  now(): number {
    return this.#now;
  }
  monotonic(): number {
    return this.#now;
  }
  advance(milliseconds: number): void {
    this.#now += milliseconds;
  }
}

/** Waits until the condition holds; the time limit is only there to fail instead of hanging. */
export async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 20_000;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within 20 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export class Gate {
  readonly opened: Promise<void>;
  open!: () => void;
  constructor() {
    this.opened = new Promise((resolve) => (this.open = resolve));
  }
}
