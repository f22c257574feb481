import { expect, test } from '@jest/globals';
import { retryAfterMilliseconds } from './retry-after.ts';

const now = Date.parse('Mon, 30 Nov 2026 12:00:00 GMT');

test.each<[string, string | undefined, number | undefined]>([
  ['whole seconds', '7', 7_000],
  ['zero', '0', 0],
  ['fractions of a second', '0.25', 250],
  ['spaces around', ' 3 ', 3_000],
  ['a date to come', 'Mon, 30 Nov 2026 12:00:30 GMT', 30_000],
  ['a date that has passed', 'Mon, 30 Nov 2026 11:00:00 GMT', 0],
  ['more than two minutes', '86400', 120_000],
  ['a date far away', 'Tue, 01 Dec 2026 12:00:00 GMT', 120_000],
  ['no header', undefined, undefined],
  ['an empty header', '', undefined],
  ['a negative number', '-1', undefined],
  ['words', 'soon', undefined],
  ['a number with a unit', '5 s', undefined],
])('Retry-After: %s', (_name, value, expected) => {
  expect(retryAfterMilliseconds(value, now)).toBe(expected);
});
