import { describe, expect, test } from '@jest/globals';
import {
  addSample,
  forecast,
  isNoticeable,
  percentOf,
  roundRate,
  throughputOf,
  type Sample,
} from './progress.ts';

const settings = {
  rateWindowMilliseconds: 60_000,
  sampleMilliseconds: 5_000,
  rateMinimumMilliseconds: 5_000,
  noticeablePercent: 5,
};
const run = (samples: Sample[]): readonly Sample[] =>
  samples.reduce<readonly Sample[]>((all, sample) => addSample(all, sample, settings), []);

describe('throughput', () => {
  test('is unknown before enough of the past is known', () => {
    expect(throughputOf([], settings)).toBeUndefined();
    expect(throughputOf(run([{ at: 0, records: 9, tokens: 9 }]), settings)).toBeUndefined();
  });

  test('counts the last minute only', () => {
    const samples = Array.from({ length: 100 }, (_, i) => ({
      at: i * 5_000,
      records: i < 50 ? i * 1_000 : 50_000 + (i - 50) * 10,
      tokens: i < 50 ? 0 : (i - 50) * 500,
    }));
    expect(throughputOf(run(samples), settings)).toEqual({ recordsPerMinute: 120, tokensPerSecond: 100 });
  });

  test('keeps a handful of samples however often it is asked', () => {
    const samples = Array.from({ length: 10_000 }, (_, i) => ({ at: i * 50, records: i, tokens: i }));
    expect(run(samples).length).toBeLessThanOrEqual(14);
  });

  test('falls to nothing a minute after the last record', () => {
    const samples = Array.from({ length: 30 }, (_, i) => ({
      at: i * 5_000,
      records: Math.min(i, 10) * 100,
      tokens: 0,
    }));
    expect(throughputOf(run(samples), settings)).toEqual({ recordsPerMinute: 0, tokensPerSecond: 0 });
  });

  test('starts anew when counts were lost, and is never negative', () => {
    const samples = run([
      { at: 0, records: 500, tokens: 500 },
      { at: 10_000, records: 600, tokens: 600 },
      { at: 20_000, records: 100, tokens: 100 },
    ]);
    expect(throughputOf(samples, settings)).toBeUndefined();
  });
});

test.each([
  [0, 0],
  [0.4, 0],
  [999.4, 999],
  [5_432.1, 5_430],
  [11_949, 11_900],
])('the rate %d is shown as %d', (value, shown) => {
  expect(roundRate(value)).toBe(shown);
});

test.each<[number | undefined, number, boolean]>([
  [undefined, 0, true],
  [0, 0, false],
  [0, 1, true],
  [1, 0, true],
  [100, 105, false],
  [100, 106, true],
  [100, 94, true],
])('a change from %p to %d is noticeable: %p', (shown, value, expected) => {
  expect(isNoticeable(shown, value, 5)).toBe(expected);
});

describe('the forecast', () => {
  const at = (shown: number | undefined, recordsPerMinute = 100) =>
    forecast({ now: 1_000_000, remaining: 1_000, recordsPerMinute, shown }, settings);
  test('is now plus what remains at this rate', () => {
    expect(at(undefined)).toBe(1_600_000);
  });
  test.each<[string, number, number]>([
    ['stays when it is off by less than 5 % of what remains', 1_625_000, 1_625_000],
    ['is rewritten when it is off by more', 1_640_000, 1_600_000],
  ])('%s', (_name, shown, expected) => {
    expect(at(shown)).toBe(expected);
  });
  test('is absent without a rate', () => {
    expect(at(1_600_000, 0)).toBeUndefined();
  });
});

test.each([
  [0, 0, 0],
  [0, 10, 0],
  [999_999, 1_000_000, 99],
  [10, 10, 100],
])('%d of %d lines are %d percent', (ended, total, percent) => {
  expect(percentOf(ended, total)).toBe(percent);
});
