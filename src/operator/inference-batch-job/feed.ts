/** Which shards of a job belong into the queue now. Pure. */

export interface FeedSettings {
  /** Shards queued or open for each live worker: few, so that jobs take turns. */
  shardsPerWorker: number;
  /** Upper bound of a job's window whatever its caps and workers. */
  maxWindowShards: number;
  /** The whole window is added again at most this often: repairs entries that were lost or handed back. */
  refeedMilliseconds: number;
  /** Re-feeding of all jobs together, so that thousands of them do not keep Redis busy. */
  refeedsPerSecond: number;
}

export interface WindowInput {
  /** Non-blank lines of the whole job. */
  lines: number;
  shards: number;
  /** Requests that ready replicas may have in flight together. */
  capacity: number;
  /** The job's own cap. */
  maxInFlight: number | undefined;
  liveWorkers: number;
}

/**
 * How many shards of a job may be queued or open at a time: enough lines to fill every place the job could get,
 * with as much again behind them so that no place waits for the next shard, and never less than a few a worker.
 */
export function windowShards(input: WindowInput, settings: FeedSettings): number {
  const places = Math.min(input.capacity, input.maxInFlight ?? Number.POSITIVE_INFINITY);
  const linesPerShard = Math.max(1, input.lines / Math.max(1, input.shards));
  const toFillPlaces = Math.ceil((2 * places) / linesPerShard);
  const perWorker = settings.shardsPerWorker * Math.max(1, input.liveWorkers);
  return Math.min(settings.maxWindowShards, Math.max(toFillPlaces, perWorker));
}

const isDone = (done: Uint8Array, shard: number): boolean =>
  ((done[shard >> 3] ?? 0) & (0x80 >> (shard & 7))) !== 0;

/** The first `limit` shards of [0, shards) without their bit in `done` (most significant bit first), in order. */
export function firstNotDone(done: Uint8Array, shards: number, limit: number): number[] {
  const found: number[] = [];
  let shard = 0;
  while (shard < shards && found.length < limit) {
    if ((shard & 7) === 0 && done[shard >> 3] === 0xff) {
      shard += 8;
      continue;
    }
    if (!isDone(done, shard)) found.push(shard);
    shard++;
  }
  return found;
}

/** How many shards from the first one on are done without a gap: as far as publishing can reach. */
export function donePrefix(done: Uint8Array, shards: number): number {
  return firstNotDone(done, shards, 1)[0] ?? shards;
}

/** Milliseconds until a job's window is added again, given how many jobs are being fed. */
export function refeedAfter(fedJobs: number, settings: FeedSettings): number {
  return Math.max(settings.refeedMilliseconds, Math.ceil((fedJobs / settings.refeedsPerSecond) * 1_000));
}
