import { expect, test } from '@jest/globals';
import { createTokenBucket } from './token-bucket.ts';

test('gives a second of burst, then as many a second as allowed', () => {
  let now = 0;
  const bucket = createTokenBucket(20, { monotonic: () => now });
  const takeAll = (): number => {
    let taken = 0;
    while (bucket.take()) taken++;
    return taken;
  };
  expect(takeAll()).toBe(20);
  now += 500;
  expect(takeAll()).toBe(10);
  now += 3_600_000;
  expect(takeAll()).toBe(20);
});
