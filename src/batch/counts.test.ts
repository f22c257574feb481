import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  addOutcomes,
  addUsage,
  equalOutcomes,
  equalUsage,
  isComplete,
  outcomesSum,
  subtractOutcomes,
  subtractUsage,
  tally,
} from './counts.ts';
import { combineCrc32, crc32, crc32Text } from './crc.ts';
import { OUTCOMES, noOutcomes, noUsage } from './model.ts';

const outcomes = fc.record({ completed: fc.nat(), failed: fc.nat(), expired: fc.nat(), cancelled: fc.nat() });
const usage = fc.record({ inputTokens: fc.nat(), cachedInputTokens: fc.nat(), outputTokens: fc.nat() });

describe('counts', () => {
  test('what is added can be taken away again', () => {
    fc.assert(
      fc.property(outcomes, outcomes, usage, usage, (a, b, u, v) => {
        expect(equalOutcomes(subtractOutcomes(addOutcomes(a, b), b), a)).toBe(true);
        expect(equalUsage(subtractUsage(addUsage(u, v), v), u)).toBe(true);
        expect(outcomesSum(addOutcomes(a, b))).toBe(outcomesSum(a) + outcomesSum(b));
        expect(addOutcomes(a, noOutcomes())).toEqual(a);
        expect(addUsage(u, noUsage())).toEqual(u);
      }),
    );
  });

  test('equal means equal in every part', () => {
    for (const outcome of OUTCOMES) {
      expect(equalOutcomes(noOutcomes(), { ...noOutcomes(), [outcome]: 1 })).toBe(false);
    }
    for (const part of ['inputTokens', 'cachedInputTokens', 'outputTokens']) {
      expect(equalUsage(noUsage(), { ...noUsage(), [part]: 1 })).toBe(false);
    }
  });

  test('a tally counts each record once', () => {
    const one = { inputTokens: 1, cachedInputTokens: 1, outputTokens: 1 };
    expect(
      tally([
        { outcome: 'completed', usage: one },
        { outcome: 'failed', usage: noUsage() },
        { outcome: 'completed', usage: one },
      ]),
    ).toEqual({
      counts: { completed: 2, failed: 1, expired: 0, cancelled: 0 },
      usage: { inputTokens: 2, cachedInputTokens: 2, outputTokens: 2 },
    });
  });

  test('a job is complete when its outcomes add up to its lines (aibrix#2253, batch-gateway#221)', () => {
    const counts = { completed: 8, failed: 7, expired: 0, cancelled: 10 };
    expect(isComplete({ total: 25, ...counts })).toBe(true);
    expect(isComplete({ total: 25, ...counts, cancelled: 0 })).toBe(false);
  });
});

describe('CRC-32', () => {
  test('of the check string is the published check value', () => {
    expect(crc32(Buffer.from('123456789'))).toBe(0xcbf43926);
    expect(crc32Text(0xf43926)).toBe('00f43926');
  });

  test('of joined parts follows from the CRCs of the parts', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 300 })), (parts) => {
        const combined = parts.reduce((crc, part) => combineCrc32(crc, crc32(part), part.length), 0);
        expect(combined).toBe(crc32(Buffer.concat(parts)));
      }),
    );
  });

  test('joins parts larger than 4 GiB', () => {
    // Zeros: the CRC of n zero bytes doubles up from the CRC of n/2.
    let crc = crc32(Buffer.alloc(1));
    let bytes = 1;
    while (bytes < 2 ** 34) {
      crc = combineCrc32(crc, crc, bytes);
      bytes *= 2;
    }
    const half = combineCrc32(0, crc32(Buffer.alloc(3)), 3);
    const left = combineCrc32(combineCrc32(half, crc, bytes), crc, bytes);
    const right = combineCrc32(half, combineCrc32(crc, crc, bytes), bytes * 2);
    expect(left).toBe(right);
  });
});
