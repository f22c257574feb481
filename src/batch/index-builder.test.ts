import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { chatLine, CHAT_RULES, inChunks, indexJob, type IndexedJob } from './builders.ts';
import { BatchError } from './errors.ts';
import { Framer } from './framing.ts';
import { keyedIdHash, type IdHash } from './id-hash.ts';
import { buildIndex } from './index-builder.ts';
import { linesOfShard } from './index-format.ts';
import type { IndexedLine } from './model.ts';
import { MemorySpill, type SpillStore } from './spill.ts';

const linesOf = (job: IndexedJob): (IndexedLine & { source: number; ordinal: number })[] =>
  job.shards.flatMap((shard) =>
    shard.lines.map((line, position) => ({
      ...line,
      source: shard.source,
      ordinal: shard.firstOrdinal + position,
    })),
  );

/** Ids of lines that may run, and of those refused as duplicates with the line and key they name. */
const verdicts = (job: IndexedJob): string[] =>
  linesOf(job).map(({ line, source, customId, error }) => {
    const first = /line (\d+) of (\S+);/.exec(error?.message ?? '');
    const verdict = first === null ? (error?.code ?? 'runs') : `duplicate of ${first[2]}:${first[1]}`;
    return `${job.summary.sources[source]!.inputKey}:${line} ${customId} ${verdict}`;
  });

const file = (...ids: string[]): string => ids.map((id) => `${chatLine(id)}\n`).join('');
const sequence = (count: number, name = 'id'): string[] =>
  Array.from({ length: count }, (_, i) => `${name}-${i}`);

/** Hashes that all collide: whatever the hash does, only the ids decide. */
const ALWAYS_COLLIDES: IdHash = (_bytes, _start, _end, out) => out.fill(7);
/** Collides in groups, over a few partitions. */
const OFTEN_COLLIDES: IdHash = (bytes, start, end, out) => {
  out[0] = bytes[end - 1]! & 3;
  out[1] = ((end - start) & 3) << 24;
};

describe('buildIndex', () => {
  test('an empty input has no lines, no shards and no chunks', async () => {
    for (const content of ['', '\n\n', '\ufeff', ' \r\n\t']) {
      const { summary, shards, writes } = await indexJob({ a: content });
      expect(summary).toMatchObject({ total: 0, invalid: 0, shards: 0, firstInvalid: [] });
      expect(summary.bytes).toBe(Buffer.byteLength(content));
      expect([shards, writes]).toEqual([[], []]);
    }
  });

  test('keeps line numbers, ids and errors of every line', async () => {
    const content = `\ufeff${chatLine('a')}\r\n\n${chatLine('b', { method: 'GET' })}\nnope\n${chatLine('c')}`;
    const job = await indexJob({ 'in/part-1.jsonl': content });
    expect(verdicts(job)).toEqual([
      'in/part-1.jsonl:1 a runs',
      'in/part-1.jsonl:3 b invalid_method',
      'in/part-1.jsonl:4 null invalid_json_line',
      'in/part-1.jsonl:5 c runs',
    ]);
    expect(job.summary).toMatchObject({ total: 4, invalid: 2, shards: 1 });
    expect(job.summary.firstInvalid).toMatchObject([
      { key: 'in/part-1.jsonl', line: 3, customId: 'b', error: { code: 'invalid_method' } },
      { key: 'in/part-1.jsonl', line: 4, customId: null, error: { code: 'invalid_json_line' } },
    ]);
  });

  test('one bad line of many is named and all others run (batch-gateway R32)', async () => {
    const ids = sequence(2000);
    const job = await indexJob({ a: file(...ids.slice(0, 1234)) + 'bad\n' + file(...ids.slice(1234)) });
    expect(job.summary).toMatchObject({ total: 2001, invalid: 1, firstInvalid: [{ line: 1235 }] });
    expect(linesOf(job).filter(({ error }) => error === undefined)).toHaveLength(2000);
  });

  test('names the first ten invalid lines, of whatever kind, in input order', async () => {
    const content = file('a', 'a') + 'x\n'.repeat(4) + file('a') + 'x\n'.repeat(20) + file('a');
    const { summary } = await indexJob({ k: content });
    expect(summary.invalid).toBe(27);
    expect(summary.firstInvalid.map(({ line }) => line)).toEqual([2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    expect(summary.firstInvalid.map(({ error }) => error.code)).toEqual([
      'duplicate_custom_id',
      ...Array<string>(4).fill('invalid_json_line'),
      'duplicate_custom_id',
      ...Array<string>(4).fill('invalid_json_line'),
    ]);
  });

  test('a line over the limit gets its error without being kept, and the next ones run', async () => {
    const content = `${chatLine('a')}\n${chatLine('b', { pad: 'x'.repeat(5000) })}\n${chatLine('c')}\n`;
    const job = await indexJob({ k: content }, { limits: { maxLineBytes: 1000 }, chunkBytes: 64 });
    expect(verdicts(job)).toEqual(['k:1 a runs', 'k:2 null line_too_large', 'k:3 c runs']);
    expect(linesOf(job)[1]!.error!.message).toMatch(/has 5\d\d\d bytes; at most 1000 bytes/);
  });

  test('finds invalid UTF-8 in any line of a chunk, also where a character is cut between chunks', async () => {
    const bad = Buffer.from(chatLine('bad').replace('hi', '\u00ff'), 'latin1');
    const good = Buffer.from(chatLine('good').replace('hi', '🌊é€'));
    for (const [order, expected] of [
      [
        [bad, good],
        ['bad', 'good'],
      ],
      [
        [good, bad],
        ['good', 'bad'],
      ],
    ] as const) {
      const content = Buffer.concat(order.flatMap((line) => [line, Buffer.from('\n')]));
      for (const chunkBytes of [1, 2, 3, 50, 139, 140, 141, 142, 100_000]) {
        const job = await indexJob({ k: content }, { chunkBytes });
        expect(linesOf(job).map(({ customId }) => customId)).toEqual(expected);
        expect(linesOf(job).map(({ error }) => error?.code)).toEqual(
          expected.map((id) => (id === 'bad' ? 'invalid_json_line' : undefined)),
        );
      }
    }
  });

  test('rejects with what the input, the chunk store or the spill store reject with', async () => {
    const full: SpillStore = {
      append: () => Promise.reject(new BatchError('DiskFull', 'no room')),
      read: async function* () {},
      close: () => Promise.resolve(),
    };
    const twice = file('a', 'a');
    await expect(indexJob({ k: twice }, { spill: full })).rejects.toThrow(
      new BatchError('DiskFull', 'no room'),
    );
    const many = file(...sequence(500));
    await expect(
      indexJob({ k: many }, { writeChunk: () => Promise.reject(new Error('store is gone')) }),
    ).rejects.toThrow('store is gone');
    const sources = [
      {
        inputKey: 'k',
        chunks: (async function* () {
          yield Buffer.from(many);
          throw new Error('connection lost');
        })(),
        describe: () => Promise.reject(new Error('never asked')),
      },
    ];
    await expect(indexJob({}, { sources })).rejects.toThrow('connection lost');
  });

  test('stops at the next chunk when its signal aborts, and closes the input', async () => {
    const stop = new AbortController();
    let closed = false;
    const sources = [
      {
        inputKey: 'k',
        chunks: (async function* () {
          try {
            for (;;) {
              yield Buffer.from(file('a'));
              stop.abort(new Error('job is gone'));
            }
          } finally {
            closed = true;
          }
        })(),
        describe: () => Promise.reject(new Error('never asked')),
      },
    ];
    await expect(indexJob({}, { sources, signal: stop.signal })).rejects.toThrow('job is gone');
    expect(closed).toBe(true);
  });

  test('reports progress and asks each source once, after its bytes', async () => {
    const seen: number[] = [];
    const described: number[] = [];
    await buildIndex({
      jobUID: 'u',
      rules: CHAT_RULES,
      spill: new MemorySpill(),
      hashKey: new Uint8Array(8),
      sources: (async function* () {
        for (const key of ['a', 'b']) {
          yield {
            inputKey: key,
            chunks: inChunks(Buffer.from(file(key)), 50),
            describe: async (bytes: number) => {
              described.push(bytes);
              return { bucket: 'b', key, etag: 'e', bytes, inputKey: key, inputEtag: 'e' };
            },
          };
        }
      })(),
      writeChunk: async () => undefined,
      readChunk: async () => Buffer.alloc(0),
      onProgress: ({ bytes }) => seen.push(bytes),
    });
    const size = Buffer.byteLength(file('a'));
    expect(described).toEqual([size, size]);
    expect(seen.at(-1)).toBe(2 * size);
  });
});

describe('shards', () => {
  test('end after 250 lines', async () => {
    const { shards } = await indexJob({ k: file(...sequence(501)) });
    expect(shards.map(({ lines, firstOrdinal }) => [firstOrdinal, lines.length])).toEqual([
      [0, 250],
      [250, 250],
      [500, 1],
    ]);
  });

  test('end before they would be longer than the limit; a longer line stands alone', async () => {
    const big = chatLine('big', { pad: 'x'.repeat(1000) });
    const content = `${file('a', 'b')}${big}\n${file('c', 'd', 'e')}`;
    const small = Buffer.byteLength(file('a'));
    const { shards } = await indexJob(
      { k: content },
      { limits: { shard: { maxLines: 250, maxBytes: 2 * small } } },
    );
    expect(shards.map(({ lines }) => lines.map(({ customId }) => customId))).toEqual([
      ['a', 'b'],
      ['big'],
      ['c', 'd'],
      ['e'],
    ]);
  });

  test('never span sources, and are numbered over the whole job', async () => {
    const { shards, summary } = await indexJob({
      'a.jsonl': file('a', 'b'),
      empty: '',
      'b.jsonl': file('c'),
    });
    expect(
      shards.map(({ shard, source, offset, firstOrdinal }) => [shard, source, offset, firstOrdinal]),
    ).toEqual([
      [0, 0, 0, 0],
      [1, 2, 0, 2],
    ]);
    expect(summary.sources.map(({ inputKey }) => inputKey)).toEqual(['a.jsonl', 'empty', 'b.jsonl']);
  });

  test('leave long stretches of blank lines out of their ranges', async () => {
    const blank = '\n'.repeat(5000);
    const content = `${blank}${file('a')}${blank}${file('b')}${blank}`;
    const { shards } = await indexJob({ k: content }, { limits: { shard: { maxLines: 9, maxBytes: 1000 } } });
    expect(shards.map(({ offset, length }) => [offset, length])).toEqual([
      [5000, file('a').length],
      [10_000 + file('a').length, file('b').length],
    ]);
    expect(shards.map(({ lines }) => lines[0]!.line)).toEqual([5001, 10_002]);
  });

  test('64 make a chunk', async () => {
    const { shards, writes } = await indexJob(
      { k: file(...sequence(129)) },
      { limits: { shard: { maxLines: 1, maxBytes: 1e6 } } },
    );
    expect(shards).toHaveLength(129);
    expect(writes).toEqual([0, 1, 2]);
  });

  const piece = fc.oneof(
    fc.constantFrom('\n', '\r\n', '  \n', 'nope\n', '\u2028\n', '{}\n', '\ufeff'),
    fc.constantFrom('a', 'b', 'c', 'é', '\\u0061').map((id) => `${chatLine('ID').replace('ID', id)}\n`),
    fc.constantFrom('x', 'y').map((id) => chatLine(id)),
  );
  const inputs = fc.array(
    fc.array(piece, { maxLength: 12 }).map((parts) => parts.join('')),
    { maxLength: 4 },
  );
  const limits = fc.record({
    maxLines: fc.integer({ min: 1, max: 4 }),
    maxBytes: fc.integer({ min: 1, max: 600 }),
  });

  test('every line in gives exactly one indexed line, whatever the cut, and shards cover them and nothing else', async () => {
    await fc.assert(
      fc.asyncProperty(
        inputs,
        limits,
        fc.integer({ min: 1, max: 300 }),
        async (contents, shard, chunkBytes) => {
          const keyed = Object.fromEntries(contents.map((content, i) => [`k${i}`, content]));
          const job = await indexJob(keyed, { limits: { shard }, chunkBytes });
          const expected = contents.flatMap((content, source) => {
            const framer = new Framer();
            return [...framer.push(Buffer.from(content)), ...framer.end()].map((frame) => ({
              source,
              ...frame,
            }));
          });
          const indexed = linesOf(job);
          expect(indexed.map(({ source, line }) => [source, line])).toEqual(
            expected.map(({ source, line }) => [source, line]),
          );
          expect(indexed.map(({ ordinal }) => ordinal)).toEqual(indexed.map((_, i) => i));
          expect(job.summary.total).toBe(expected.length);
          expect(job.summary.invalid).toBe(indexed.filter(({ error }) => error !== undefined).length);

          const read = job.shards.flatMap((s) => {
            const source = Buffer.from(contents[s.source]!);
            return linesOfShard(s, source.subarray(s.offset, s.offset + s.length)).map(({ bytes }) =>
              Buffer.from(bytes).toString(),
            );
          });
          expect(read).toEqual(expected.map(({ bytes }) => Buffer.from(bytes!).toString()));
          for (const s of job.shards) {
            expect(s.lines.length).toBeLessThanOrEqual(shard.maxLines);
            expect(s.length <= shard.maxBytes || s.lines.length === 1).toBe(true);
          }
        },
      ),
      { numRuns: 300 },
    );
  });
});

describe('custom_id is unique over the whole job', () => {
  test.each<[string, IdHash | undefined]>([
    ['by the keyed hash', undefined],
    ['by a hash that always collides', ALWAYS_COLLIDES],
    ['by a hash that often collides', OFTEN_COLLIDES],
  ])('%s: the first runs, later ones name it (sglang#1415, llm-d-batch-gateway#147)', async (_name, hash) => {
    const job = await indexJob({ k1: file('a', 'b', 'a'), k2: `\n${file('b', 'c', 'a')}` }, { hash });
    expect(verdicts(job)).toEqual([
      'k1:1 a runs',
      'k1:2 b runs',
      'k1:3 a duplicate of k1:1',
      'k2:2 b duplicate of k1:2',
      'k2:3 c runs',
      'k2:4 a duplicate of k1:1',
    ]);
    expect(job.summary.invalid).toBe(3);
  });

  test('spellings of one id are equal, ids that only look alike are not', async () => {
    const ids = [
      'é',
      '\\u00e9',
      'e\\u0301',
      '\\ud800',
      '\\ud801',
      '\\ufffd',
      '\\uD800',
      'a/b',
      'a\\/b',
      'A',
      'a',
      '1',
      ' 1',
    ];
    const content = ids.map((id) => `${chatLine('ID').replace('ID', id)}\n`).join('');
    for (const hash of [undefined, ALWAYS_COLLIDES]) {
      const duplicates = verdicts(await indexJob({ k: content }, { hash })).filter((v) =>
        v.includes('duplicate'),
      );
      expect(duplicates.map((v) => v.replace(/^k:(\d+) .* (duplicate.*)$/, '$1 $2'))).toEqual([
        '2 duplicate of k:1',
        '7 duplicate of k:4',
        '9 duplicate of k:8',
      ]);
    }
  });

  test('an id used by a line that cannot run is taken, and that line keeps its own error', async () => {
    const job = await indexJob({
      k: `${chatLine('a', { method: 'GET' })}\n${file('a')}${chatLine('a', { url: '' })}\n`,
    });
    expect(verdicts(job)).toEqual(['k:1 a invalid_method', 'k:2 a duplicate of k:1', 'k:3 a invalid_url']);
    expect(job.summary.invalid).toBe(3);
  });

  test('lines without an id are no duplicates of each other', async () => {
    const job = await indexJob({ k: '{}\nnope\n{}\n' }, { hash: ALWAYS_COLLIDES });
    expect(verdicts(job)).toEqual([
      'k:1 null missing_required_parameter',
      'k:2 null invalid_json_line',
      'k:3 null missing_required_parameter',
    ]);
  });

  test('one id on every line leaves one line to run', async () => {
    const job = await indexJob({ k: file(...Array<string>(3000).fill('same')) });
    expect(job.summary).toMatchObject({ total: 3000, invalid: 2999 });
    expect(
      linesOf(job)
        .filter(({ error }) => error === undefined)
        .map(({ line }) => line),
    ).toEqual([1]);
  });

  test('a file given twice: each line of the second is a duplicate, and each chunk is rewritten once at most', async () => {
    const content = file(...sequence(20_000));
    const { summary, shards, writes } = await indexJob({ k1: content, k2: content });
    expect(summary).toMatchObject({ total: 40_000, invalid: 20_000 });
    expect(
      shards.every(({ source, lines }) =>
        lines.every(({ error }) => (error !== undefined) === (source === 1)),
      ),
    ).toBe(true);
    expect(shards.at(-1)!.lines.at(-1)!.error!.message).toContain('line 20000 of k1');
    expect(Math.max(...countBy(writes))).toBe(2);
    expect(writes).toHaveLength(3 + 2);
  });

  test('spilled hashes: two duplicates among 40,000 lines are found, and only the chunks with an equal hash are read', async () => {
    const ids = sequence(40_000);
    ids[30_000] = 'id-3';
    ids[39_999] = 'id-20000';
    const keyed = keyedIdHash(Uint8Array.from([8, 7, 6, 5, 4, 3, 2, 1]));
    const chunks = new Map<number, Uint8Array>();
    const reads: number[] = [];
    const spill = new MemorySpill();
    const { summary } = await indexJob(
      { k: file(...ids) },
      {
        spill,
        // All in one partition, so that its buffer overflows.
        hash: (bytes, start, end, out) => {
          keyed(bytes, start, end, out);
          out[1]! &= 0xffffff;
        },
        limits: { shard: { maxLines: 50, maxBytes: 1e6 } },
        writeChunk: async (chunk, bytes) => void chunks.set(chunk, bytes),
        readChunk: async (chunk) => {
          reads.push(chunk);
          return chunks.get(chunk)!;
        },
      },
    );
    expect(summary).toMatchObject({ total: 40_000, invalid: 2 });
    expect(summary.firstInvalid.map(({ line, error }) => [line, error.code])).toEqual([
      [30_001, 'duplicate_custom_id'],
      [40_000, 'duplicate_custom_id'],
    ]);
    let spilled = 0;
    for await (const bytes of spill.read('hash-0')) spilled += bytes.length;
    expect(spilled).toBeGreaterThan(30_000 * 16);
    const chunkOfLine = (line: number): number => Math.floor(line / (64 * 50));
    expect(new Set(reads)).toEqual(new Set([3, 20_000, 30_000, 39_999].map(chunkOfLine)));
  });

  test('equals what a map of ids says, whatever the hash, the chunks and the spelling', async () => {
    const ids = fc.array(fc.constantFrom('a', 'b', 'c', 'd', '\\u0061', 'é', '\\u00e9', 'x'.repeat(100)), {
      maxLength: 40,
    });
    const hash = fc.constantFrom(undefined, ALWAYS_COLLIDES, OFTEN_COLLIDES);
    const shard = fc.record({ maxLines: fc.integer({ min: 1, max: 5 }), maxBytes: fc.constant(1e6) });
    await fc.assert(
      fc.asyncProperty(fc.array(ids, { maxLength: 3 }), hash, shard, async (files, hash, shard) => {
        const keyed = Object.fromEntries(
          files.map((ids, i) => [`k${i}`, ids.map((id) => `${chatLine('ID').replace('ID', id)}\n`).join('')]),
        );
        const job = await indexJob(keyed, { hash, limits: { shard } });
        const first = new Map<string, string>();
        const expected = files.flatMap((ids, i) =>
          ids.map((spelled, n) => {
            const id = JSON.parse(`"${spelled}"`) as string;
            const here = `k${i}:${n + 1}`;
            const before = first.get(id);
            if (before === undefined) first.set(id, here);
            return `${here} ${id} ${before === undefined ? 'runs' : `duplicate of ${before}`}`;
          }),
        );
        expect(verdicts(job)).toEqual(expected);
      }),
      { numRuns: 300 },
    );
  });
});

const countBy = (values: number[]): number[] => {
  const counts = new Map<number, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts.values()];
};
