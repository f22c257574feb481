/**
 * Names of everything we keep in Redis. All keys carry one hash tag, so that scripts that touch several of them
 * also work on a Redis Cluster.
 */
import type { QueueId, TaskKind } from './contract.ts';

export interface Keys {
  /** Prefix of BullMQ's own keys. */
  readonly bullPrefix: string;
  readonly fence: string;
  /** Hash: body, rev, epoch, validUntil, grantAfter, runId. */
  readonly plan: string;
  /** Hash: engine address → cap. */
  readonly caps: string;
  /** Hash: `<queue>|<scope>` → hold. */
  readonly holds: string;
  /** Sorted set: holds by expiry. */
  readonly holdExpiries: string;
  /** Sorted set: worker id → expiry. */
  readonly workers: string;
  /** Sorted set: job uid (or `*`) → number of its last change. */
  readonly changes: string;
  readonly changeCounter: string;
  /** Channel that wakes operators. */
  readonly events: string;
  /** Channel that wakes workers: `plan`, `holds` or `job:<uid>`. */
  readonly control: string;
  readonly job: (uid: string) => string;
  /** Bitmap: shards that have a result. */
  readonly done: (uid: string) => string;
  /** Bitmap: shards whose counts were added once already, although they must run again. */
  readonly counted: (uid: string) => string;
  /** Hash: open shard → live counts. */
  readonly open: (uid: string) => string;
  /** Hash: `<worker>:<shard>` → `<since>|<expiry>` of each shard that a worker holds. */
  readonly held: (uid: string) => string;
  /** List: the last errors of done shards. */
  readonly recent: (uid: string) => string;
  /** Set: shards that were fed and have not ended. */
  readonly fed: (uid: string) => string;
  readonly addressPool: (address: string) => string;
  readonly jobPool: (uid: string) => string;
}

export function keysUnder(prefix: string): Keys {
  const root = `{${prefix}}`;
  const job = (uid: string): string => `${root}:job:${uid}`;
  return {
    bullPrefix: `${root}:bull`,
    fence: `${root}:fence`,
    plan: `${root}:plan`,
    caps: `${root}:caps`,
    holds: `${root}:holds`,
    holdExpiries: `${root}:hold-expiries`,
    workers: `${root}:workers`,
    changes: `${root}:changes`,
    changeCounter: `${root}:change-counter`,
    events: `${root}:events`,
    control: `${root}:control`,
    job,
    done: (uid) => `${job(uid)}:done`,
    counted: (uid) => `${job(uid)}:counted`,
    open: (uid) => `${job(uid)}:open`,
    held: (uid) => `${job(uid)}:held`,
    recent: (uid) => `${job(uid)}:recent`,
    fed: (uid) => `${job(uid)}:fed`,
    addressPool: (address) => `${root}:pool:address:${address}`,
    jobPool: (uid) => `${root}:pool:job:${uid}`,
  };
}

/** BullMQ refuses `:` in queue names; Kubernetes names have none, so a deployment's name passes unchanged. */
export const shardQueueName = (queue: QueueId): string => `tg-shards-${queue}`;

/** Indexing may take hours, so it does not share its hands with the short tasks. */
export const TASK_QUEUES = {
  index: 'tg-index',
  publish: 'tg-tasks',
  finalize: 'tg-tasks',
  cleanup: 'tg-tasks',
} as const satisfies Record<TaskKind, string>;

/** BullMQ also refuses `:` and plain numbers as job ids. */
export const shardEntryId = (uid: string, shard: number): string => `${uid}-${shard}`;
export const taskEntryId = (kind: TaskKind, uid: string): string => `${kind}-${uid}`;
