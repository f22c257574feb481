/** The leader's side of the queue. */
import { randomUUID } from 'node:crypto';
import { type JobsOptions, Queue } from 'bullmq';
import type { Clock, Logger } from '../observability/contract.ts';
import { ChangeWatch } from './change-watch.ts';
import { messageOf, RedisLink, RedisListener, type LinkOptions, type Script } from './connection.ts';
import {
  type Capacity,
  type DeploymentPlan,
  type Fence,
  FencedOut,
  type Hold,
  type JobDescriptor,
  type JobState,
  type OperatorQueue,
  type QueueDepth,
  type QueueId,
  type Task,
  type TaskKind,
} from './contract.ts';
import { checkPriority, entryOptions, EVENTS_KEPT } from './entries.ts';
import * as jobScripts from './job-scripts.ts';
import { checkShard, jobStateOf, parsed } from './job-state.ts';
import { type Keys, keysUnder, shardEntryId, shardQueueName, TASK_QUEUES, taskEntryId } from './keys.ts';
import { putPlan, readCapacity } from './place-scripts.ts';
import { defaultQueueSettings, type QueueSettings } from './settings.ts';

export interface OperatorQueueOptions {
  redisUrl: string;
  /** First part of every key. Installations that share a Redis need different ones. */
  prefix: string;
  clock: Clock;
  logger: Logger;
  settings?: Partial<QueueSettings>;
}

/** Publishing and cleaning are short; what is asked for first is done first. */
const TASK_PRIORITY = 1;

const REPORT_FIELDS = {
  problem: ['problem'],
  final: ['final', 'finalMissing'],
  index: ['index'],
  cleaned: ['cleaned'],
} as const;

/** Connects in the background; every call fails with QueueUnavailable within a few seconds while Redis is down. */
export function createOperatorQueue(options: OperatorQueueOptions): OperatorQueue {
  return new RedisOperatorQueue(options);
}

class RedisOperatorQueue implements OperatorQueue {
  readonly #logger: Logger;
  readonly #settings: QueueSettings;
  readonly #keys: Keys;
  readonly #link: RedisLink;
  readonly #listener: RedisListener;
  readonly #queues = new Map<string, Queue>();
  readonly #changes: ChangeWatch;
  #closed = false;

  constructor(options: OperatorQueueOptions) {
    this.#logger = options.logger;
    this.#settings = { ...defaultQueueSettings, ...options.settings };
    this.#keys = keysUnder(options.prefix);
    const link = (connectionName: string): LinkOptions => ({
      redisUrl: options.redisUrl,
      connectionName,
      clock: options.clock,
      logger: options.logger,
      settings: this.#settings,
    });
    this.#link = new RedisLink(link('tidegate-operator'));
    this.#changes = new ChangeWatch({
      link: this.#link,
      keys: this.#keys,
      logger: options.logger,
      settings: this.#settings,
    });
    this.#listener = new RedisListener(link('tidegate-operator-events'), this.#keys.events, () =>
      this.#changes.soon(),
    );
    this.#link.onUp(() => this.#changes.soon());
  }

  async putJob(descriptor: JobDescriptor, fence: Fence): Promise<void> {
    checkPriority(descriptor.priority);
    const { uid, maxInFlight } = descriptor;
    await this.#fenced(jobScripts.putJob, [this.#keys.fence, this.#keys.job(uid)], fence, [
      uid,
      JSON.stringify(descriptor),
      randomUUID(),
      maxInFlight ?? '',
      this.#keys.control,
    ]);
  }

  async removeJob(uid: string, queue: QueueId | undefined, fence: Fence): Promise<void> {
    const keys = this.#keys;
    await this.#fenced(jobScripts.checkFence, [keys.fence], fence, []);
    const known = queue ?? (await this.readJob(uid)).descriptor?.queue;
    if (known !== undefined) await this.withdrawShards(known, uid);
    await Promise.all(
      (Object.keys(TASK_QUEUES) as TaskKind[]).map((kind) =>
        this.#withQueue(TASK_QUEUES[kind], (tasks) => tasks.remove(taskEntryId(kind, uid))),
      ),
    );
    const all = [
      keys.job,
      keys.done,
      keys.counted,
      keys.open,
      keys.recent,
      keys.held,
      keys.fed,
      keys.jobPool,
    ];
    await this.#fenced(
      jobScripts.removeJob,
      [keys.fence, keys.changes, ...all.map((key) => key(uid))],
      fence,
      [uid, keys.control],
    );
  }

  async readJob(uid: string): Promise<JobState> {
    const keys = this.#keys;
    const replies = await this.#link.call((client) =>
      client
        .multi()
        .hgetall(keys.job(uid))
        .getBuffer(keys.done(uid))
        .hvals(keys.open(uid))
        .lrange(keys.recent(uid), 0, -1)
        .hvals(keys.held(uid))
        .time()
        .exec(),
    );
    const [fields, done, open, recent, held, time] = (replies ?? []).map(([error, value]) => {
      if (error !== null) throw error;
      return value;
    });
    return jobStateOf({
      fields: fields as Record<string, string>,
      done: done as Buffer | null,
      open: open as string[],
      recent: recent as string[],
      held: held as string[],
      now: epochMilliseconds(time),
    });
  }

  async clearReport(uid: string, report: keyof typeof REPORT_FIELDS, fence: Fence): Promise<void> {
    await this.#fenced(
      jobScripts.clearFields,
      [this.#keys.fence, this.#keys.job(uid)],
      fence,
      REPORT_FIELDS[report],
    );
  }

  async markMissing(uid: string, shards: number[], fence: Fence): Promise<void> {
    const keys = this.#keys;
    shards.forEach(checkShard);
    for (const some of chunksOf(shards, 1_000)) {
      await this.#fenced(
        jobScripts.markMissing,
        [keys.fence, keys.job(uid), keys.done(uid), keys.counted(uid)],
        fence,
        some,
      );
    }
  }

  /**
   * A task of one kind and job exists at most once, waiting, delayed or running; adding it again changes nothing, not
   * even its content: of two `finalize` with different causes the first that is queued wins. A task that is wanted
   * while one runs is therefore not remembered. Nothing is lost by that: the end of every task wakes `onEvent`, the
   * operator looks at the state again, and asks again for what is still due.
   */
  async queueTask(task: Task, delayMilliseconds = 0): Promise<void> {
    const id = taskEntryId(task.kind, task.uid);
    const options = entryOptions(id, TASK_PRIORITY, delayMilliseconds);
    await this.#withQueue(TASK_QUEUES[task.kind], async (queue) => {
      // Adding what exists is harmless, but leaves an event each time; the operator asks often.
      if ((await this.#link.client.exists(queue.toKey(id))) === 1) return;
      await this.#keepFewEvents(queue);
      await queue.add(task.kind, task, options);
    });
  }

  async feedShards(queue: QueueId, uid: string, shards: readonly number[], priority: number): Promise<void> {
    shards.forEach(checkShard);
    checkPriority(priority);
    if (shards.length === 0) return;
    const keys = this.#keys;
    await this.#withQueue(shardQueueName(queue), async (entries) => {
      const missing = (await this.#link.run(
        jobScripts.shardsToFeed,
        [keys.job(uid), keys.done(uid), keys.fed(uid), entries.toKey('meta')],
        [entries.toKey(`${uid}-`), EVENTS_KEPT, ...shards],
      )) as string[];
      if (missing.length === 0) return;
      await entries.addBulk(
        missing.map((shard) => ({
          name: 'shard',
          data: { uid, shard: Number(shard) },
          opts: entryOptions(shardEntryId(uid, Number(shard)), priority) as JobsOptions & { jobId: string },
        })),
      );
    });
  }

  async withdrawShards(queue: QueueId, uid: string): Promise<void> {
    const fed = this.#keys.fed(uid);
    const shards = await this.#link.call((client) => client.smembers(fed));
    if (shards.length === 0) return;
    await this.#withQueue(shardQueueName(queue), async (entries) => {
      for (const some of chunksOf(shards, 100)) {
        // Entries that a worker holds are locked and stay: it hands them back itself.
        const removed = await Promise.all(
          some.map(async (shard) =>
            (await entries.remove(shardEntryId(uid, Number(shard)))) === 1 ? shard : '',
          ),
        );
        const gone = removed.filter((shard) => shard !== '');
        if (gone.length > 0) await this.#link.client.srem(fed, ...gone);
      }
    });
  }

  async putPlan(plans: readonly DeploymentPlan[], validMilliseconds: number, fence: Fence): Promise<void> {
    const keys = this.#keys;
    const body = JSON.stringify(plans);
    const caps = [...capsOf(plans)].flat();
    await this.#translateFence(fence, () =>
      this.#link.runOnServer(putPlan, (runId) => ({
        keys: [keys.fence, keys.plan, keys.caps],
        args: [
          fence.transitions,
          fence.leaderUID,
          body,
          randomUUID(),
          Math.ceil(validMilliseconds),
          this.#settings.leaseMilliseconds,
          runId,
          randomUUID(),
          keys.control,
          ...caps,
        ],
      })),
    );
  }

  async readCapacity(addresses: readonly string[]): Promise<Capacity[]> {
    if (addresses.length === 0) return [];
    const keys = this.#keys;
    const pools = addresses.map((address) => keys.addressPool(address));
    const reply = (await this.#link.run(readCapacity, [keys.caps, ...pools], addresses)) as number[];
    return addresses.map((address, at) => ({
      address,
      cap: reply[3 * at] ?? 0,
      granted: reply[3 * at + 1] ?? 0,
      inFlight: reply[3 * at + 2] ?? 0,
    }));
  }

  async readHolds(queue: QueueId): Promise<Hold[]> {
    const stored = (await this.#link.run(jobScripts.readHolds, [this.#keys.holds], [])) as string[];
    return stored
      .map((json) => parsed<Hold & { queue: QueueId }>(json))
      .filter((hold) => hold?.queue === queue)
      .map((hold) => {
        const { scope, reason, message, since } = hold as Hold;
        return { scope, reason, message, since };
      })
      .sort((a, b) => a.scope.localeCompare(b.scope));
  }

  async liveWorkers(): Promise<number> {
    return Number(await this.#link.run(jobScripts.countWorkers, [this.#keys.workers], []));
  }

  async grantsPaused(): Promise<boolean> {
    const replies = await this.#link.call((client) =>
      client.multi().hget(this.#keys.plan, 'grantAfter').time().exec(),
    );
    const [grantAfter, time] = (replies ?? []).map(([error, value]) => {
      if (error !== null) throw error;
      return value;
    });
    return typeof grantAfter !== 'string' || epochMilliseconds(time) < Number(grantAfter);
  }

  async readDepths(queues: readonly QueueId[]): Promise<QueueDepth[]> {
    const names: [string, string][] = [
      ['index', TASK_QUEUES.index],
      ['tasks', TASK_QUEUES.publish],
      ...queues.map((queue): [string, string] => [queue, shardQueueName(queue)]),
    ];
    const replies = await this.#link.call((client) => {
      const pipeline = client.pipeline();
      for (const [, name] of names) {
        const key = `${this.#keys.bullPrefix}:${name}`;
        pipeline.zcard(`${key}:prioritized`).llen(`${key}:wait`).zcard(`${key}:delayed`);
      }
      return pipeline.exec();
    });
    const counts = (replies ?? []).map(([error, count]) => {
      if (error !== null) throw error;
      return count as number;
    });
    return names.map(([queue], at) => ({
      queue,
      waiting: counts.slice(3 * at, 3 * at + 3).reduce((sum, count) => sum + count, 0),
    }));
  }

  onEvent(listener: (uid: string | undefined) => void): () => void {
    return this.#changes.listen(listener);
  }

  healthy(): boolean {
    return this.#link.healthy();
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#changes.close();
    this.#listener.close();
    // The queues share our connection; closing them only lets go of it.
    await Promise.allSettled([...this.#queues.values()].map((queue) => queue.close()));
    this.#link.close();
  }

  async #fenced(
    script: Script,
    keys: readonly string[],
    fence: Fence,
    args: readonly (string | number)[],
  ): Promise<unknown> {
    return this.#translateFence(fence, () =>
      this.#link.run(script, keys, [fence.transitions, fence.leaderUID, ...args]),
    );
  }

  async #translateFence<T>(fence: Fence, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const text = messageOf(error);
      if (!text.includes('FENCEDOUT')) throw error;
      const seen = text.replace(/^.*FENCEDOUT /, '');
      throw new FencedOut(
        `a newer leader has written (${seen}); refused: ${fence.transitions} of leader ${fence.leaderUID}`,
      );
    }
  }

  /** BullMQ's queue, made when first used. One that failed is made anew: its connection set-up may have failed for good. */
  async #withQueue<T>(name: string, work: (queue: Queue) => Promise<T>): Promise<T> {
    try {
      return await this.#link.call(async (client) => {
        let queue = this.#queues.get(name);
        if (queue === undefined) {
          queue = new Queue(name, {
            connection: client,
            prefix: this.#keys.bullPrefix,
            skipMetasUpdate: true,
            skipVersionCheck: true,
          });
          queue.on('error', (error) =>
            this.#logger.debug('queue fault', { queue: name, error: messageOf(error) }),
          );
          this.#queues.set(name, queue);
        }
        return work(queue);
      });
    } catch (error) {
      const failed = this.#queues.get(name);
      this.#queues.delete(name);
      failed?.close().catch(() => undefined);
      throw error;
    }
  }

  async #keepFewEvents(queue: Queue): Promise<void> {
    await this.#link.client.hset(queue.toKey('meta'), 'opts.maxLenEvents', EVENTS_KEPT);
  }
}

/** Of the answer to TIME: seconds and microseconds. */
function epochMilliseconds(time: unknown): number {
  const [seconds = 0, microseconds = 0] = (time as (string | number)[]).map(Number);
  return seconds * 1_000 + Math.floor(microseconds / 1_000);
}

/** Caps by address. Deployments that share an engine should agree; where they do not, the lower one protects it. */
export function capsOf(plans: readonly DeploymentPlan[]): Map<string, number> {
  const caps = new Map<string, number>();
  for (const { replicas } of plans) {
    for (const { address, cap } of replicas) {
      const whole = Math.max(0, Math.floor(cap));
      caps.set(address, Math.min(caps.get(address) ?? Infinity, whole));
    }
  }
  return caps;
}

function* chunksOf<T>(items: readonly T[], size: number): Generator<T[]> {
  for (let at = 0; at < items.length; at += size) yield items.slice(at, at + size);
}
