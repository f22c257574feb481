/** The result object of one shard: a header line, then its lines of results.jsonl, then its lines of errors.jsonl. */
import { createHash } from 'node:crypto';
import { BatchError, excerpt, type NeverRanCode } from './errors.ts';
import { tally } from './counts.ts';
import { crc32 } from './crc.ts';
import { checkFormatVersion } from './index-format.ts';
import {
  FORMAT_VERSION,
  type LineRecord,
  type RecentError,
  type Segment,
  type Shard,
  type ShardResultHeader,
} from './model.ts';

/** Reading this much of a result object always yields its whole header. */
export const SHARD_HEADER_READ_BYTES = 64 * 1024;
/** As many as status.recentErrors has. */
export const MAX_RECENT_ERRORS = 10;

const LINE_BREAK = Buffer.from('\n');

export interface ShardResult {
  header: ShardResultHeader;
  /** The object, in pieces to be written one after another. */
  parts: Uint8Array[];
  /** Sum of the parts. */
  bytes: number;
}

/** Who writes the result of which job. */
export interface ResultIdentity {
  jobUID: string;
  writer: string;
}

export type ShardLines = Pick<Shard, 'shard' | 'firstOrdinal' | 'lines'>;

/** What a record counts for, wherever its bytes are. */
export type RecordSummary = Omit<LineRecord, 'bytes'>;

/** The records of a whole shard, in the order of their lines. */
export interface OrderedRecords<R extends RecordSummary> {
  results: R[];
  errors: R[];
}

/**
 * Composes the result of a shard from the records of all its lines, in any order.
 * Throws CorruptObject unless there is exactly one record for each line of the shard.
 */
export function composeShardResult(
  identity: ResultIdentity,
  shard: ShardLines,
  records: Iterable<LineRecord>,
): ShardResult {
  const ordered = orderRecords(shard, records);
  const resultParts = lines(ordered.results);
  const errorParts = lines(ordered.errors);
  const segmentOf = (parts: readonly Uint8Array[], lineCount: number): Segment => {
    const sum = new SegmentSum();
    for (const part of parts) sum.add(part);
    return sum.segment(lineCount);
  };
  const header = shardResultHeader(identity, shard, ordered, {
    results: segmentOf(resultParts, ordered.results.length),
    errors: segmentOf(errorParts, ordered.errors.length),
  });
  const headerLine = encodeShardResultHeader(header);
  const parts = [headerLine, ...resultParts, ...errorParts];
  return { header, parts, bytes: headerLine.length + header.results.bytes + header.errors.bytes };
}

/** Throws CorruptObject unless there is exactly one record for each line of the shard. */
export function orderRecords<R extends RecordSummary>(
  shard: ShardLines,
  records: Iterable<R>,
): OrderedRecords<R> {
  const byPosition = new Array<R | undefined>(shard.lines.length).fill(undefined);
  for (const record of records) {
    const position = record.ordinal - shard.firstOrdinal;
    if (shard.lines[position] === undefined) {
      throw new BatchError(
        'CorruptObject',
        `Shard ${shard.shard} has no line with ordinal ${record.ordinal}.`,
      );
    }
    if (byPosition[position] !== undefined) {
      throw new BatchError(
        'CorruptObject',
        `Shard ${shard.shard} has two records with ordinal ${record.ordinal}.`,
      );
    }
    byPosition[position] = record;
  }
  const ordered: OrderedRecords<R> = { results: [], errors: [] };
  for (const [position, record] of byPosition.entries()) {
    if (record === undefined) {
      throw new BatchError(
        'CorruptObject',
        `Shard ${shard.shard} has no record for line ${shard.lines[position]!.line}.`,
      );
    }
    (record.outcome === 'completed' ? ordered.results : ordered.errors).push(record);
  }
  return ordered;
}

export function shardResultHeader(
  identity: ResultIdentity,
  shard: Pick<Shard, 'shard'>,
  ordered: OrderedRecords<RecordSummary>,
  segments: { results: Segment; errors: Segment },
): ShardResultHeader {
  return {
    formatVersion: FORMAT_VERSION,
    jobUID: identity.jobUID,
    shard: shard.shard,
    writer: identity.writer,
    ...tally([...ordered.results, ...ordered.errors]),
    ...segments,
    recentErrors: recentErrors(ordered.errors),
  };
}

export const encodeShardResultHeader = (header: ShardResultHeader): Buffer =>
  Buffer.from(`${JSON.stringify(header)}\n`);

const lines = (records: readonly LineRecord[]): Uint8Array[] =>
  records.flatMap(({ bytes }) => [bytes, LINE_BREAK]);

/** Sums up a segment, piece by piece, as its bytes come. */
export class SegmentSum {
  readonly #hash = createHash('sha256');
  #bytes = 0;
  #crc = 0;

  add(piece: Uint8Array): void {
    this.#hash.update(piece);
    this.#crc = crc32(piece, this.#crc);
    this.#bytes += piece.length;
  }

  /** To be asked once, after the last piece. */
  segment(lineCount: number): Segment {
    return { bytes: this.#bytes, lines: lineCount, crc32: this.#crc, sha256: this.#hash.digest('hex') };
  }
}

const NOT_RUN: NeverRanCode = 'batch_failed';

/** The last failed lines of a shard, as status shows them. Lines that merely did not get to run say nothing new. */
export const recentErrors = (records: readonly RecordSummary[]): RecentError[] =>
  records
    .filter(({ outcome, error }) => outcome === 'failed' && error?.code !== NOT_RUN)
    .slice(-MAX_RECENT_ERRORS)
    .map(({ line, error }) => ({
      line,
      customID: error === undefined || error.customId === null ? null : excerpt(error.customId, 512),
      code: excerpt(error?.code ?? 'unknown', 64),
      message: excerpt(error?.message ?? '', 256),
    }));

/**
 * Reads the header from the beginning of a result object. Undefined when these bytes do not hold the whole header
 * yet (SHARD_HEADER_READ_BYTES always do). Throws UnsupportedFormat or CorruptObject.
 */
export function parseShardResultHeader(
  bytes: Uint8Array,
): { header: ShardResultHeader; headerBytes: number } | undefined {
  const lf = bytes.subarray(0, SHARD_HEADER_READ_BYTES).indexOf(0x0a);
  if (lf < 0) {
    if (bytes.length < SHARD_HEADER_READ_BYTES) return undefined;
    throw new BatchError('CorruptObject', 'The shard result has no header line.');
  }
  let header: Partial<ShardResultHeader> | null;
  try {
    header = JSON.parse(Buffer.from(bytes.subarray(0, lf)).toString()) as Partial<ShardResultHeader> | null;
  } catch (cause) {
    throw new BatchError('CorruptObject', 'The header of the shard result is not valid JSON.', { cause });
  }
  checkFormatVersion('shard result', header?.formatVersion);
  if (!isWhole(header)) throw new BatchError('CorruptObject', 'The header of the shard result lacks fields.');
  return { header, headerBytes: lf + 1 };
}

function isWhole(header: Partial<ShardResultHeader> | null): header is ShardResultHeader {
  const isCount = (n: unknown): boolean => Number.isSafeInteger(n);
  const isSegment = (s: Segment | undefined): boolean =>
    isCount(s?.bytes) && isCount(s?.lines) && isCount(s?.crc32);
  return (
    header !== null &&
    typeof header.jobUID === 'string' &&
    typeof header.writer === 'string' &&
    isCount(header.shard) &&
    isCount(header.counts?.completed) &&
    isCount(header.usage?.inputTokens) &&
    isSegment(header.results) &&
    isSegment(header.errors) &&
    Array.isArray(header.recentErrors)
  );
}

/** Where the two segments lie in the object: bytes [start, end). */
export function segmentRanges(
  header: ShardResultHeader,
  headerBytes: number,
): { results: { start: number; end: number }; errors: { start: number; end: number } } {
  const resultsEnd = headerBytes + header.results.bytes;
  return {
    results: { start: headerBytes, end: resultsEnd },
    errors: { start: resultsEnd, end: resultsEnd + header.errors.bytes },
  };
}

/** Refuses a segment that is not what its header says. Throws CorruptObject. */
export function verifySegment(segmentBytes: Uint8Array, expected: Segment, what: string): void {
  if (segmentBytes.length !== expected.bytes) {
    throw new BatchError(
      'CorruptObject',
      `${what} has ${segmentBytes.length} bytes; its header says ${expected.bytes}.`,
    );
  }
  if (crc32(segmentBytes) !== expected.crc32) {
    throw new BatchError('CorruptObject', `${what} does not match the checksum of its header.`);
  }
}

/** Reads and verifies a whole result object; of another job or shard, torn or damaged: CorruptObject. */
export function readShardResult(
  bytes: Uint8Array,
  expected: { jobUID: string; shard: number },
): { header: ShardResultHeader; results: Uint8Array; errors: Uint8Array } {
  const parsed = parseShardResultHeader(bytes);
  if (parsed === undefined)
    throw new BatchError('CorruptObject', 'The shard result has no whole header line.');
  const { header, headerBytes } = parsed;
  if (header.jobUID !== expected.jobUID || header.shard !== expected.shard) {
    throw new BatchError(
      'CorruptObject',
      `The result is of shard ${header.shard} of job ${header.jobUID}, ` +
        `not of shard ${expected.shard} of job ${expected.jobUID}.`,
    );
  }
  const ranges = segmentRanges(header, headerBytes);
  if (bytes.length !== ranges.errors.end) {
    throw new BatchError(
      'CorruptObject',
      `The result of shard ${header.shard} has ${bytes.length} bytes; its header says ${ranges.errors.end}.`,
    );
  }
  const results = bytes.subarray(ranges.results.start, ranges.results.end);
  const errors = bytes.subarray(ranges.errors.start, ranges.errors.end);
  verifySegment(results, header.results, `The results segment of shard ${header.shard}`);
  verifySegment(errors, header.errors, `The errors segment of shard ${header.shard}`);
  return { header, results, errors };
}
