import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Framer, type Frame, type FramerOptions } from './framing.ts';

/** Frames of the bytes cut at these positions. */
function frame(bytes: Uint8Array, cuts: number[] = [], options: FramerOptions = {}): Frame[] {
  const framer = new Framer(options);
  const frames: Frame[] = [];
  let at = 0;
  for (const cut of [...cuts.map((c) => Math.min(c, bytes.length)).sort((a, b) => a - b), bytes.length]) {
    // A chunk of its own that is overwritten afterwards: nothing may point into it.
    const chunk = Uint8Array.from(bytes.subarray(at, cut));
    frames.push(...framer.push(chunk));
    chunk.fill(0x58);
    at = cut;
  }
  return [...frames, ...framer.end()];
}

const lines = (text: string | Uint8Array, options?: FramerOptions): [number, string | undefined][] =>
  frame(Buffer.from(text), [], options).map(({ line, bytes }) => [
    line,
    bytes && Buffer.from(bytes).toString(),
  ]);

describe('Framer', () => {
  test.each<[string, string, [number, string][]]>([
    [
      'keeps the physical line number across blank lines (control-layer upload)',
      'a\n\n \t\r\nb\n',
      [
        [1, 'a'],
        [4, 'b'],
      ],
    ],
    [
      'skips a blank line in the middle (run-batch)',
      'a\n\nb',
      [
        [1, 'a'],
        [3, 'b'],
      ],
    ],
    [
      'drops one BOM at the start (ragflow#19179, datasets#8241)',
      '\ufeffa\nb\n',
      [
        [1, 'a'],
        [2, 'b'],
      ],
    ],
    ['drops only one BOM', '\ufeff\ufeffa\n', [[1, '\ufeffa']]],
    [
      'keeps a BOM that is not at the start',
      'a\n\ufeffb\n',
      [
        [1, 'a'],
        [2, '\ufeffb'],
      ],
    ],
    ['takes a file of nothing but a BOM for empty', '\ufeff', []],
    ['skips a blank line behind a BOM', '\ufeff\na', [[2, 'a']]],
    [
      'drops a trailing CR',
      'a\r\nb\r\n',
      [
        [1, 'a'],
        [2, 'b'],
      ],
    ],
    ['drops one trailing CR only', 'a\r\r\n', [[1, 'a\r']]],
    ['keeps a CR inside a line', 'a\rb\n', [[1, 'a\rb']]],
    ['drops a trailing CR of a last line without line break', 'a\r', [[1, 'a']]],
    [
      'takes a last line without line break',
      'a\nb',
      [
        [1, 'a'],
        [2, 'b'],
      ],
    ],
    ['takes an empty file for no lines', '', []],
    ['takes a file of blank lines for no lines', '\n \n\r\n\t', []],
    [
      'does not cut at U+2028, U+2029 and NEL (birdclaw#61, node#62785, OpenViking#3984, gluonts#920)',
      '"x\u2028y\u2029z\u0085"\n"b"\n',
      [
        [1, '"x\u2028y\u2029z\u0085"'],
        [2, '"b"'],
      ],
    ],
    ['does not cut at VT, FF and CR', 'a\vb\fc\rd\n', [[1, 'a\vb\fc\rd']]],
    ['ends with an empty line (batch-gateway R31)', 'a\n\n', [[1, 'a']]],
  ])('%s', (_name, text, expected) => {
    expect(lines(text)).toEqual(expected);
  });

  test('offsets and lengths name the bytes of each line with its line break', () => {
    const bytes = Buffer.from('\ufeffa\r\n\nbc\nd');
    const frames = frame(bytes);
    expect(frames.map(({ offset, length }) => [offset, length])).toEqual([
      [3, 3],
      [7, 3],
      [10, 1],
    ]);
    expect(bytes.subarray(7, 10).toString()).toBe('bc\n');
  });

  test('counts blank lines and bytes', () => {
    const framer = new Framer();
    framer.push(Buffer.from('\ufeffa\n\n  \nb'));
    expect(framer.end()).toHaveLength(1);
    expect(framer.blankLines).toBe(2);
    expect(framer.bytes).toBe(3 + 2 + 1 + 3 + 1);
  });

  test('keeps a BOM when the stream does not start at the beginning of an object', () => {
    expect(lines('\ufeffa\n', { startsObject: false })).toEqual([[1, '\ufeffa']]);
  });

  test.each([1, 2])('the first %d bytes of a BOM alone are the bytes of a line', (count) => {
    const bytes = Buffer.from('\ufeff').subarray(0, count);
    expect(frame(bytes).map((f) => [...f.bytes!])).toEqual([[...bytes]]);
    expect(frame(Buffer.concat([bytes, Buffer.from('\n')]), [1, 2]).map((f) => [...f.bytes!])).toEqual([
      [...bytes],
    ]);
  });

  describe('at the limit of a line', () => {
    const limit = { maxLineBytes: 8 };
    const short = 'x'.repeat(8);
    const long = 'x'.repeat(9);

    test.each<[string, string, [number, string | undefined][]]>([
      ['keeps a line of exactly the limit', `${short}\n`, [[1, short]]],
      ['does not count the CR of the line break', `${short}\r\n`, [[1, short]]],
      [
        'reports a longer line and goes on',
        `a\n${long}\nb\n`,
        [
          [1, 'a'],
          [2, undefined],
          [3, 'b'],
        ],
      ],
      ['reports a longer last line without line break', long, [[1, undefined]]],
      ['skips a longer line that is blank', `${' '.repeat(50)}\nb\n`, [[2, 'b']]],
      ['counts a CR that is not at the end', `\r${short}\n`, [[1, undefined]]],
    ])('%s', (_name, text, expected) => {
      expect(lines(text, limit)).toEqual(expected);
      expect(frame(Buffer.from(text), [1, 2, 3, 5, 8, 9, 10, 11], limit)).toEqual(
        frame(Buffer.from(text), [], limit),
      );
    });

    test('keeps only the limit of a line without end', () => {
      const framer = new Framer({ maxLineBytes: 1024 });
      const chunk = Buffer.alloc(64 * 1024, 0x61);
      const before = process.memoryUsage().arrayBuffers;
      for (let i = 0; i < 4096; i++) expect(framer.push(chunk)).toEqual([]);
      expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16 * 1024 * 1024);
      const [frame] = framer.push(Buffer.from('\n'));
      expect(frame).toEqual({ line: 1, offset: 0, length: 4096 * 64 * 1024 + 1, bytes: undefined });
    });
  });

  test('joins a line that comes in many small chunks without reading it again and again', () => {
    const framer = new Framer();
    const bytes = Buffer.alloc(4 * 1024 * 1024, 0x61);
    for (let at = 0; at < bytes.length; at += 64) framer.push(bytes.subarray(at, at + 64));
    const [last] = framer.end();
    expect(Buffer.compare(last!.bytes!, bytes)).toBe(0);
  });

  const nearLines = fc
    .array(
      fc.constantFrom(
        ...['a', 'bc', '\n', '\n', '\r\n', '\r', ' ', '\t', '\ufeff', '\u2028', 'xxxxxxxx', '\u0000'],
      ),
      { maxLength: 40 },
    )
    .map((parts) => Buffer.from(parts.join('')));

  test('frames do not depend on how the bytes are cut into chunks', () => {
    fc.assert(
      fc.property(
        fc.oneof(nearLines, fc.uint8Array({ maxLength: 60 })),
        fc.array(fc.nat(80), { maxLength: 12 }),
        (bytes, cuts) => {
          const options = { maxLineBytes: 6 };
          expect(frame(bytes, cuts, options)).toEqual(frame(bytes, [], options));
        },
      ),
      { numRuns: 2000 },
    );
  });

  test('any bytes: lines are what a split at LF gives, and blank and non-blank ones add up', () => {
    fc.assert(
      fc.property(fc.oneof(nearLines, fc.uint8Array({ maxLength: 60 })), (bytes) => {
        const latin1 = Buffer.from(bytes)
          .toString('latin1')
          .replace(/^\u00ef\u00bb\u00bf/, '');
        const physical = latin1.split('\n');
        if (physical.at(-1) === '') physical.pop();
        const expected = physical
          .map((text, index): [number, string] => [index + 1, text.replace(/\r$/, '')])
          .filter(([, text]) => /[^\t\n\v\f\r ]/.test(text));
        const framer = new Framer();
        const frames = [...framer.push(bytes), ...framer.end()];
        expect(frames.map((f) => [f.line, Buffer.from(f.bytes!).toString('latin1')])).toEqual(expected);
        expect(frames.length + framer.blankLines).toBe(physical.length);
        expect(framer.bytes).toBe(bytes.length);
      }),
      { numRuns: 2000 },
    );
  });
});
