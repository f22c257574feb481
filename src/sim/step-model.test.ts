import { describe, expect, test } from '@jest/globals';
import * as fc from 'fast-check';
import { PROFILES, PROFILE_NAMES } from './profiles.ts';
import { linearMilliseconds, stepMilliseconds } from './step-model.ts';

const idle = { tokens: 0, decodingSequences: 0, decodingContext: 0, prefillPairs: 0 };
const h100 = PROFILES['llama3-8b-h100'];

describe('the time of a step', () => {
  test.each([
    [1, 5.4],
    [64, 6.3],
    [2_048, 36.4],
    [8_192, 154],
  ])('goes through the measured point of %i tokens', (tokens, milliseconds) => {
    expect(linearMilliseconds(h100.linear, tokens)).toBeCloseTo(milliseconds, 9);
  });

  test('is interpolated between points and goes on with the last slope', () => {
    expect(linearMilliseconds(h100.linear, 1_536)).toBeCloseTo((18.3 + 36.4) / 2, 9);
    expect(linearMilliseconds(h100.linear, 12_288)).toBeCloseTo(154 + (154 - 71.8), 9);
  });

  test('has all its parts', () => {
    const load = {
      tokens: 2_048,
      decodingSequences: 64,
      decodingContext: 64 * 1_200,
      prefillPairs: 1_984 * 992,
    };
    expect(stepMilliseconds(h100, load)).toBeCloseTo(
      1.5 + 1.15 * 36.4 + 0.4 + (48 * 64 * 1_200) / 1e6 + (0.77 * 1_984 * 992) / 1e6,
      9,
    );
  });

  test('of an idle engine and of the instant profile is none', () => {
    expect(stepMilliseconds(h100, idle)).toBe(0);
    expect(stepMilliseconds(PROFILES.instant, { ...idle, tokens: 8_192 })).toBe(0);
  });

  test.each(PROFILE_NAMES)('never falls when there is more to do (%s)', (name) => {
    const amount = fc.record({
      tokens: fc.integer({ min: 1, max: 20_000 }),
      decodingSequences: fc.integer({ min: 0, max: 1_024 }),
      decodingContext: fc.integer({ min: 0, max: 1_000_000 }),
      prefillPairs: fc.integer({ min: 0, max: 1e9 }),
    });
    fc.assert(
      fc.property(amount, amount, (a, b) => {
        const more = {
          tokens: a.tokens + b.tokens,
          decodingSequences: a.decodingSequences + b.decodingSequences,
          decodingContext: a.decodingContext + b.decodingContext,
          prefillPairs: a.prefillPairs + b.prefillPairs,
        };
        expect(stepMilliseconds(PROFILES[name], more)).toBeGreaterThanOrEqual(
          stepMilliseconds(PROFILES[name], a),
        );
      }),
    );
  });
});
