/** Reads what an open shard needs: its entry in the index, and its lines. */
import { BatchError } from '../../batch/errors.ts';
import { linesOfShard, parseSummary, shardInChunk } from '../../batch/index-format.ts';
import type { JobLayout } from '../../batch/layout.ts';
import type { IndexSummary, Shard, Source } from '../../batch/model.ts';
import { type ObjectStore, StoreError } from '../../storage/contract.ts';
import { ProblemError } from '../problems.ts';

/** The last few summaries and chunks read: neighbouring shards share them. */
export class IndexCache {
  readonly #entries = new Map<string, Promise<Buffer>>();
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  async summary(store: ObjectStore, layout: JobLayout): Promise<IndexSummary> {
    return parseSummary(await this.#bytes(store, layout.summary));
  }

  async shard(store: ObjectStore, layout: JobLayout, shard: number): Promise<Shard> {
    return shardInChunk(await this.#bytes(store, layout.chunk(shard)), shard);
  }

  #bytes(store: ObjectStore, key: string): Promise<Buffer> {
    // Keys hold the job's UID, and an index never changes once its summary is there.
    const id = `${store.bucket}/${key}`;
    const known = this.#entries.get(id);
    if (known !== undefined) return known;
    const read = store.getBytes(key).then(({ bytes }) => bytes);
    this.#entries.set(id, read);
    read.catch(() => this.#entries.delete(id));
    const oldest = this.#entries.keys().next().value;
    if (this.#entries.size > this.#limit && oldest !== undefined) this.#entries.delete(oldest);
    return read;
  }
}

/**
 * The bytes of the shard's lines, by position.
 * @throws ProblemError InputChanged when the input is no longer the one that was indexed.
 */
export async function readLines(
  store: ObjectStore,
  source: Source,
  shard: Shard,
  signal: AbortSignal,
): Promise<Map<number, Uint8Array>> {
  try {
    const range = { start: shard.offset, end: shard.offset + shard.length };
    const { bytes } = await store.getBytes(source.key, { range, ifMatch: source.etag, signal });
    return new Map(linesOfShard(shard, bytes).map(({ position, bytes: line }) => [position, line]));
  } catch (error) {
    if (!isChange(error)) throw error;
    throw new ProblemError(
      'InputChanged',
      `s3://${source.bucket}/${source.inputKey} was replaced or removed after it was indexed (ETag ${source.inputEtag})`,
      false,
      { cause: error },
    );
  }
}

const isChange = (error: unknown): boolean =>
  (error instanceof StoreError && (error.code === 'PreconditionFailed' || error.code === 'NoSuchKey')) ||
  (error instanceof BatchError && error.code === 'CorruptObject');
