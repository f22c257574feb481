import { describe, expect, test } from '@jest/globals';
import { bar, inWords, progressLine, Rate, stateLine } from './progress.ts';

describe('the bar', () => {
  test.each([
    ['empty', 0, '░░░░'],
    ['an eighth of a cell', 1 / 32, '▏░░░'],
    ['half', 0.5, '██░░'],
    ['full', 1, '████'],
    ['never longer than its width', 1.5, '████'],
  ])('%s', (_, share, drawn) => {
    expect(bar(share, 4)).toBe(drawn);
  });
});

const view = {
  state: 'Running',
  message: '2 replicas',
  total: 3000,
  completed: 1200,
  failed: 3,
  linesPerSecond: 151.4,
  secondsLeft: 11.2,
};

test('the progress line says how far, how fast and how long', () => {
  expect(progressLine(view, 10)).toBe(
    '████░░░░░░  40 %  1,203/3,000 lines  3 in errors  151 lines/s  12 s left',
  );
});

test('before the input is read there is nothing to count', () => {
  const early = {
    ...view,
    total: 0,
    completed: 0,
    failed: 0,
    linesPerSecond: undefined,
    secondsLeft: undefined,
  };
  expect(progressLine(early, 4)).toBe('░░░░   0 %  –');
});

test('the reason is cut to the width of the terminal', () => {
  expect(stateLine({ ...view, message: 'x'.repeat(50) }, 20)).toBe('Running: xxxxxxxxxx…');
  expect(stateLine({ ...view, message: '' }, 20)).toBe('Running');
});

test('times are said the way people say them', () => {
  expect([inWords(0.2), inWords(59.5), inWords(61)]).toEqual(['1 s', '1 min 0 s', '1 min 1 s']);
});

describe('the rate', () => {
  test('is unknown from one reading', () => {
    expect(new Rate(5_000).add(0, 10)).toBeUndefined();
  });

  test('does not count the time before the first step', () => {
    const rate = new Rate(5_000);
    rate.add(0, 0);
    rate.add(60_000, 0);
    expect(rate.add(61_000, 100)).toBe(100);
  });

  test('looks back over its window only', () => {
    const rate = new Rate(2_000);
    rate.add(0, 0);
    rate.add(1_000, 1_000);
    rate.add(2_000, 1_100);
    rate.add(3_000, 1_200);
    expect(rate.add(4_000, 1_300)).toBe(100);
  });

  test('readings that have not changed do not pull it down between two reports', () => {
    const rate = new Rate(10_000);
    rate.add(0, 0);
    rate.add(1_000, 100);
    expect(rate.add(1_500, 100)).toBe(100);
  });
});
