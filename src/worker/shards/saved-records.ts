/**
 * Finished records that lie in checkpoints: where each one is and what it counts for. Their bytes stay in S3 until the
 * result is written, so that a shard with gigabytes of answers costs this process no more than a small one.
 */
import { checkpointAttempts, decodeCheckpoint } from '../../batch/checkpoint.ts';
import { BatchError } from '../../batch/errors.ts';
import type { JobLayout } from '../../batch/layout.ts';
import type { RecordSummary } from '../../batch/shard-result.ts';
import type { Logger } from '../../observability/contract.ts';
import { type ObjectStore, StoreError } from '../../storage/contract.ts';
import type { ByteBudget } from './byte-budget.ts';

/** Bytes [start, end) of a checkpoint object as it was when it was read or written. */
export interface SavedRecord extends RecordSummary {
  key: string;
  etag: string;
  start: number;
  end: number;
}

export interface Saved {
  /** By ordinal. */
  records: Map<number, SavedRecord>;
  /** Attempts that unfinished lines have used up, by ordinal. */
  attempts: Map<number, number>;
}

export interface ReadSavedOptions {
  store: ObjectStore;
  layout: JobLayout;
  jobUID: string;
  logger: Logger;
  signal: AbortSignal;
  /** One checkpoint is in memory at a time; this bounds those of all shards together. */
  memory: ByteBudget;
}

/** The records of an encoded checkpoint that lies, or will lie, under this key. Throws CorruptObject. */
export function savedRecords(
  object: { key: string; etag: string; bytes: Uint8Array },
  expected: { jobUID: string; shard: number },
): SavedRecord[] {
  return decodeCheckpoint(object.bytes, expected).map(({ bytes, ...summary }) => {
    const start = bytes.byteOffset - object.bytes.byteOffset;
    return { ...summary, key: object.key, etag: object.etag, start, end: start + bytes.byteLength };
  });
}

/**
 * All records that checkpoints hold for a shard; of two for one line (two workers had the shard) the first counts.
 * A damaged checkpoint is left out: its lines run again. So is one that is removed meanwhile: then somebody else has
 * written the shard's result.
 */
export async function readSaved(options: ReadSavedOptions, shard: number): Promise<Saved> {
  const { store, layout, jobUID, logger, signal, memory } = options;
  const saved: Saved = { records: new Map(), attempts: new Map() };
  for await (const { key, bytes: length } of store.list(layout.checkpoints(shard), { signal })) {
    await memory.acquire(length, signal);
    try {
      const { info, bytes } = await store.getBytes(key, { signal });
      for (const record of savedRecords({ key, etag: info.etag, bytes }, { jobUID, shard })) {
        if (!saved.records.has(record.ordinal)) saved.records.set(record.ordinal, record);
      }
      for (const [ordinal, used] of checkpointAttempts(bytes)) {
        saved.attempts.set(ordinal, Math.max(used, saved.attempts.get(ordinal) ?? 0));
      }
    } catch (error) {
      if (error instanceof StoreError && error.code === 'NoSuchKey') continue;
      if (!(error instanceof BatchError)) throw error;
      const fields = { job: jobUID, shard, key, error: error.message };
      logger.warn('checkpoint refused; its lines run again', fields);
    } finally {
      memory.release(length);
    }
  }
  return saved;
}
