/** The index as it lies in S3: chunk objects with one Shard as JSON per line, and one summary, written last. */
import { BatchError } from './errors.ts';
import { Framer } from './framing.ts';
import { FORMAT_VERSION, SHARDS_PER_CHUNK, type IndexSummary, type Shard } from './model.ts';

export const chunkOf = (shard: number): number => Math.floor(shard / SHARDS_PER_CHUNK);

export const chunksFor = (shards: number): number => Math.ceil(shards / SHARDS_PER_CHUNK);

/** Encodes the shards of one chunk. */
export const encodeChunk = (shards: readonly Shard[]): Buffer =>
  Buffer.from(shards.map((shard) => `${JSON.stringify(shard)}\n`).join(''));

/** The shards of one chunk object, in order. Throws CorruptObject. */
export function parseChunk(bytes: Uint8Array): Shard[] {
  if (bytes.length > 0 && bytes[bytes.length - 1] !== 0x0a) {
    throw new BatchError(
      'CorruptObject',
      `The index chunk of ${bytes.length} bytes is cut in its last line.`,
    );
  }
  const shards: Shard[] = [];
  for (let at = 0; at < bytes.length;) {
    const lf = bytes.indexOf(0x0a, at);
    shards.push(parseShard(bytes.subarray(at, lf), shards.length));
    at = lf + 1;
  }
  for (const [position, { shard }] of shards.entries()) {
    if (shard !== shards[0]!.shard + position) {
      throw new BatchError('CorruptObject', `The index chunk has shard ${shard} at position ${position}.`);
    }
  }
  return shards;
}

/** One shard of its chunk object, without parsing the others. Throws CorruptObject. */
export function shardInChunk(bytes: Uint8Array, shard: number): Shard {
  let at = 0;
  for (let skip = shard % SHARDS_PER_CHUNK; skip > 0 && at > -1; skip--)
    at = bytes.indexOf(0x0a, at) + 1 || -1;
  const lf = at < 0 ? -1 : bytes.indexOf(0x0a, at);
  if (lf < 0) throw new BatchError('CorruptObject', `The index chunk has no shard ${shard}.`);
  const found = parseShard(bytes.subarray(at, lf), shard % SHARDS_PER_CHUNK);
  if (found.shard !== shard) {
    throw new BatchError(
      'CorruptObject',
      `The index chunk has shard ${found.shard} in the place of ${shard}.`,
    );
  }
  return found;
}

function parseShard(line: Uint8Array, position: number): Shard {
  let value: Partial<Shard>;
  try {
    value = JSON.parse(textOfLine(line)) as Partial<Shard>;
  } catch (cause) {
    throw new BatchError('CorruptObject', `Line ${position + 1} of the index chunk is not valid JSON.`, {
      cause,
    });
  }
  const numbers = [value.shard, value.source, value.offset, value.length, value.firstOrdinal];
  if (!numbers.every((n) => Number.isSafeInteger(n)) || !Array.isArray(value.lines)) {
    throw new BatchError('CorruptObject', `Line ${position + 1} of the index chunk is not a shard.`);
  }
  return value as Shard;
}

const textOfLine = (bytes: Uint8Array): string =>
  Buffer.from(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length).toString();

export const encodeSummary = (summary: IndexSummary): Buffer => Buffer.from(JSON.stringify(summary));

/** Throws UnsupportedFormat for another format version, CorruptObject for anything else that is no summary. */
export function parseSummary(bytes: Uint8Array): IndexSummary {
  let value: Partial<IndexSummary> | null;
  try {
    value = JSON.parse(textOfLine(bytes)) as Partial<IndexSummary> | null;
  } catch (cause) {
    throw new BatchError('CorruptObject', 'The index summary is not valid JSON.', { cause });
  }
  checkFormatVersion('index summary', value?.formatVersion);
  if (
    typeof value?.jobUID !== 'string' ||
    !Array.isArray(value.sources) ||
    !Array.isArray(value.firstInvalid) ||
    ![value.total, value.invalid, value.shards, value.bytes].every((n) => Number.isSafeInteger(n))
  ) {
    throw new BatchError('CorruptObject', 'The index summary lacks fields.');
  }
  return value as IndexSummary;
}

/** Refuses a working object of another format version. */
export function checkFormatVersion(what: string, found: unknown): void {
  if (found === FORMAT_VERSION) return;
  const shown = typeof found === 'number' ? `format version ${found}` : 'no format version';
  throw new BatchError(
    'UnsupportedFormat',
    `The ${what} has ${shown}; this Tidegate reads version ${FORMAT_VERSION}.`,
  );
}

/** One line of a shard as it is read back from its source. */
export interface ShardLine {
  /** Position in Shard.lines. */
  position: number;
  /** Without its line break. */
  bytes: Uint8Array;
}

/**
 * Cuts the bytes of a shard's range into the lines that the index names. Lines over the limit (they carry an error)
 * are left out. Throws CorruptObject when the number of lines is another one: then these are not the bytes indexed.
 */
export function linesOfShard(shard: Shard, bytes: Uint8Array): ShardLine[] {
  const lines: ShardLine[] = [];
  let position = 0;
  const firstLine = shard.lines[0]?.line ?? 1;
  const framer = new Framer({ startsObject: false });
  const take = (buffer: Uint8Array | undefined, start: number, end: number, line: number): void => {
    const indexed = shard.lines[position];
    if (indexed === undefined || indexed.line !== firstLine + line - 1) {
      throw new BatchError(
        'CorruptObject',
        `The bytes of shard ${shard.shard} have a line where the index has none.`,
      );
    }
    if (buffer !== undefined) lines.push({ position, bytes: buffer.subarray(start, end) });
    position++;
  };
  framer.feed(bytes, take);
  framer.finish(take);
  if (position !== shard.lines.length || bytes.length !== shard.length) {
    throw new BatchError(
      'CorruptObject',
      `Shard ${shard.shard} has ${bytes.length} bytes with ${position} lines; ` +
        `the index names ${shard.length} bytes with ${shard.lines.length} lines.`,
    );
  }
  return lines;
}
