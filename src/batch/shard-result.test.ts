import { createHash } from 'node:crypto';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { checkpointCases, RECORDS, SHARD, UID } from './record-builders.ts';
import { decodeCheckpoint, encodeCheckpoint } from './checkpoint.ts';
import { tally } from './counts.ts';
import { crc32 } from './crc.ts';
import { FORMAT_VERSION } from './model.ts';
import { neverRanRecord, unfinishedRecord, type LineIdentity } from './records.ts';
import {
  composeShardResult,
  parseShardResultHeader,
  readShardResult,
  segmentRanges,
  SHARD_HEADER_READ_BYTES,
  verifySegment,
} from './shard-result.ts';

const WRITER = { jobUID: UID, writer: 'worker-1' };
const compose = (records = RECORDS) => composeShardResult(WRITER, SHARD, records);
const object = (): Buffer => Buffer.concat(compose().parts);

describe('a shard result', () => {
  test('holds results and errors in input order, whatever the order of the records', () => {
    const { header, parts, bytes } = compose([...RECORDS].reverse());
    const read = readShardResult(Buffer.concat(parts), { jobUID: UID, shard: SHARD.shard });
    const ids = (segment: Uint8Array): string[] =>
      Buffer.from(segment)
        .toString()
        .trimEnd()
        .split('\n')
        .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);
    expect(ids(read.results)).toEqual(['id-0', 'id-2']);
    expect(ids(read.errors)).toEqual(['id-1', 'id-3', 'id-4']);
    expect(header).toMatchObject({
      formatVersion: FORMAT_VERSION,
      jobUID: UID,
      shard: SHARD.shard,
      writer: 'worker-1',
      ...tally(RECORDS),
      results: { lines: 2, bytes: read.results.length, crc32: crc32(read.results) },
      errors: { lines: 3, bytes: read.errors.length },
    });
    expect(header.errors.sha256).toBe(createHash('sha256').update(read.errors).digest('hex'));
    expect(bytes).toBe(Buffer.concat(parts).length);
  });

  test('shows failed lines, not those that merely did not get to run', () => {
    expect(compose().header.recentErrors).toEqual([
      { line: 12, customID: 'id-1', code: 'context_length_exceeded', message: 'too long' },
    ]);
  });

  test('without records has no bytes in either segment', () => {
    const { header } = composeShardResult(WRITER, { ...SHARD, lines: [] }, []);
    expect([header.results.bytes, header.errors.bytes, header.results.crc32]).toEqual([0, 0, 0]);
  });

  test('is refused unless there is exactly one record for each line (vllm#1655)', () => {
    expect(() => compose(RECORDS.slice(1))).toThrow('no record for line 11');
    expect(() => compose([...RECORDS, RECORDS[2]!])).toThrow('two records with ordinal 102');
    expect(() => compose([...RECORDS, { ...RECORDS[0]!, ordinal: 105 }])).toThrow('no line with ordinal 105');
    expect(() => compose([...RECORDS, { ...RECORDS[0]!, ordinal: 99 }])).toThrow('no line with ordinal 99');
  });

  test('lines that a failed job never ran do not push its real errors out of the header', () => {
    const identity = (ordinal: number): LineIdentity => ({
      ...{ jobUID: UID, ordinal, line: ordinal + 1, customId: null },
    });
    const lines = [
      { line: 1, customId: null },
      { line: 2, customId: null },
    ];
    const { header } = composeShardResult(WRITER, { shard: 0, firstOrdinal: 0, lines }, [
      neverRanRecord(identity(0), 'k', 'failed', { code: 'invalid_type', message: 'why', param: null }),
      unfinishedRecord(identity(1), 'k', { kind: 'Failed', reason: 'InvalidInput', message: 'line 1' }),
    ]);
    expect(header.counts.failed).toBe(2);
    expect(header.recentErrors.map(({ line }) => line)).toEqual([1]);
  });

  test('a header always fits in the bytes one reads for it, whatever ids and messages it quotes', () => {
    const lines = Array.from({ length: 250 }, (_, i) => ({
      line: i + 1,
      customId: '\u0001"\u2028'.repeat(600),
    }));
    const records = lines.map(({ line, customId }, i) => {
      const identity: LineIdentity = { jobUID: UID, ordinal: i, line, customId };
      const error = { code: 'request_failed', message: '\u0001'.repeat(2000), param: null };
      return neverRanRecord(identity, 'k', 'failed', error);
    });
    const { parts } = composeShardResult(WRITER, { shard: 0, firstOrdinal: 0, lines }, records);
    expect(parts[0]!.length).toBeLessThan(SHARD_HEADER_READ_BYTES);
  });

  test('its header is read from the beginning of the object; too few bytes are no error', () => {
    const bytes = object();
    const { header, headerBytes } = parseShardResultHeader(bytes)!;
    expect(header).toEqual(compose().header);
    expect(parseShardResultHeader(bytes.subarray(0, headerBytes - 1))).toBeUndefined();
    expect(parseShardResultHeader(bytes.subarray(0, headerBytes))).toEqual({ header, headerBytes });
    const { results, errors } = segmentRanges(header, headerBytes);
    expect([results.start, results.end, errors.end]).toEqual([headerBytes, errors.start, bytes.length]);
  });

  test.each<[string, (bytes: Buffer) => Uint8Array, string]>([
    [
      'of another version',
      (b) => replaced(b, '"formatVersion":1', '"formatVersion":2'),
      'format version 2; this Tidegate reads version 1',
    ],
    ['without version', (b) => replaced(b, '"formatVersion":1,', ''), 'no format version'],
    ['whose header is no JSON', (b) => replaced(b, '{', '('), 'not valid JSON'],
    ['whose header is null', () => Buffer.from('null\n'), 'no format version'],
    ['whose header lacks fields', (b) => replaced(b, '"writer"', '"w"'), 'lacks fields'],
    ['without header line', () => Buffer.alloc(SHARD_HEADER_READ_BYTES, 0x20), 'no header line'],
    ['that is cut', (b) => b.subarray(0, -1), 'its header says'],
    ['that is too long', (b) => Buffer.concat([b, Buffer.from('\n')]), 'its header says'],
    [
      'with a changed byte in results',
      (b) => replaced(b, '"custom_id":"id-2"', '"custom_id":"id-9"'),
      'results segment of shard 7 does not match',
    ],
    [
      'with a changed byte in errors',
      (b) => replaced(b, '"custom_id":"id-3"', '"custom_id":"id-9"'),
      'errors segment of shard 7 does not match',
    ],
    ['of another job', (b) => replaced(b, UID, UID.replace('0', '1')), 'not of shard 7 of job'],
    ['of another shard', (b) => replaced(b, '"shard":7', '"shard":8'), 'is of shard 8'],
  ])('%s is refused', (_name, change, message) => {
    expect(() => readShardResult(change(object()), { jobUID: UID, shard: SHARD.shard })).toThrow(message);
  });

  test('verifySegment names the segment and what differs', () => {
    const { header } = compose();
    expect(() => verifySegment(Buffer.from('x'), header.results, 'The tail')).toThrow(
      /^The tail has 1 bytes; its header says \d+/,
    );
  });
});

describe('a checkpoint', () => {
  const identity = { jobUID: UID, shard: 7, writer: 'w' };

  test('gives back the records', () => {
    expect(decodeCheckpoint(encodeCheckpoint(identity, RECORDS), identity)).toEqual(checkpointCases(RECORDS));
    expect(decodeCheckpoint(encodeCheckpoint(identity, []), identity)).toEqual([]);
  });

  test('cut anywhere is refused', () => {
    const bytes = encodeCheckpoint(identity, RECORDS);
    for (let length = 0; length < bytes.length; length++) {
      expect(() => decodeCheckpoint(bytes.subarray(0, length), identity)).toThrow('The checkpoint');
    }
  });

  test('with any byte changed or added is refused', () => {
    const bytes = encodeCheckpoint(identity, RECORDS);
    const bodyStart = bytes.indexOf(0x0a) + 1;
    fc.assert(
      fc.property(
        fc.integer({ min: bodyStart, max: bytes.length - 1 }),
        fc.integer({ min: 1, max: 255 }),
        (at, flip) => {
          const changed = Buffer.from(bytes);
          changed[at]! ^= flip;
          expect(() => decodeCheckpoint(changed, identity)).toThrow('does not match its checksum');
        },
      ),
    );
    expect(() => decodeCheckpoint(Buffer.concat([bytes, Buffer.from('\n')]), identity)).toThrow(
      'bytes of records instead of',
    );
  });

  test.each<[string, (bytes: Buffer) => Uint8Array, string]>([
    ['of another job', (b) => replaced(b, UID, UID.replace('0', '1')), 'of job 1b0b2c6e'],
    ['of another shard', (b) => replaced(b, '"shard":7', '"shard":9'), 'is of shard 9'],
    ['of another version', (b) => replaced(b, '"formatVersion":1', '"formatVersion":3'), 'format version 3'],
    ['that is empty', () => Buffer.alloc(0), 'no header line'],
    ['of zeros', () => Buffer.alloc(100), 'no header line'],
  ])('%s is refused', (_name, change, message) => {
    expect(() => decodeCheckpoint(change(encodeCheckpoint(identity, RECORDS)), identity)).toThrow(message);
  });
});

function replaced(bytes: Buffer, from: string, to: string): Buffer {
  const text = bytes.toString('latin1');
  expect(text).toContain(from);
  return Buffer.from(text.replace(from, to), 'latin1');
}
