/** Every duration of the queue room. Tests shorten them; operator and workers of one installation must agree. */
export interface QueueSettings {
  /** No single call waits longer than this for Redis; then it fails with QueueUnavailable. */
  commandTimeoutMilliseconds: number;
  /** How often each side looks by itself for what a lost message would have told. */
  pollMilliseconds: number;
  /** How long a place granted in Redis stays with a worker that does not renew it. */
  leaseMilliseconds: number;
  /** Places end here this much before Redis gives them to someone else. */
  leaseMarginMilliseconds: number;
  renewMilliseconds: number;
  /** A want that cannot be met is negotiated after this pause, so that wants of one moment travel together. */
  negotiationDelayMilliseconds: number;
  /** Which workers get the places that cannot be divided evenly changes this often. */
  rotationMilliseconds: number;
  /** A worker that was not heard of for this long is not counted as live. */
  workerTtlMilliseconds: number;
  progressMilliseconds: number;
  /** BullMQ's lock on a shard or task; renewed at half of it. */
  lockMilliseconds: number;
  /** How often entries whose lock ran out are looked for. A killed worker's entries return after lock + this at most. */
  stalledMilliseconds: number;
  /** Back-off of a failed shard or task: doubles from the first to the second. */
  retryMilliseconds: number;
  maxRetryMilliseconds: number;
  /** An idle worker asks for entries at least this often. */
  idleBlockMilliseconds: number;
  /** Entries waiting, hands free, and nothing taken for this long: the consumer is replaced. */
  watchdogMilliseconds: number;
}

export const defaultQueueSettings: QueueSettings = {
  commandTimeoutMilliseconds: 3_000,
  pollMilliseconds: 1_000,
  leaseMilliseconds: 15_000,
  leaseMarginMilliseconds: 1_000,
  renewMilliseconds: 1_000,
  negotiationDelayMilliseconds: 10,
  rotationMilliseconds: 15_000,
  workerTtlMilliseconds: 10_000,
  progressMilliseconds: 2_000,
  lockMilliseconds: 20_000,
  stalledMilliseconds: 5_000,
  retryMilliseconds: 1_000,
  maxRetryMilliseconds: 60_000,
  idleBlockMilliseconds: 2_000,
  watchdogMilliseconds: 15_000,
};
