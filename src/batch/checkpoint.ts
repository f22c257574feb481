/**
 * A checkpoint is the finished records of one open shard themselves. One that is torn, damaged or of another shard is
 * refused whole: its lines run again, which costs time but never an answer that is not whole.
 *
 * Format: a header line, then per record a line of what it counts for and the line of the record itself.
 */
import { BatchError } from './errors.ts';
import { crc32 } from './crc.ts';
import { checkFormatVersion } from './index-format.ts';
import { FORMAT_VERSION, OUTCOMES, type LineRecord, type Outcome } from './model.ts';

export interface CheckpointIdentity {
  jobUID: string;
  shard: number;
  writer: string;
}

interface CheckpointHeader extends CheckpointIdentity {
  formatVersion: number;
  records: number;
  /** Of everything behind the header line. */
  bytes: number;
  crc32: number;
  attempts?: [ordinal: number, attempts: number][];
}

type RecordLine = [
  ordinal: number,
  line: number,
  outcome: Outcome,
  usage: [input: number, cached: number, output: number],
  bytes: number,
  error?: LineRecord['error'],
];

const LINE_BREAK = Buffer.from('\n');

/**
 * One object to be written whole.
 * @param attempts by ordinal, those that unfinished lines have used up: a line that kills its engine must end, also
 * when its shard is given back while the engine restarts.
 */
export function encodeCheckpoint(
  identity: CheckpointIdentity,
  records: readonly LineRecord[],
  attempts: ReadonlyMap<number, number> = new Map(),
): Buffer {
  const parts: Uint8Array[] = [];
  for (const { ordinal, line, outcome, usage, bytes, error } of records) {
    const meta: RecordLine = [
      ordinal,
      line,
      outcome,
      [usage.inputTokens, usage.cachedInputTokens, usage.outputTokens],
      bytes.length,
    ];
    if (error !== undefined) meta.push(error);
    parts.push(Buffer.from(`${JSON.stringify(meta)}\n`), bytes, LINE_BREAK);
  }
  const crc = parts.reduce((before, part) => crc32(part, before), 0);
  const header: CheckpointHeader = {
    formatVersion: FORMAT_VERSION,
    jobUID: identity.jobUID,
    shard: identity.shard,
    writer: identity.writer,
    records: records.length,
    bytes: parts.reduce((sum, part) => sum + part.length, 0),
    crc32: crc,
    ...(attempts.size === 0 ? {} : { attempts: [...attempts] }),
  };
  return Buffer.concat([Buffer.from(`${JSON.stringify(header)}\n`), ...parts]);
}

/**
 * The records of a checkpoint; their bytes are views into it. Throws CorruptObject when it is not exactly what
 * encodeCheckpoint made for this job and shard, UnsupportedFormat for another version.
 */
export function decodeCheckpoint(
  bytes: Uint8Array,
  expected: { jobUID: string; shard: number },
): LineRecord[] {
  const headerEnd = bytes.indexOf(0x0a);
  if (headerEnd < 0) throw refused('has no header line');
  const header = parse<CheckpointHeader>(bytes, 0, headerEnd, 'header');
  checkFormatVersion('checkpoint', header?.formatVersion);
  if (header.jobUID !== expected.jobUID || header.shard !== expected.shard) {
    throw refused(
      `is of shard ${header.shard} of job ${header.jobUID}, not of shard ${expected.shard} of job ${expected.jobUID}`,
    );
  }
  const body = bytes.subarray(headerEnd + 1);
  if (body.length !== header.bytes)
    throw refused(`has ${body.length} bytes of records instead of ${header.bytes}`);
  if (crc32(body) !== header.crc32) throw refused('does not match its checksum');

  const records: LineRecord[] = [];
  let at = 0;
  while (at < body.length) {
    const metaEnd = body.indexOf(0x0a, at);
    if (metaEnd < 0) throw refused('ends inside a record');
    const [ordinal, line, outcome, usage, length, error] = parse<RecordLine>(body, at, metaEnd, 'record');
    const start = metaEnd + 1;
    const end = start + length;
    if (!OUTCOMES.includes(outcome) || body[end] !== 0x0a) throw refused('has a malformed record');
    records.push({
      ordinal,
      line,
      outcome,
      usage: { inputTokens: usage[0], cachedInputTokens: usage[1], outputTokens: usage[2] },
      bytes: body.subarray(start, end),
      ...(error === undefined ? {} : { error }),
    });
    at = end + 1;
  }
  if (records.length !== header.records) {
    throw refused(`has ${records.length} records instead of ${header.records}`);
  }
  return records;
}

/** The attempts that unfinished lines had used up, of a checkpoint that decodeCheckpoint has accepted. */
export function checkpointAttempts(bytes: Uint8Array): [ordinal: number, attempts: number][] {
  const { attempts } = parse<Partial<CheckpointHeader>>(bytes, 0, bytes.indexOf(0x0a), 'header');
  return (attempts ?? []).filter(
    ([ordinal, used]) => Number.isSafeInteger(ordinal) && Number.isSafeInteger(used) && used > 0,
  );
}

const refused = (what: string): BatchError => new BatchError('CorruptObject', `The checkpoint ${what}.`);

function parse<T>(bytes: Uint8Array, start: number, end: number, what: string): T {
  try {
    return JSON.parse(Buffer.from(bytes.subarray(start, end)).toString()) as T;
  } catch {
    throw refused(`has a ${what} that is not valid JSON`);
  }
}
