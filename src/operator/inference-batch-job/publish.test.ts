import { describe, expect, test } from '@jest/globals';
import { publishDueIn, tailBytes, type PublishInput } from './publish.ts';

const MiB = 1024 * 1024;
const settings = {
  smallFileBytes: 5 * MiB,
  smallFileDelayMilliseconds: 1_000,
  tailPercent: 10,
  maxDelayMilliseconds: 600_000,
};
const base: PublishInput = {
  now: 1_000_000,
  donePrefix: 20,
  doneShards: 20,
  doneBytes: 100 * MiB,
  publishedShards: 10,
  publishedBytes: 90 * MiB,
  tailSince: 1_000_000,
};

describe('an append is due', () => {
  test.each<[string, Partial<PublishInput>, number | undefined]>([
    ['at once when the tail is 10 % of a large file', { publishedBytes: 90 * MiB }, 0],
    ['not before the tail is 10 % of it', { publishedBytes: 95 * MiB }, 600_000],
    ['after ten minutes whatever the tail', { publishedBytes: 95 * MiB, tailSince: 400_000 }, 0],
    ['when the rest of the ten minutes is over', { publishedBytes: 95 * MiB, tailSince: 900_000 }, 500_000],
    ['at 5 MiB of a file that 10 % of would be less', { doneBytes: 15 * MiB, publishedBytes: 10 * MiB }, 0],
    ['not below 5 MiB of it', { doneBytes: 14 * MiB, publishedBytes: 10 * MiB }, 600_000],
    [
      'within two seconds while the file is small',
      { doneBytes: 100, publishedBytes: 10, tailSince: 999_000 },
      0,
    ],
    ['soon while the file is small', { doneBytes: 100, publishedBytes: 10, tailSince: 999_400 }, 400],
    ['never without a finished shard', { donePrefix: 10, doneShards: 10 }, undefined],
    ['never while the next shard is open, however many are done behind it', { donePrefix: 10 }, undefined],
    [
      'from the first shard on when nothing is known of the files',
      { publishedShards: 0, publishedBytes: 0, tailSince: 0 },
      0,
    ],
  ])('%s', (_name, change, expected) => {
    expect(publishDueIn({ ...base, ...change }, settings)).toBe(expected);
  });
});

test('bytes behind a gap are not taken for the tail', () => {
  expect(tailBytes({ ...base, donePrefix: 15, doneShards: 30, doneBytes: 130 * MiB })).toBe(10 * MiB);
});
