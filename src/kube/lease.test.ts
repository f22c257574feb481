import { describe, expect, test } from '@jest/globals';
import { firstTerm, microTime } from './lease.ts';

describe('microTime', () => {
  test.each([
    ['whole seconds', 0, '1970-01-01T00:00:00.000000Z'],
    ['milliseconds', 1_234, '1970-01-01T00:00:01.234000Z'],
    ['fractions of a millisecond', 1_234.567_8, '1970-01-01T00:00:01.234567Z'],
  ])('writes %s with six digits (client-node#828, agentconnect#873)', (_name, at, expected) => {
    expect(microTime(at)).toBe(expected);
  });
});

describe('firstTerm', () => {
  const now = Date.UTC(2026, 10, 30);
  test('is above every count that an older lease of this name can have reached', () => {
    expect(firstTerm(now, 0)).toBeGreaterThan(200_000_000);
    expect(firstTerm(now + 1000, 0)).toBe(firstTerm(now, 0) + 1);
  });
  test('is above what was seen, also when the clock went back', () => {
    expect(firstTerm(0, 300_000_000)).toBe(300_000_001);
    expect(firstTerm(0, 0)).toBe(1);
  });
  test('fits into an int32 for sixty years', () => {
    expect(firstTerm(Date.UTC(2087, 0, 1), 0)).toBeLessThan(2 ** 31);
  });
});
