/** When finished shards are appended to the published files. Pure. */

export interface PublishSettings {
  /** A file below this size grows by any tail; S3 parts that are copied need as much. */
  smallFileBytes: number;
  /** How old the tail of a small file may get. */
  smallFileDelayMilliseconds: number;
  /** A larger file grows once its tail reaches this share of it: bounds the bytes that the store copies. */
  tailPercent: number;
  /** How old any tail may get. */
  maxDelayMilliseconds: number;
}

export interface PublishInput {
  now: number;
  /** Shards done without a gap from the first one on, and all shards done. */
  donePrefix: number;
  doneShards: number;
  /** Bytes of all shards that are done. */
  doneBytes: number;
  publishedShards: number;
  publishedBytes: number;
  /** When the first shard that could be appended, but is not, was seen. */
  tailSince: number;
}

/**
 * The bytes an append would add. Shards done behind a gap cannot be appended yet; their sizes are not known one
 * by one, so the tail is taken as its share of them by number.
 */
export function tailBytes(input: Omit<PublishInput, 'now' | 'tailSince'>): number {
  const waiting = input.doneShards - input.publishedShards;
  const appendable = input.donePrefix - input.publishedShards;
  if (appendable <= 0 || waiting <= 0) return 0;
  return Math.max(0, input.doneBytes - input.publishedBytes) * Math.min(1, appendable / waiting);
}

/** Milliseconds until an append is due: 0 = now, undefined = there is nothing to append. */
export function publishDueIn(input: PublishInput, settings: PublishSettings): number | undefined {
  if (input.donePrefix <= input.publishedShards) return undefined;
  const age = input.now - input.tailSince;
  const wait = (limit: number): number => Math.max(0, limit - age);
  if (input.publishedBytes < settings.smallFileBytes) return wait(settings.smallFileDelayMilliseconds);
  const enough = Math.max(settings.smallFileBytes, (input.publishedBytes * settings.tailPercent) / 100);
  return tailBytes(input) >= enough ? 0 : wait(settings.maxDelayMilliseconds);
}
