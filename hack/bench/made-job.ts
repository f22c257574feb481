/** A job whose shards finish when told to, on a real store: what publishing and finalising are tested and measured with. */
import { encodeCheckpoint } from '../../src/batch/checkpoint.ts';
import { encodeChunk, encodeSummary } from '../../src/batch/index-format.ts';
import { jobLayout, type JobLayout } from '../../src/batch/layout.ts';
import {
  FORMAT_VERSION,
  SHARDS_PER_CHUNK,
  type IndexSummary,
  type LineError,
  type LineRecord,
  type Shard,
} from '../../src/batch/model.ts';
import { composeShardResult } from '../../src/batch/shard-result.ts';
import type { ObjectStore } from '../../src/storage/contract.ts';

export interface MadeJobOptions {
  store: ObjectStore;
  prefix: string;
  uid: string;
  /** Lines of each shard, in order. */
  shards: readonly number[];
  /** Bytes of the record of the n-th line of the job; at least about 60. */
  recordBytes: (ordinal: number) => number;
  /** Whether the n-th line of the job fails. */
  fails: (ordinal: number) => boolean;
  /** Lines that cannot run. */
  invalid?: (ordinal: number) => LineError | undefined;
}

export class MadeJob {
  readonly uid: string;
  readonly prefix: string;
  readonly layout: JobLayout;
  readonly shards: readonly Shard[];
  readonly total: number;
  readonly #options: MadeJobOptions;

  constructor(options: MadeJobOptions) {
    this.#options = options;
    this.uid = options.uid;
    this.prefix = options.prefix;
    this.layout = jobLayout(options.prefix, options.uid);
    let firstOrdinal = 0;
    this.shards = options.shards.map((count, shard) => {
      const lines = Array.from({ length: count }, (_, n) => {
        const ordinal = firstOrdinal + n;
        const error = options.invalid?.(ordinal);
        return { line: ordinal + 1, customId: `line-${ordinal}`, ...(error === undefined ? {} : { error }) };
      });
      const made = { shard, source: 0, offset: firstOrdinal * 100, length: count * 100, firstOrdinal, lines };
      firstOrdinal += count;
      return made;
    });
    this.total = firstOrdinal;
  }

  async writeIndex(): Promise<void> {
    const { store } = this.#options;
    for (let at = 0; at < this.shards.length; at += SHARDS_PER_CHUNK) {
      await store.put(this.layout.chunk(at), encodeChunk(this.shards.slice(at, at + SHARDS_PER_CHUNK)));
    }
    const bytes = this.total * 100;
    const named = { bucket: store.bucket, key: 'in.jsonl', inputKey: 'in.jsonl' };
    const summary: IndexSummary = {
      ...{ formatVersion: FORMAT_VERSION, jobUID: this.uid, total: this.total, bytes },
      ...{ invalid: 0, firstInvalid: [], shards: this.shards.length },
      sources: [{ ...named, etag: '"e"', inputEtag: '"e"', bytes }],
    };
    await store.put(this.layout.summary, encodeSummary(summary));
  }

  record(ordinal: number): LineRecord {
    const failed = this.#options.fails(ordinal);
    const head = `{"custom_id":"line-${ordinal}","response":{"status_code":${failed ? 400 : 200},"body":"`;
    const fill = Math.max(0, this.#options.recordBytes(ordinal) - head.length - 3);
    const customId = `line-${ordinal}`;
    return {
      ...{ ordinal, line: ordinal + 1, outcome: failed ? 'failed' : 'completed' },
      usage: { inputTokens: 3, cachedInputTokens: 1, outputTokens: 2 },
      bytes: Buffer.from(`${head}${String(ordinal % 10).repeat(fill)}"}}`),
      ...(failed ? { error: { customId, code: 'http_400', message: 'no' } } : {}),
    };
  }

  recordsOf(shard: number): LineRecord[] {
    const { firstOrdinal, lines } = this.#shard(shard);
    return lines.map((_, position) => this.record(firstOrdinal + position));
  }

  /** Writes the shard's result, once. */
  async finish(shard: number): Promise<void> {
    const identity = { jobUID: this.uid, writer: 'made' };
    const { parts } = composeShardResult(identity, this.#shard(shard), this.recordsOf(shard));
    await this.#options.store.put(this.layout.shardResult(shard), Buffer.concat(parts), {
      ifNoneMatch: true,
    });
  }

  /** Writes the first lines of a shard as a checkpoint. */
  async checkpoint(shard: number, lines: number, writer = 'made'): Promise<void> {
    const bytes = encodeCheckpoint(
      { jobUID: this.uid, shard, writer },
      this.recordsOf(shard).slice(0, lines),
    );
    await this.#options.store.put(this.layout.checkpoint(shard, writer, 0), bytes);
  }

  /** What both files must be once the first shards are published. */
  expected(shards = this.shards.length): { results: Buffer; errors: Buffer } {
    const records = Array.from({ length: shards }, (_, shard) => this.recordsOf(shard)).flat();
    const file = (failed: boolean): Buffer =>
      Buffer.concat(
        records
          .filter(({ outcome }) => (outcome === 'failed') === failed)
          .flatMap(({ bytes }) => [bytes, Buffer.from('\n')]),
      );
    return { results: file(false), errors: file(true) };
  }

  #shard(shard: number): Shard {
    const found = this.shards[shard];
    if (found === undefined) throw new Error(`no shard ${shard} of ${this.shards.length}`);
    return found;
  }
}
