/** What is already decided of a shard: its result object, as everybody sees it. */
import type { JobLayout } from '../../batch/layout.ts';
import type { ShardResultHeader } from '../../batch/model.ts';
import { parseShardResultHeader, SHARD_HEADER_READ_BYTES } from '../../batch/shard-result.ts';
import type { ShardDone } from '../../queue/contract.ts';
import { type ObjectStore, StoreError } from '../../storage/contract.ts';

/** The header of a shard's result, where it has one. */
export async function readDecided(
  store: ObjectStore,
  layout: JobLayout,
  shard: number,
  signal?: AbortSignal,
): Promise<ShardResultHeader | undefined> {
  try {
    const range = { start: 0, end: SHARD_HEADER_READ_BYTES };
    const options = signal === undefined ? { range } : { range, signal };
    const { bytes } = await store.getBytes(layout.shardResult(shard), options);
    return parseShardResultHeader(bytes)?.header;
  } catch (error) {
    if (error instanceof StoreError && error.code === 'NoSuchKey') return undefined;
    throw error;
  }
}

export const doneOf = (header: ShardResultHeader): ShardDone => ({
  counts: header.counts,
  usage: header.usage,
  resultsBytes: header.results.bytes,
  errorsBytes: header.errors.bytes,
  recentErrors: header.recentErrors,
});
