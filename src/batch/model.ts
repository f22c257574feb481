/**
 * What a batch job is made of once it is in flight: sources, shards, lines, records, counts.
 * These shapes are stored in S3 (see layout.ts for the keys) and outlive any process, hence FORMAT_VERSION.
 */
import type { BatchEndpoint } from '../api/inference-batch-job-spec.ts';

/** Version of every working object. A reader that finds another one refuses with a clear error. */
export const FORMAT_VERSION = 1;

/** Shards are cut at whichever comes first. */
export const SHARD_MAX_LINES = 250;
export const SHARD_MAX_BYTES = 4 * 1024 * 1024;

/** Shards per index chunk object: a worker reads one chunk (about 1 MB) for 64 shards. */
export const SHARDS_PER_CHUNK = 64;

/** The longest input line and the longest answer kept, in bytes. */
export const MAX_LINE_BYTES = 64 * 1024 * 1024;
export const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

export type Endpoint = BatchEndpoint;

/** Tokens as the engine reports them. `cachedInputTokens` is part of `inputTokens`. */
export interface Usage {
  inputTokens: number;
  cachedInputTokens: number;
  outputTokens: number;
}

/** How a line ended. `completed` lines are in results.jsonl, all others in errors.jsonl. */
export type Outcome = 'completed' | 'failed' | 'expired' | 'cancelled';
export const OUTCOMES: readonly Outcome[] = ['completed', 'failed', 'expired', 'cancelled'];

export type OutcomeCounts = Record<Outcome, number>;

/** `total` = the number of non-blank input lines; at the end it equals the sum of the outcomes. */
export interface Counts extends OutcomeCounts {
  total: number;
}

/** One plain JSONL object that shards point into. For packed input this is the unpacked working object. */
export interface Source {
  bucket: string;
  key: string;
  etag: string;
  bytes: number;
  /** The key the user named; differs from `key` when the input was packed. Errors name this one. */
  inputKey: string;
  /** ETag of the object under `inputKey` when it was read. */
  inputEtag: string;
}

/** Why a line cannot run or did not run. Codes are OpenAI's where OpenAI has one (docs/reference/errors.md). */
export interface LineError {
  code: string;
  message: string;
  /** The field at fault, such as `custom_id` or `body.model`; null where no single field is. */
  param: string | null;
}

/** One non-blank input line as the index keeps it: enough to write its record when the input is gone. */
export interface IndexedLine {
  /** Physical line number in its source, from 1, blank lines counted. */
  line: number;
  /** null where the line has none that can be read. */
  customId: string | null;
  /** Present when the line must not run; its record is made from this. */
  error?: LineError;
}

/** A contiguous byte range of one source: the unit in the queue. */
export interface Shard {
  /** 0-based number over the whole job, in input order. */
  shard: number;
  /** Position in IndexSummary.sources. */
  source: number;
  /** Byte range [offset, offset + length) in the source; starts and ends on line borders. */
  offset: number;
  length: number;
  /** 0-based position, over the whole job, of this shard's first non-blank line; with the job UID it makes record ids. */
  firstOrdinal: number;
  lines: IndexedLine[];
}

export interface IndexSummary {
  formatVersion: typeof FORMAT_VERSION;
  jobUID: string;
  sources: Source[];
  /** Non-blank lines, invalid ones included. */
  total: number;
  /** Lines that carry an error and will not run. */
  invalid: number;
  /** The first invalid lines (≤ 10), for status and for `invalidLines: Fail`. */
  firstInvalid: { key: string; line: number; customId: string | null; error: LineError }[];
  shards: number;
  /** Bytes of all sources. */
  bytes: number;
}

/** A finished record: the JSONL line (without its line break) and what it counts for. */
export interface LineRecord {
  ordinal: number;
  line: number;
  outcome: Outcome;
  usage: Usage;
  /** UTF-8 bytes of one JSON object, no line break inside. */
  bytes: Uint8Array;
  /** For failed lines: what status.recentErrors shows. */
  error?: { customId: string | null; code: string; message: string };
}

export interface Segment {
  bytes: number;
  lines: number;
  /** CRC-32 (IEEE) of the segment, combinable over shards. */
  crc32: number;
  sha256: string;
}

/**
 * First line of a shard result object; then come `results.bytes` bytes of results.jsonl lines and
 * `errors.bytes` bytes of errors.jsonl lines, both in input order.
 */
export interface ShardResultHeader {
  formatVersion: typeof FORMAT_VERSION;
  jobUID: string;
  shard: number;
  /** Who wrote it: lets a writer recognise its own object after a 412 on its own retry. */
  writer: string;
  counts: OutcomeCounts;
  usage: Usage;
  results: Segment;
  errors: Segment;
  recentErrors: RecentError[];
}

export interface RecentError {
  line: number;
  customID: string | null;
  code: string;
  message: string;
}

export const noUsage = (): Usage => ({ inputTokens: 0, cachedInputTokens: 0, outputTokens: 0 });
export const noOutcomes = (): OutcomeCounts => ({ completed: 0, failed: 0, expired: 0, cancelled: 0 });
