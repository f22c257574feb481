/**
 * Which shard results were published: each with the ETag it was read at. A store with conditional writes keeps a
 * result for ever as it is first written; on others a late worker may replace it, and then the pin tells.
 *
 * Each publish notes its pins under `published/` before it changes a file, so that a crash between the two files
 * does not let them be made from different results. They are a help, not a truth: missing ones are read again from
 * the results' headers, and the manifest is checked against the published files' own checksums.
 */
import { BatchError } from '../../batch/errors.ts';
import { outcomesSum } from '../../batch/counts.ts';
import type { ShardResultHeader } from '../../batch/model.ts';
import { parseShardResultHeader, SHARD_HEADER_READ_BYTES, segmentRanges } from '../../batch/shard-result.ts';
import { type ObjectStore } from '../../storage/contract.ts';
import { ifThere, uriOf, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';
import { inOrder } from './in-order.ts';
import type { FileName } from './position.ts';

export interface Pin {
  shard: number;
  etag: string;
  headerBytes: number;
  /** Without recentErrors, which would make pins of failing jobs large. */
  header: ShardResultHeader;
}

/** Almost every header fits, and little of the records behind it is read for nothing. */
const FIRST_READ_BYTES = 4 * 1024;

/** Whole header, recentErrors included; undefined where the shard has no result. @throws BatchError CorruptObject */
export async function readHeader(context: PublishContext, shard: number): Promise<Pin | undefined> {
  const { store, layout, jobUID, signal } = context;
  const key = layout.shardResult(shard);
  for (const bytes of [FIRST_READ_BYTES, SHARD_HEADER_READ_BYTES]) {
    const read = await ifThere(store.getBytes(key, { range: { start: 0, end: bytes }, signal }));
    if (read === undefined) return undefined;
    const parsed = parseShardResultHeader(read.bytes);
    if (parsed === undefined) continue;
    const { header, headerBytes } = parsed;
    checkHeader(store, key, header, { jobUID, shard, headerBytes, bytes: read.info.bytes });
    return { shard, etag: read.info.etag, headerBytes, header };
  }
  throw new BatchError('CorruptObject', `${uriOf(store, key)} has no whole header line.`);
}

function checkHeader(
  store: ObjectStore,
  key: string,
  header: ShardResultHeader,
  expected: { jobUID: string; shard: number; headerBytes: number; bytes: number },
): void {
  const refuse = (why: string): BatchError => new BatchError('CorruptObject', `${uriOf(store, key)} ${why}.`);
  if (header.jobUID !== expected.jobUID || header.shard !== expected.shard)
    throw refuse(`is the result of shard ${header.shard} of job ${header.jobUID}`);
  const end = segmentRanges(header, expected.headerBytes).errors.end;
  if (end !== expected.bytes) throw refuse(`has ${expected.bytes} bytes; its header says ${end}`);
  const { counts, results, errors } = header;
  if (results.lines !== counts.completed || results.lines + errors.lines !== outcomesSum(counts))
    throw refuse(`has ${results.lines} + ${errors.lines} lines; its counts say ${JSON.stringify(counts)}`);
}

/** Pins of the finished shards from `from` on, up to the first that is not finished. */
export async function pinContiguous(context: PublishContext, from: number): Promise<Pin[]> {
  const { store, layout, signal, settings } = context;
  const startAfter = from === 0 ? {} : { startAfter: layout.shardResult(from - 1) };
  let end = from;
  for await (const { key } of store.list(layout.shardResults, { ...startAfter, signal })) {
    if (key !== layout.shardResult(end)) break;
    end += 1;
    if (end - from >= settings.maxShards) break;
  }
  return pinRange(context, from, end);
}

/** Pins of shards [from, end), read from their headers. A result that is gone ends them early. */
async function pinRange(context: PublishContext, from: number, end: number): Promise<Pin[]> {
  const shards = Array.from({ length: end - from }, (_, n) => from + n);
  const pins: Pin[] = [];
  for await (const pin of inOrder(shards, context.settings.readsInFlight, (n) => readHeader(context, n))) {
    if (pin === undefined) break;
    pins.push(slim(pin));
  }
  return pins;
}

const slim = (pin: Pin): Pin => ({ ...pin, header: { ...pin.header, recentErrors: [] } });

export async function writePins(context: PublishContext, pins: readonly Pin[]): Promise<void> {
  const first = pins[0];
  if (first === undefined) return;
  const bytes = Buffer.from(pins.map((pin) => `${JSON.stringify(pin)}\n`).join(''));
  await context.store.put(context.layout.published(first.shard), bytes, { signal: context.signal });
}

/**
 * Pins of shards [from, end) in order: noted ones where there are, else read from the headers. Held in memory:
 * those of one publish.
 */
export async function* allPins(context: PublishContext, from: number, end: number): AsyncGenerator<Pin> {
  if (from >= end) return;
  let next = from;
  for await (const noted of notedPins(context, end)) {
    for (const pin of noted) {
      if (pin.shard < next || pin.shard >= end) continue;
      yield* headersUpTo(context, next, pin.shard);
      yield pin;
      next = pin.shard + 1;
    }
  }
  yield* headersUpTo(context, next, end);
}

async function* headersUpTo(context: PublishContext, from: number, end: number): AsyncGenerator<Pin> {
  for (let at = from; at < end; at += context.settings.maxShards) {
    const until = Math.min(end, at + context.settings.maxShards);
    const pins = await pinRange(context, at, until);
    if (pins.length < until - at) throw lost(context, at + pins.length);
    yield* pins;
  }
}

async function* notedPins(context: PublishContext, end: number): AsyncGenerator<Pin[]> {
  const { store, layout, signal } = context;
  const keys: string[] = [];
  for await (const { key } of store.list(layout.publishedPrefix, { signal })) {
    if (key >= layout.published(end)) break;
    keys.push(key);
  }
  yield* inOrder(keys, 2, async (key) => {
    const read = await ifThere(store.getBytes(key, { signal }));
    return read === undefined ? [] : decodePins(read.bytes, context.jobUID);
  });
}

/** Lines that cannot be read are left out: their headers are read again. */
function decodePins(bytes: Buffer, jobUID: string): Pin[] {
  const pins: Pin[] = [];
  for (const line of bytes.toString().split('\n')) {
    if (line === '') continue;
    try {
      const pin = JSON.parse(line) as Pin;
      if (pin.header.jobUID === jobUID && pin.header.shard === pin.shard) pins.push(pin);
    } catch {
      continue;
    }
  }
  return pins;
}

const lost = (context: PublishContext, shard: number): PublishError =>
  new PublishError(
    'ResultChanged',
    `${uriOf(context.store, context.layout.shardResult(shard))} was published and is gone`,
  );

/**
 * Looks whether a shard that one file already holds still has the result which that file was made from.
 * @returns the pin to read the other file's segment with.
 * @throws PublishError ResultChanged when the segment differs.
 */
export async function confirmPin(context: PublishContext, pin: Pin, file: FileName): Promise<Pin> {
  const now = await readHeader(context, pin.shard);
  if (now === undefined) throw lost(context, pin.shard);
  if (now.etag === pin.etag) return pin;
  if (now.header[file].sha256 === pin.header[file].sha256)
    return {
      ...pin,
      etag: now.etag,
      headerBytes: now.headerBytes,
      header: { ...pin.header, results: now.header.results, errors: now.header.errors },
    };
  throw new PublishError(
    'ResultChanged',
    `${uriOf(context.store, context.layout.shardResult(pin.shard))} was replaced after a part of it was published; ` +
      `the store does not honour If-None-Match`,
  );
}
