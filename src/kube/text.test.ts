import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { truncateUtf8 } from './text.ts';

describe('truncateUtf8', () => {
  test('leaves a text that fits as it is', () => {
    expect(truncateUtf8('short', 5)).toBe('short');
  });

  test.each([
    ['between characters of one byte', 'abcdef', 5, 'ab…'],
    ['before a character that would be cut in two', 'aéé', 4, 'a…'],
    ['before a surrogate pair that would be cut in two', 'ab😀c', 6, 'ab…'],
  ])('cuts %s', (_name, text, limit, expected) => {
    expect(truncateUtf8(text, limit)).toBe(expected);
  });

  test('cuts giant texts once: a second pass changes nothing (kubevirt#17572)', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'grapheme', maxLength: 80 }),
        fc.integer({ min: 3, max: 60 }),
        (text, limit) => {
          const once = truncateUtf8(text, limit);
          expect(Buffer.byteLength(once)).toBeLessThanOrEqual(limit);
          expect(truncateUtf8(once, limit)).toBe(once);
          expect(once).not.toContain('\uFFFD');
          expect(text.startsWith(once.replace(/…$/, ''))).toBe(true);
        },
      ),
    );
  });
});
