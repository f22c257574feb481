import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { LineFramer } from './line-framer.ts';

describe('LineFramer', () => {
  test('puts lines together again however the bytes were cut, in order, whatever they hold', () => {
    const text = fc.oneof(
      fc.string({ unit: 'grapheme', maxLength: 20 }),
      fc.constantFrom('a\u2028b', 'é', '\r', '', '😀'),
    );
    fc.assert(
      fc.property(
        fc.array(text.map((line) => line.replaceAll('\n', ' '))),
        fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1 }),
        fc.boolean(),
        (lines, cuts, torn) => {
          const bytes = Buffer.from(lines.map((line) => `${line}\n`).join('') + (torn ? 'half' : ''));
          const framer = new LineFramer();
          const found: string[] = [];
          for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
            const length = cuts[turn % cuts.length] ?? 1;
            // A chunk is copied, as a socket reuses its buffers.
            found.push(...framer.push(Buffer.from(bytes.subarray(at, at + length))).map(String));
            at += length;
          }
          expect(found).toEqual(lines.filter((line) => line !== ''));
          expect(framer.isTorn).toBe(torn);
        },
      ),
    );
  });

  test('refuses a line that never ends', () => {
    const framer = new LineFramer();
    const chunk = new Uint8Array(32 * 1024 * 1024).fill(0x20);
    framer.push(chunk);
    framer.push(chunk);
    expect(() => framer.push(new Uint8Array(1))).toThrow('a line of more than');
  });
});
