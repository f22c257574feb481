import { expect, test } from '@jest/globals';
import { keyedIdHash } from './id-hash.ts';

const hash = (key: number[], bytes: Uint8Array, start = 0, end = bytes.length): string => {
  const out = new Uint32Array(2);
  keyedIdHash(Uint8Array.from(key))(bytes, start, end, out);
  return [...out].map((word) => word.toString(16).padStart(8, '0')).join(' ');
};
const KEY = [0, 1, 2, 3, 4, 5, 6, 7];
const counting = (length: number): Uint8Array => Uint8Array.from({ length }, (_, i) => i);

test.each([
  [0, '591f8d21 c83cb8b9'],
  [1, '122455be 157338f8'],
  [2, 'ef394f06 57eb507c'],
  [3, '451a0fce 790606f7'],
])('equals the reference vector of HalfSipHash-2-4-64 for %d bytes', (length, expected) => {
  expect(hash(KEY, counting(length))).toBe(expected);
});

test('depends on the key, on every byte and on the length, and on nothing outside its range', () => {
  const bytes = counting(40);
  const own = hash(KEY, bytes, 3, 20);
  expect(hash([9, ...KEY.slice(1)], bytes, 3, 20)).not.toBe(own);
  expect(hash(KEY, bytes, 3, 21)).not.toBe(own);
  expect(hash(KEY, bytes.slice(3, 20))).toBe(own);
  for (let i = 3; i < 20; i++) {
    const changed = bytes.slice();
    changed[i]! ^= 0x80;
    expect(hash(KEY, changed, 3, 20)).not.toBe(own);
  }
});
