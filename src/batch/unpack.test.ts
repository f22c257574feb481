import { gzipSync, zstdCompressSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { inChunks } from './builders.ts';
import { BatchError } from './errors.ts';
import {
  detectCompression,
  unpack,
  UnpackBudget,
  type DeclaredCompression,
  type UnpackLimits,
} from './unpack.ts';

const KEY = 'in/part-2.jsonl.gz';

async function unpacked(
  bytes: Uint8Array,
  options: { declared?: DeclaredCompression; limits?: Partial<UnpackLimits>; sizes?: number[] } = {},
): Promise<string> {
  const budget = new UnpackBudget({
    maxUnpackedBytes: 1e9,
    maxRatio: 200,
    ratioFromBytes: 1e8,
    ...options.limits,
  });
  const { chunks } = await unpack(inChunks(bytes, ...(options.sizes ?? [1000])), {
    key: KEY,
    declared: options.declared ?? 'Auto',
    budget,
  });
  const parts: Uint8Array[] = [];
  for await (const chunk of chunks) parts.push(new Uint8Array(chunk));
  return Buffer.concat(parts).toString('latin1');
}

const skippable = Buffer.from([0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);

describe('unpack', () => {
  const gzip = (...texts: string[]): Buffer => Buffer.concat(texts.map((text) => gzipSync(text)));
  const zstd = (...texts: string[]): Buffer => Buffer.concat(texts.map((text) => zstdCompressSync(text)));

  test.each<[string, Buffer, string]>([
    ['plain bytes', Buffer.from('{"a":1}\n'), '{"a":1}\n'],
    ['an empty object', Buffer.alloc(0), ''],
    ['one byte', Buffer.from('{'), '{'],
    ['one gzip member', gzip('hello\n'), 'hello\n'],
    ['all gzip members', gzip('a\n', 'b\n', '', 'c\n'), 'a\nb\nc\n'],
    ['gzip with zero padding', Buffer.concat([gzip('a\n', 'b\n'), Buffer.alloc(600)]), 'a\nb\n'],
    ['one zstd frame', zstd('hello\n'), 'hello\n'],
    ['all zstd frames', zstd('a\n', 'b\n', '', 'c\n'), 'a\nb\nc\n'],
    ['zstd behind a skippable frame', Buffer.concat([skippable, zstd('a\n')]), 'a\n'],
    ['zstd around a skippable frame', Buffer.concat([zstd('a\n'), skippable, zstd('b\n')]), 'a\nb\n'],
    [
      'a large zstd object of many frames',
      zstd(...Array<string>(50).fill('x'.repeat(100_000))),
      'x'.repeat(5_000_000),
    ],
  ])('recognises and unpacks %s, however it is cut', async (_name, bytes, expected) => {
    for (const sizes of [[1e9], [1, 1e9], [7], [64]]) {
      expect(await unpacked(bytes, { sizes })).toBe(expected);
    }
    if (bytes.length < 1000) expect(await unpacked(bytes, { sizes: [1] })).toBe(expected);
  });

  test.each<[string, Buffer, string]>([
    ['truncated gzip', gzip('hello world').subarray(0, -5), 'truncated: it ends inside a member'],
    [
      'gzip truncated in its second member',
      gzip('a', 'hello world').subarray(0, -9),
      'truncated: it ends inside a member',
    ],
    ['gzip of nothing but its magic', gzip('a').subarray(0, 2), 'truncated'],
    ['gzip with a wrong checksum', flipped(gzip('hello'), -6), 'damaged: incorrect data check'],
    [
      'garbage behind gzip',
      Buffer.concat([gzip('a'), Buffer.from('garbage!!')]),
      'damaged: incorrect header check',
    ],
    [
      'garbage behind zero padding',
      Buffer.concat([gzip('a'), Buffer.alloc(64), Buffer.from('garbage')]),
      'damaged',
    ],
    ['truncated zstd', zstd('hello world').subarray(0, -5), 'truncated: it ends inside a frame'],
    ['zstd truncated in its second frame', zstd('a', 'hello world').subarray(0, -5), 'truncated'],
    ['garbage behind zstd', Buffer.concat([zstd('a'), Buffer.from('garbage!!')]), 'damaged'],
  ])('refuses %s, naming the key, however it is cut', async (_name, bytes, message) => {
    for (const sizes of [[1e9], [1], [7], [bytes.length - 9, 1e9]]) {
      const error: unknown = await unpacked(bytes, { sizes }).catch((e: unknown) => e);
      expect(error).toBeInstanceOf(BatchError);
      expect(error).toMatchObject({ code: 'InvalidInput', message: expect.stringContaining(message) });
      expect((error as Error).message).toContain(KEY);
    }
  });

  test.each<[DeclaredCompression, Buffer, string]>([
    [
      'Gzip',
      Buffer.from('{"a":1}\n'),
      'declared as Gzip, but by its first bytes (7b 22 61 22) it is neither Gzip nor Zstd',
    ],
    ['Gzip', zstd('x'), 'declared as Gzip, but by its first bytes (28 b5 2f fd) it is Zstd'],
    ['Zstd', gzip('x'), 'is Gzip'],
    ['None', gzip('x'), 'is Gzip'],
    ['None', zstd('x'), 'is Zstd'],
  ])('refuses what is declared as %s and is not', async (declared, bytes, message) => {
    await expect(unpacked(bytes, { declared })).rejects.toMatchObject({
      code: 'InvalidInput',
      message: expect.stringContaining(message),
    });
  });

  test.each<[DeclaredCompression, Buffer]>([
    ['Gzip', gzip('x')],
    ['Zstd', zstd('x')],
    ['None', Buffer.from('x')],
  ])('takes what is declared as %s and is', async (declared, bytes) => {
    expect(await unpacked(bytes, { declared })).toBe('x');
  });

  test.each(['Gzip', 'Zstd', 'None'] as const)('takes an empty object declared as %s', async (declared) => {
    expect(await unpacked(Buffer.alloc(0), { declared })).toBe('');
  });

  test('stops a bomb by its ratio, once past the free size, naming the limit (qontract-reconcile#5747)', async () => {
    const bomb = gzip('\0'.repeat(3_000_000));
    const limits = { maxRatio: 200, ratioFromBytes: 1_000_000 };
    await expect(unpacked(bomb, { limits })).rejects.toMatchObject({
      code: 'LimitExceeded',
      message: expect.stringMatching(/part-2.*more than 200 times as many; past 1000000 bytes/),
    });
    expect(await unpacked(bomb, { limits: { ...limits, ratioFromBytes: 3_000_000 } })).toHaveLength(
      3_000_000,
    );
    await expect(unpacked(zstd('\0'.repeat(3_000_000)), { limits })).rejects.toMatchObject({
      code: 'LimitExceeded',
    });
  });

  test('stops at the unpacked bytes of the whole job, over all its objects', async () => {
    const budget = new UnpackBudget({ maxUnpackedBytes: 1500, maxRatio: 200, ratioFromBytes: 1e8 });
    const read = async (): Promise<void> => {
      const { chunks } = await unpack(inChunks(gzip('x'.repeat(1000))), {
        key: KEY,
        declared: 'Auto',
        budget,
      });
      for await (const chunk of chunks) expect(chunk.length).toBeGreaterThan(0);
    };
    await read();
    await expect(read()).rejects.toMatchObject({
      code: 'LimitExceeded',
      message: expect.stringContaining('1500 bytes'),
    });
  });

  test('passes on the error of its input, and closes it when the reader stops', async () => {
    const broken = async function* (): AsyncGenerator<Uint8Array> {
      yield gzip('x'.repeat(100)).subarray(0, 20);
      throw new Error('connection lost');
    };
    const options = { key: KEY, declared: 'Auto' as const, budget: new UnpackBudget() };
    const failing = await unpack(broken(), options);
    await expect(
      (async () => {
        for await (const chunk of failing.chunks) expect(chunk).toBeDefined();
      })(),
    ).rejects.toThrow('connection lost');

    let closed = false;
    const endless = async function* (): AsyncGenerator<Uint8Array> {
      try {
        for (;;) yield gzip('y'.repeat(100_000));
      } finally {
        closed = true;
      }
    };
    const { chunks } = await unpack(endless(), options);
    for await (const chunk of chunks) {
      expect(chunk[0]).toBe(0x79);
      break;
    }
    expect(closed).toBe(true);
  });

  test('unpacks what was packed, whatever the members, the frames and the chunks', async () => {
    const part = fc.uint8Array({ maxLength: 200 });
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(gzipSync, zstdCompressSync),
        fc.array(part, { minLength: 1, maxLength: 5 }),
        fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1, maxLength: 6 }),
        async (pack, parts, sizes) => {
          const packed = Buffer.concat(parts.map((bytes) => pack(bytes)));
          expect(await unpacked(packed, { sizes })).toBe(Buffer.concat(parts).toString('latin1'));
        },
      ),
      { numRuns: 100 },
    );
  });

  test('whatever is cut off packed input, the error is InvalidInput or only whole members come out', async () => {
    const packed = { gzip: gzip('first\n', 'second\n'), zstd: zstd('first\n', 'second\n') };
    for (const bytes of Object.values(packed)) {
      for (let length = 4; length < bytes.length; length++) {
        const result = await unpacked(bytes.subarray(0, length), { sizes: [5] }).catch((e: unknown) => e);
        if (typeof result === 'string') expect(result).toBe('first\n');
        else expect(result).toMatchObject({ code: 'InvalidInput' });
      }
    }
  });
});

test('detectCompression goes by content and takes any bytes', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 6 }), (bytes) => {
      expect(['None', 'Gzip', 'Zstd']).toContain(detectCompression(bytes));
    }),
  );
});

function flipped(bytes: Buffer, at: number): Buffer {
  bytes[bytes.length + at]! ^= 1;
  return bytes;
}
