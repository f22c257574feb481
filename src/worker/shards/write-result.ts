/**
 * Decides a shard: writes its result object whole, once. Small results are put together in memory; large ones are
 * streamed from the checkpoints into a multipart upload, so that no shard needs more than a few parts of memory.
 */
import type { JobLayout } from '../../batch/layout.ts';
import type { LineRecord, Segment, Shard, ShardResultHeader } from '../../batch/model.ts';
import {
  composeShardResult,
  encodeShardResultHeader,
  orderRecords,
  type OrderedRecords,
  SegmentSum,
  shardResultHeader,
} from '../../batch/shard-result.ts';
import type { MultipartUpload, ObjectStore } from '../../storage/contract.ts';
import { StoreError } from '../../storage/contract.ts';
import type { ByteBudget } from './byte-budget.ts';
import { readDecided } from './decided.ts';
import type { SavedRecord } from './saved-records.ts';

export interface ResultContext {
  store: ObjectStore;
  layout: JobLayout;
  jobUID: string;
  writer: string;
  /** Of all results that are put together now. */
  memory: ByteBudget;
  signal: AbortSignal;
  /** Results of at most this size are put together in memory; also the size of parts, so at least 5 MiB. */
  partBytes: number;
}

export const RESULT_PART_BYTES = 8 * 1024 * 1024;

/** A checkpoint was removed or replaced: somebody else has the shard, or had it and is done. */
export class SavedRecordLost extends Error {}

type AnyRecord = LineRecord | SavedRecord;

const LINE_BREAK = Buffer.from('\n');

/**
 * @returns the header of the result that counts: ours, or that of whoever was first.
 * @throws BatchError CorruptObject unless there is exactly one record for each line; SavedRecordLost; StoreError
 */
export async function writeShardResult(
  context: ResultContext,
  shard: Shard,
  records: Iterable<AnyRecord>,
): Promise<ShardResultHeader> {
  const { store, layout, memory, signal, partBytes } = context;
  const ordered = orderRecords(shard, records);
  const conditions = await store.honoursConditions(`${layout.work}probe/`);
  const bytes = [...ordered.results, ...ordered.errors].reduce((sum, each) => sum + sizeOf(each), 0);
  const whole = bytes <= partBytes;
  // The pieces and the object made of them; of a large one its first part, the part being filled and one on its way.
  const held = whole ? 2 * bytes : 3 * partBytes;
  await memory.acquire(held, signal);
  try {
    // Where the store does not refuse a second result, at least one that is there already is not replaced.
    const honoured = whole ? conditions.put : conditions.complete;
    const decided = honoured ? undefined : await readDecided(store, layout, shard.shard, signal);
    if (decided !== undefined) return decided;
    return await (whole
      ? putWhole(context, shard, ordered, honoured)
      : uploadInParts(context, shard, ordered, honoured));
  } catch (error) {
    if (!mayBeDecided(error)) throw error;
    // Another worker was first, or our own earlier try arrived after all: what is there counts.
    const decided = await readDecided(store, layout, shard.shard, signal);
    if (decided === undefined) throw error;
    return decided;
  } finally {
    memory.release(held);
  }
}

const mayBeDecided = (error: unknown): boolean =>
  error instanceof SavedRecordLost ||
  (error instanceof StoreError && (error.code === 'PreconditionFailed' || error.code === 'NoSuchUpload'));

async function putWhole(
  context: ResultContext,
  shard: Shard,
  { results, errors }: OrderedRecords<AnyRecord>,
  conditional: boolean,
): Promise<ShardResultHeader> {
  const { store, layout, jobUID, writer, signal } = context;
  const records = await readBack(context, [...results, ...errors]);
  const { header, parts } = composeShardResult({ jobUID, writer }, shard, records);
  await store.put(layout.shardResult(shard.shard), Buffer.concat(parts), {
    ...(conditional ? { ifNoneMatch: true } : {}),
    signal,
  });
  return header;
}

/** Reads each checkpoint once, from the first record that is wanted of it to the last. */
async function readBack(context: ResultContext, records: readonly AnyRecord[]): Promise<LineRecord[]> {
  const ranges = new Map<string, { etag: string; start: number; end: number }>();
  for (const record of records) {
    if ('bytes' in record) continue;
    const { key, etag } = record;
    const range = ranges.get(key) ?? { etag, start: Infinity, end: 0 };
    const [start, end] = [Math.min(range.start, record.start), Math.max(range.end, record.end)];
    ranges.set(key, { etag, start, end });
  }
  const pieces = new Map<string, { start: number; bytes: Buffer }>();
  const read = async ([key, { etag, start, end }]: [
    string,
    { etag: string; start: number; end: number },
  ]) => {
    const options = { range: { start, end }, ifMatch: etag, signal: context.signal };
    const { bytes } = await saved(key, context.store.getBytes(key, options));
    pieces.set(key, { start, bytes });
  };
  await Promise.all([...ranges].map(read));
  return records.map((record) => {
    if ('bytes' in record) return record;
    const { key, etag: _, start, end, ...summary } = record;
    const piece = pieces.get(key) as { start: number; bytes: Buffer };
    return { ...summary, bytes: piece.bytes.subarray(start - piece.start, end - piece.start) };
  });
}

/** The header stands first but is known last: the first part is kept back until all others are uploaded. */
async function uploadInParts(
  context: ResultContext,
  shard: Shard,
  ordered: OrderedRecords<AnyRecord>,
  conditional: boolean,
): Promise<ShardResultHeader> {
  const { store, layout, jobUID, writer, signal } = context;
  const upload = await store.createMultipart(layout.shardResult(shard.shard), { signal });
  try {
    const parts = new Parts(upload, context);
    const results = await appendSegment(context, parts, ordered.results);
    const errors = await appendSegment(context, parts, ordered.errors);
    const header = shardResultHeader({ jobUID, writer }, shard, ordered, { results, errors });
    await parts.end(encodeShardResultHeader(header));
    await upload.complete({ ...(conditional ? { ifNoneMatch: true } : {}), signal });
    return header;
  } catch (error) {
    // Clean-up aborts what is left under the job's prefix.
    await upload.abort().catch(() => undefined);
    throw error;
  }
}

async function appendSegment(
  context: ResultContext,
  parts: Parts,
  records: readonly AnyRecord[],
): Promise<Segment> {
  const sum = new SegmentSum();
  const add = async (piece: Uint8Array): Promise<void> => {
    sum.add(piece);
    await parts.write(piece);
  };
  for (const record of records) {
    if ('bytes' in record) await add(record.bytes);
    else for await (const piece of streamBack(context, record)) await add(piece);
    await add(LINE_BREAK);
  }
  return sum.segment(records.length);
}

async function* streamBack(
  { store, signal }: ResultContext,
  { key, etag, start, end }: SavedRecord,
): AsyncGenerator<Buffer> {
  const opened = store.get(key, { range: { start, end }, ifMatch: etag, signal });
  const { body } = await saved(key, opened);
  yield* body as AsyncIterable<Buffer>;
}

async function saved<T>(key: string, read: Promise<T>): Promise<T> {
  try {
    return await read;
  } catch (error) {
    if (!(error instanceof StoreError) || !['NoSuchKey', 'PreconditionFailed'].includes(error.code))
      throw error;
    throw new SavedRecordLost(`checkpoint ${key} was removed or replaced`, { cause: error });
  }
}

/** Fills parts one after another; the first is uploaded last, behind the header. */
class Parts {
  readonly #upload: MultipartUpload;
  readonly #partBytes: number;
  readonly #signal: AbortSignal;
  #first: Buffer | undefined;
  #number = 1;
  #pieces: Uint8Array[] = [];
  #bytes = 0;

  constructor(upload: MultipartUpload, { partBytes, signal }: ResultContext) {
    this.#upload = upload;
    this.#partBytes = partBytes;
    this.#signal = signal;
  }

  async write(piece: Uint8Array): Promise<void> {
    for (let at = 0; at < piece.length;) {
      const some = piece.subarray(at, at + this.#partBytes - this.#bytes);
      at += some.length;
      this.#pieces.push(some);
      this.#bytes += some.length;
      if (this.#bytes === this.#partBytes) await this.#full();
    }
  }

  async end(header: Buffer): Promise<void> {
    if (this.#bytes > 0) await this.#full();
    await this.#upload.uploadPart(1, Buffer.concat([header, this.#first ?? Buffer.alloc(0)]), this.#signal);
  }

  async #full(): Promise<void> {
    const bytes = Buffer.concat(this.#pieces, this.#bytes);
    this.#pieces = [];
    this.#bytes = 0;
    if (this.#number === 1) this.#first = bytes;
    else await this.#upload.uploadPart(this.#number, bytes, this.#signal);
    this.#number += 1;
  }
}

const sizeOf = (record: AnyRecord): number =>
  'bytes' in record ? record.bytes.byteLength : record.end - record.start;
