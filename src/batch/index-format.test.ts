import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { chatLine, indexJob } from './builders.ts';
import {
  chunkOf,
  chunksFor,
  encodeChunk,
  encodeSummary,
  linesOfShard,
  parseChunk,
  parseSummary,
  shardInChunk,
} from './index-format.ts';
import type { Shard } from './model.ts';
import { OrdinalSet } from './ordinal-set.ts';

const shard = (number: number): Shard => ({
  shard: number,
  source: 0,
  offset: number * 10,
  length: 10,
  firstOrdinal: number,
  lines: [{ line: number + 1, customId: `id-${number}\u2028\ud800` }],
});

describe('index chunks', () => {
  const shards = Array.from({ length: 64 }, (_, i) => shard(128 + i));
  const bytes = encodeChunk(shards);

  test('give back their shards, also one by one', () => {
    expect(parseChunk(bytes)).toEqual(shards);
    for (const number of [128, 150, 191]) expect(shardInChunk(bytes, number)).toEqual(shard(number));
    expect(parseChunk(new Uint8Array(bytes))).toEqual(shards);
  });

  test.each<[string, () => unknown, string]>([
    ['a cut chunk', () => parseChunk(bytes.subarray(0, -1)), 'cut in its last line'],
    [
      'a line that is no JSON',
      () => parseChunk(Buffer.from('{}x\n')),
      'Line 1 of the index chunk is not valid JSON',
    ],
    [
      'a line that is no shard',
      () => parseChunk(Buffer.from('{"shard":1}\n')),
      'Line 1 of the index chunk is not a shard',
    ],
    ['shards out of order', () => parseChunk(encodeChunk([shard(1), shard(3)])), 'shard 3 at position 1'],
    ['a shard that is not there', () => shardInChunk(encodeChunk([shard(0)]), 1), 'has no shard 1'],
    ['another chunk', () => shardInChunk(bytes, 3), 'has shard 131 in the place of 3'],
  ])('refuse %s', (_name, read, message) => {
    expect(read).toThrow(message);
  });

  test('64 shards make a chunk', () => {
    expect([0, 63, 64, 6400].map(chunkOf)).toEqual([0, 0, 1, 100]);
    expect([0, 1, 64, 65].map(chunksFor)).toEqual([0, 1, 1, 2]);
  });
});

describe('the summary', () => {
  test('is read as it was written', async () => {
    const { summary } = await indexJob({ k: `${chatLine('a')}\nnope\n` });
    expect(parseSummary(encodeSummary(summary))).toEqual(summary);
  });

  test.each([
    [
      'of another version',
      '{"formatVersion":2}',
      'The index summary has format version 2; this Tidegate reads version 1',
    ],
    ['without version', '{}', 'no format version'],
    ['that is null', 'null', 'no format version'],
    ['that is no JSON', '{', 'not valid JSON'],
    ['that lacks fields', '{"formatVersion":1,"jobUID":"u"}', 'lacks fields'],
  ])('%s is refused', (_name, text, message) => {
    expect(() => parseSummary(Buffer.from(text))).toThrow(message);
  });
});

describe('linesOfShard', () => {
  const content = Buffer.from(`\ufeff${chatLine('a')}\r\n\n \n${chatLine('b')}\nnope\n\n${chatLine('c')}`);

  test('gives the bytes of each indexed line', async () => {
    const { shards } = await indexJob({ k: content });
    const [only] = shards;
    const range = content.subarray(only!.offset, only!.offset + only!.length);
    expect(
      linesOfShard(only!, range).map(({ position, bytes }) => [position, Buffer.from(bytes).toString()]),
    ).toEqual([
      [0, chatLine('a')],
      [1, chatLine('b')],
      [2, 'nope'],
      [3, chatLine('c')],
    ]);
  });

  test.each<[string, (bytes: Buffer) => Buffer, string]>([
    ['cut', (b) => b.subarray(0, -1), 'the index names'],
    [
      'moved by one line',
      (b) => Buffer.concat([Buffer.from('\n'), b.subarray(0, -1)]),
      'where the index has none',
    ],
    ['with one line more', (b) => Buffer.concat([b, Buffer.from('\nx')]), 'where the index has none'],
    ['of blanks only', (b) => Buffer.alloc(b.length, 0x20), 'with 0 lines'],
  ])('refuses bytes that were not indexed: %s', async (_name, change, message) => {
    const { shards } = await indexJob({ k: content });
    const [only] = shards;
    const range = content.subarray(only!.offset, only!.offset + only!.length);
    expect(() => linesOfShard(only!, change(range))).toThrow(message);
  });
});

test('a set of ordinals equals a set of numbers', () => {
  const ordinal = fc.oneof(fc.nat(200_000), fc.integer({ min: 2 ** 32, max: 2 ** 32 + 9 }));
  fc.assert(
    fc.property(fc.array(ordinal), ordinal, fc.nat(100), (members, from, length) => {
      const set = new OrdinalSet();
      for (const member of members) set.add(member);
      expect(set.size).toBe(new Set(members).size);
      for (const member of members) expect(set.has(member)).toBe(true);
      expect(set.has(from)).toBe(members.includes(from));
      expect(set.hasAnyIn(from, from + length)).toBe(members.some((m) => m >= from && m < from + length));
      expect(members.every((member) => member < set.end)).toBe(true);
    }),
  );
});
