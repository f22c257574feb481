/**
 * The queue as the operator sees it, in memory, with workers played by the test: what Redis would keep, every call in
 * order, fencing, outages and losses on demand.
 */
import type {
  Capacity,
  DeploymentPlan,
  Fence,
  Hold,
  QueueDepth,
  JobDescriptor,
  JobState,
  OperatorQueue,
  QueueId,
  Task,
} from '../../queue/contract.ts';
import { FencedOut } from '../../queue/contract.ts';
import { emptyQueue } from './builders.ts';

export class MemoryQueue implements OperatorQueue {
  readonly jobs = new Map<string, JobState>();
  /** Entries as Redis would hold them: one per job and kind, one per shard. */
  readonly tasks = new Map<string, Task>();
  readonly shards = new Map<string, Set<number>>();
  readonly calls: string[] = [];
  plan: readonly DeploymentPlan[] | undefined;
  plansWritten = 0;
  holds: (Hold & { queue: QueueId })[] = [];
  workers = 1;
  paused = false;
  inFlight = new Map<string, number>();
  up = true;
  highestFence = 0;
  readonly #listeners = new Set<(uid: string | undefined) => void>();

  #call(name: string, fence?: Fence): void {
    if (!this.up) throw new Error('QueueUnavailable');
    if (fence !== undefined) {
      if (fence.transitions < this.highestFence) throw new FencedOut(`${this.highestFence} was seen`);
      this.highestFence = fence.transitions;
    }
    this.calls.push(name);
  }

  state(uid: string): JobState {
    return this.jobs.get(uid) ?? emptyQueue();
  }

  async putJob(descriptor: JobDescriptor, fence: Fence): Promise<void> {
    this.#call(`putJob ${descriptor.run}`, fence);
    this.jobs.set(descriptor.uid, { ...this.state(descriptor.uid), descriptor: structuredClone(descriptor) });
  }

  async removeJob(uid: string, _queue: QueueId | undefined, fence: Fence): Promise<void> {
    this.#call('removeJob', fence);
    this.jobs.delete(uid);
    this.shards.delete(uid);
    for (const [id, task] of this.tasks) if (task.uid === uid) this.tasks.delete(id);
  }

  async readJob(uid: string): Promise<JobState> {
    if (!this.up) throw new Error('QueueUnavailable');
    return structuredClone(this.state(uid));
  }

  async clearReport(
    uid: string,
    report: 'problem' | 'final' | 'index' | 'cleaned',
    fence: Fence,
  ): Promise<void> {
    this.#call(`clear ${report}`, fence);
    const cleared = report === 'cleaned' ? { cleaned: false } : { [report]: undefined };
    this.jobs.set(uid, { ...this.state(uid), ...cleared });
  }

  async markMissing(uid: string, shards: number[], fence: Fence): Promise<void> {
    this.#call(`markMissing ${shards.join(',')}`, fence);
    const state = structuredClone(this.state(uid));
    for (const shard of shards)
      state.done[shard >> 3] = (state.done[shard >> 3] ?? 0) & ~(0x80 >> (shard & 7));
    state.doneShards -= shards.length;
    this.jobs.set(uid, state);
  }

  async queueTask(task: Task): Promise<void> {
    this.#call(`task ${task.kind}`);
    const id = `${task.kind}-${task.uid}`;
    if (!this.tasks.has(id)) this.tasks.set(id, structuredClone(task));
  }

  async feedShards(_queue: QueueId, uid: string, shards: readonly number[]): Promise<void> {
    this.#call(`feed ${shards.join(',')}`);
    const queued = this.shards.get(uid) ?? new Set();
    for (const shard of shards) queued.add(shard);
    this.shards.set(uid, queued);
  }

  async withdrawShards(_queue: QueueId, uid: string): Promise<void> {
    this.#call('withdraw');
    this.shards.delete(uid);
  }

  async putPlan(plans: readonly DeploymentPlan[], _valid: number, fence: Fence): Promise<void> {
    this.#call('putPlan', fence);
    this.plan = structuredClone(plans);
    this.plansWritten++;
  }

  async readCapacity(addresses: readonly string[]): Promise<Capacity[]> {
    if (!this.up) throw new Error('QueueUnavailable');
    const caps = new Map(
      (this.plan ?? []).flatMap(({ replicas }) => replicas.map((r) => [r.address, r.cap])),
    );
    return addresses.map((address) => ({
      address,
      cap: caps.get(address) ?? 0,
      granted: 0,
      inFlight: this.inFlight.get(address) ?? 0,
    }));
  }

  readDepths(queues: readonly QueueId[]): Promise<QueueDepth[]> {
    return Promise.resolve(queues.map((queue) => ({ queue, waiting: 0 })));
  }

  async readHolds(queue: QueueId): Promise<Hold[]> {
    if (!this.up) throw new Error('QueueUnavailable');
    return this.holds.filter((hold) => hold.queue === queue);
  }

  async liveWorkers(): Promise<number> {
    if (!this.up) throw new Error('QueueUnavailable');
    return this.workers;
  }

  async grantsPaused(): Promise<boolean> {
    if (!this.up) throw new Error('QueueUnavailable');
    return this.paused;
  }

  onEvent(listener: (uid: string | undefined) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  healthy(): boolean {
    return this.up;
  }

  async close(): Promise<void> {
    this.#listeners.clear();
  }

  /** A worker reports: what Redis knows changes, and the operator is woken. */
  report(uid: string, change: Partial<JobState>): void {
    this.jobs.set(uid, { ...this.state(uid), ...change });
    this.wake(uid);
  }

  /** The worker that had the task is done with it. */
  took(kind: Task['kind'], uid: string): Task | undefined {
    const task = this.tasks.get(`${kind}-${uid}`);
    this.tasks.delete(`${kind}-${uid}`);
    return task;
  }

  wake(uid: string | undefined): void {
    for (const listener of this.#listeners) listener(uid);
  }

  /** Redis comes back without anything. */
  lose(): void {
    this.jobs.clear();
    this.tasks.clear();
    this.shards.clear();
    this.plan = undefined;
    this.holds = [];
    this.highestFence = 0;
  }
}
