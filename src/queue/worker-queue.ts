/** The worker's side of the queue. */
import type { OutcomeCounts, Usage } from '../batch/model.ts';
import type { Clock, Logger } from '../observability/contract.ts';
import { messageOf, RedisLink, RedisListener, type LinkOptions } from './connection.ts';
import { QueueConsumer } from './consumer.ts';
import type {
  DeploymentPlan,
  Hold,
  JobDescriptor,
  Places,
  QueueId,
  ShardDone,
  ShardTask,
  Task,
  WorkerQueue,
} from './contract.ts';
import * as jobScripts from './job-scripts.ts';
import { checkShard, doneArguments, liveCounts } from './job-state.ts';
import { type Keys, keysUnder, shardQueueName, TASK_QUEUES } from './keys.ts';
import { NegotiatedPlaces } from './places.ts';
import { defaultQueueSettings, type QueueSettings } from './settings.ts';
import { WorkerSync } from './worker-sync.ts';

export interface WorkerQueueOptions {
  redisUrl: string;
  /** The same as the operator's. */
  prefix: string;
  /** Names this worker to people and in `liveWorkers`. */
  workerId: string;
  clock: Clock;
  logger: Logger;
  settings?: Partial<QueueSettings>;
}

type Report = Parameters<WorkerQueue['report']>[1];

/** Done shards told in one script: keeps each atomic step in the low milliseconds. */
const SHARDS_PER_SCRIPT = 250;

/** Connects in the background; calls fail with QueueUnavailable within a few seconds while Redis is down. */
export function createWorkerQueue(options: WorkerQueueOptions): WorkerQueue {
  return new RedisWorkerQueue(options);
}

class RedisWorkerQueue implements WorkerQueue {
  readonly workerId: string;
  readonly #options: WorkerQueueOptions;
  readonly #logger: Logger;
  readonly #settings: QueueSettings;
  readonly #keys: Keys;
  readonly #link: RedisLink;
  readonly #listener: RedisListener;
  readonly #sync: WorkerSync;
  readonly #places: NegotiatedPlaces;
  readonly #taskConsumers: QueueConsumer[] = [];
  readonly #shardConsumers = new Map<QueueId, QueueConsumer>();
  /** Of deployments that left the plan; their open shards end in their own time. */
  readonly #leaving = new Set<QueueConsumer>();
  readonly #progress = new Map<string, Map<number, string>>();
  /** Shards whose handler runs, by job. */
  readonly #held = new Map<string, Set<number>>();
  readonly #progressTimer: NodeJS.Timeout;
  #shards: { handler: (task: ShardTask, signal: AbortSignal) => Promise<void>; hands: number } | undefined;
  #closing: Promise<void> | undefined;

  constructor(options: WorkerQueueOptions) {
    const { clock, logger, workerId } = options;
    this.workerId = workerId;
    this.#options = options;
    this.#logger = logger;
    this.#settings = { ...defaultQueueSettings, ...options.settings };
    this.#keys = keysUnder(options.prefix);
    const settings = this.#settings;
    const link = (connectionName: string): LinkOptions => ({
      redisUrl: options.redisUrl,
      connectionName,
      clock,
      logger,
      settings,
    });
    this.#link = new RedisLink(link('tidegate-worker'));
    const shared = { link: this.#link, keys: this.#keys, workerId, clock, logger, settings };
    this.#places = new NegotiatedPlaces(shared);
    this.#sync = new WorkerSync({
      ...shared,
      onPlan: () => {
        this.#places.reconsider();
        this.#consumePlanned();
      },
    });
    this.#listener = new RedisListener(link('tidegate-worker-control'), this.#keys.control, (message) =>
      this.#onControl(message),
    );
    this.#link.onUp(() => this.#sync.soon());
    this.#progressTimer = setInterval(() => void this.#flushProgress(), settings.progressMilliseconds);
    this.#progressTimer.unref();
  }

  get places(): Places {
    return this.#places;
  }

  job(uid: string): Promise<JobDescriptor | undefined> {
    return this.#sync.job(uid);
  }

  onJobChange(uid: string, listener: (descriptor: JobDescriptor | undefined) => void): () => void {
    return this.#sync.onJobChange(uid, listener);
  }

  plan(queue: QueueId): DeploymentPlan | undefined {
    return this.#sync.plan(queue);
  }

  replicas(): ReadonlySet<string> | undefined {
    return this.#sync.replicas();
  }

  holds(queue: QueueId): readonly Hold[] {
    return this.#sync.holds(queue);
  }

  /**
   * Of the concurrency, index tasks have half to themselves: an input of a terabyte must not keep other jobs
   * from being published. A task of a job that Redis does not know ends at once; its leader asks again if it matters.
   */
  serveTasks(handler: (task: Task, signal: AbortSignal) => Promise<void>, concurrency: number): void {
    const indexing = Math.max(1, Math.floor(concurrency / 2));
    const lanes = [
      { queueName: TASK_QUEUES.index, concurrency: indexing },
      { queueName: TASK_QUEUES.publish, concurrency: Math.max(1, concurrency - indexing) },
    ];
    for (const lane of lanes) {
      this.#taskConsumers.push(
        this.#consume({
          ...lane,
          handle: async (data, signal) => {
            const task = data as Task;
            if (await this.#isKnown(task.uid)) await handler(task, signal);
          },
          // The entry is gone only now: whoever asked for the same task meanwhile was not heard.
          onEnded: (data) => void this.#touch((data as Task).uid),
        }),
      );
    }
  }

  serveShards(handler: (task: ShardTask, signal: AbortSignal) => Promise<void>, hands: number): void {
    this.#shards = { handler, hands };
    this.#consumePlanned();
    this.#sync.soon();
  }

  async shardDone(uid: string, shard: number, done: ShardDone): Promise<void> {
    await this.#shardsDone(uid, [{ shard, done }]);
    this.#progress.get(uid)?.delete(shard);
  }

  async isShardDone(uid: string, shard: number): Promise<boolean> {
    checkShard(shard);
    return (await this.#link.call((client) => client.getbit(this.#keys.done(uid), shard))) === 1;
  }

  shardProgress(uid: string, shard: number, counts: OutcomeCounts, usage: Usage): void {
    const open = this.#progress.get(uid) ?? new Map<number, string>();
    open.set(checkShard(shard), liveCounts(counts, usage).join(','));
    this.#progress.set(uid, open);
  }

  async report(uid: string, report: Report): Promise<void> {
    if ('index' in report) {
      await this.#shardsDone(uid, report.doneShards);
      return this.#report(uid, 'index', report.index, report.index.shards);
    }
    if ('published' in report)
      return this.#report(uid, 'published', report.published, report.published.shards);
    if ('final' in report) {
      return this.#report(uid, 'final', report.final, (report.final.missing?.length ?? 0) > 0 ? 1 : 0);
    }
    if ('cleaned' in report) return this.#report(uid, 'cleaned', true, 0);
    return this.#report(uid, 'problem', report.problem, 0);
  }

  async putHold(queue: QueueId, hold: Hold, validMilliseconds: number): Promise<void> {
    const keys = this.#keys;
    await this.#link.run(
      jobScripts.putHold,
      [keys.holds, keys.holdExpiries, keys.changes, keys.changeCounter],
      [
        `${queue}|${hold.scope}`,
        JSON.stringify({ queue, ...hold }),
        Math.ceil(validMilliseconds),
        keys.events,
        keys.control,
      ],
    );
  }

  async clearHold(queue: QueueId, scope: string): Promise<void> {
    const keys = this.#keys;
    await this.#link.run(
      jobScripts.clearHold,
      [keys.holds, keys.holdExpiries, keys.changes, keys.changeCounter],
      [`${queue}|${scope}`, keys.events, keys.control],
    );
  }

  healthy(): boolean {
    const consumers = [...this.#taskConsumers, ...this.#shardConsumers.values()];
    return this.#link.healthy() && consumers.every((consumer) => consumer.working());
  }

  /**
   * Signals of entries still open abort shortly before the time is over, so that they can hand back. Places not in
   * use are given back at once.
   */
  close(graceMilliseconds: number): Promise<void> {
    this.#closing ??= this.#close(graceMilliseconds);
    return this.#closing;
  }

  async #close(graceMilliseconds: number): Promise<void> {
    const consumers = [...this.#taskConsumers, ...this.#shardConsumers.values(), ...this.#leaving];
    await Promise.all(consumers.map((consumer) => consumer.close(graceMilliseconds)));
    clearInterval(this.#progressTimer);
    await this.#flushProgress();
    await this.#places.close();
    this.#sync.close();
    this.#listener.close();
    await this.#link.call((client) => client.zrem(this.#keys.workers, this.workerId)).catch(() => undefined);
    await this.#touch('*');
    this.#link.close();
  }

  #onControl(message: string): void {
    this.#sync.soon();
    if (message === 'plan') this.#places.reconsider();
    else if (message.startsWith('job:')) this.#places.reconsider({ job: message.slice('job:'.length) });
  }

  #consumePlanned(): void {
    const planned = this.#sync.planned();
    const shards = this.#shards;
    if (planned === undefined || shards === undefined || this.#closing !== undefined) return;
    for (const [queue, consumer] of this.#shardConsumers) {
      if (planned.has(queue)) continue;
      this.#shardConsumers.delete(queue);
      this.#leave(consumer);
    }
    for (const queue of planned) {
      if (this.#shardConsumers.has(queue)) continue;
      this.#shardConsumers.set(
        queue,
        this.#consume({
          queueName: shardQueueName(queue),
          concurrency: shards.hands,
          handle: (data, signal) => this.#handleShard(data as ShardTask, signal),
          onEnded: (data) => this.#shardEnded(data as ShardTask),
        }),
      );
    }
  }

  #leave(consumer: QueueConsumer): void {
    this.#leaving.add(consumer);
    consumer.stopTaking();
    void consumer.drained().then(() => {
      if (this.#leaving.delete(consumer)) void consumer.close(0);
    });
  }

  async #handleShard(task: ShardTask, signal: AbortSignal): Promise<void> {
    // The leader writes the descriptor before it feeds: what we read now is not older than this entry.
    this.#sync.watch(task.uid);
    await this.#hold(task);
    try {
      await this.#sync.refresh().catch(() => undefined);
      await this.#shards?.handler(task, signal);
    } finally {
      await this.#release(task);
    }
  }

  /** Told before the descriptor is read: an operator that has written Stop and sees nothing held may go on. */
  async #hold({ uid, shard }: ShardTask): Promise<void> {
    const held = this.#held.get(uid) ?? new Set();
    this.#held.set(uid, held.add(shard));
    await this.#tellHeld(uid, [shard]);
  }

  async #release({ uid, shard }: ShardTask): Promise<void> {
    const held = this.#held.get(uid);
    held?.delete(shard);
    if (held?.size === 0) this.#held.delete(uid);
    const { job, held: key, changes, changeCounter, events } = this.#keys;
    await this.#link
      .run(
        jobScripts.releaseShard,
        [job(uid), key(uid), changes, changeCounter],
        [uid, events, this.workerId, shard],
      )
      .catch(() => undefined);
  }

  /** Never rejects: what was not told is told with the next renewal. */
  async #tellHeld(uid: string, shards: readonly number[]): Promise<void> {
    const { job, held, changes, changeCounter, events } = this.#keys;
    await this.#link
      .run(
        jobScripts.holdShards,
        [job(uid), held(uid), changes, changeCounter],
        [uid, events, this.workerId, this.#settings.lockMilliseconds, ...shards],
      )
      .catch(() => undefined);
  }

  #consume(
    lane: Pick<
      ConstructorParameters<typeof QueueConsumer>[0],
      'queueName' | 'concurrency' | 'handle' | 'onEnded'
    >,
  ): QueueConsumer {
    const { redisUrl, clock } = this.#options;
    return new QueueConsumer({
      redisUrl,
      bullPrefix: this.#keys.bullPrefix,
      workerId: this.workerId,
      link: this.#link,
      clock,
      logger: this.#logger,
      settings: this.#settings,
      ...lane,
    });
  }

  async #isKnown(uid: string): Promise<boolean> {
    return (await this.#link.call((client) => client.hexists(this.#keys.job(uid), 'descriptor'))) === 1;
  }

  async #shardsDone(uid: string, shards: readonly { shard: number; done: ShardDone }[]): Promise<void> {
    const keys = this.#keys;
    for (const { shard } of shards) checkShard(shard);
    for (let at = 0; at < shards.length; at += SHARDS_PER_SCRIPT) {
      const some = shards.slice(at, at + SHARDS_PER_SCRIPT);
      await this.#link.run(
        jobScripts.shardsDone,
        [keys.job, keys.done, keys.counted, keys.open, keys.recent]
          .map((key) => key(uid))
          .concat(keys.changes, keys.changeCounter),
        [uid, keys.events, ...some.flatMap(({ shard, done }) => doneArguments(shard, done))],
      );
    }
  }

  async #report(uid: string, name: string, content: unknown, number: number): Promise<void> {
    const keys = this.#keys;
    const answer = await this.#link.run(
      jobScripts.report,
      [keys.job(uid), keys.changes, keys.changeCounter],
      [uid, keys.events, name, JSON.stringify(content), number],
    );
    if (answer !== 1)
      this.#logger.info('report came too late', { job: uid, report: name, known: answer !== -1 });
  }

  #shardEnded({ uid, shard }: ShardTask): void {
    this.#link.call((client) => client.srem(this.#keys.fed(uid), shard)).catch(() => undefined);
  }

  async #touch(member: string): Promise<void> {
    const { changes, changeCounter, events, job } = this.#keys;
    await this.#link
      .run(jobScripts.touch, [changes, changeCounter, job(member)], [member, events])
      .catch(() => undefined);
  }

  /** Never rejects. What cannot be told now is told with the next flush, as it will be then. */
  async #flushProgress(): Promise<void> {
    const keys = this.#keys;
    for (const [uid, shards] of this.#held) await this.#tellHeld(uid, [...shards]);
    for (const [uid, open] of this.#progress) {
      this.#progress.delete(uid);
      try {
        await this.#link.run(
          jobScripts.shardsProgress,
          [keys.job(uid), keys.done(uid), keys.open(uid), keys.changes, keys.changeCounter],
          [uid, ...[...open].flat()],
        );
      } catch (error) {
        this.#logger.debug('progress not told', { job: uid, error: messageOf(error) });
        const newer = this.#progress.get(uid);
        this.#progress.set(uid, new Map([...open, ...(newer ?? [])]));
        return;
      }
    }
  }
}
