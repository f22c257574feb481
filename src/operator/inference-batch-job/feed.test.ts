import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { donePrefix, firstNotDone, refeedAfter, windowShards, type WindowInput } from './feed.ts';

const settings = {
  shardsPerWorker: 4,
  maxWindowShards: 256,
  refeedMilliseconds: 5_000,
  refeedsPerSecond: 40,
};

const bitmap = (shards: number, isDone: (shard: number) => boolean): Uint8Array => {
  const bits = new Uint8Array(Math.ceil(shards / 8));
  for (let shard = 0; shard < shards; shard++) {
    if (isDone(shard)) bits[shard >> 3] = (bits[shard >> 3] ?? 0) | (0x80 >> (shard & 7));
  }
  return bits;
};

describe('the window of a job', () => {
  const base: WindowInput = {
    lines: 250_000,
    shards: 1_000,
    capacity: 64,
    maxInFlight: undefined,
    liveWorkers: 1,
  };
  test.each<[string, Partial<WindowInput>, number]>([
    ['is a few shards a worker where lines are many', {}, 4],
    ['grows with the workers', { liveWorkers: 3 }, 12],
    ['is a few shards also before a worker is there', { liveWorkers: 0 }, 4],
    ['fills the places twice where shards are small', { lines: 1_000, capacity: 64 }, 128],
    ['needs no more than the cap of the job', { lines: 1_000, capacity: 64, maxInFlight: 3 }, 6],
    ['is bounded whatever the capacity', { lines: 1_000, capacity: 100_000 }, 256],
    ['is bounded whatever the number of workers', { liveWorkers: 5_000 }, 256],
    ['stands also without any capacity', { capacity: 0 }, 4],
  ])('%s', (_name, change, expected) => {
    expect(windowShards({ ...base, ...change }, settings)).toBe(expected);
  });
});

describe('shards to feed', () => {
  test.each<[string, Uint8Array, number, number, number[]]>([
    ['of a new job are its first', new Uint8Array(0), 100, 3, [0, 1, 2]],
    ['never go beyond the last', new Uint8Array(0), 2, 8, [0, 1]],
    ['skip what is done', bitmap(20, (n) => n !== 3 && n !== 17 && n !== 19), 20, 8, [3, 17, 19]],
    ['are none where all is done', bitmap(9, () => true), 9, 8, []],
    ['ignore the bits behind the last shard', Uint8Array.of(0xff, 0b1000_0000), 9, 8, []],
    ['are none for a job without shards', new Uint8Array(0), 0, 8, []],
  ])('%s', (_name, done, shards, limit, expected) => {
    expect(firstNotDone(done, shards, limit)).toEqual(expected);
  });

  test('are, for any bitmap, the lowest numbers whose bit is not set', () => {
    fc.assert(
      fc.property(
        fc.array(fc.boolean(), { maxLength: 300 }),
        fc.integer({ min: 1, max: 40 }),
        (bits, limit) => {
          const done = bitmap(bits.length, (shard) => bits[shard] === true);
          const open = bits.flatMap((isDone, shard) => (isDone ? [] : [shard]));
          expect(firstNotDone(done, bits.length, limit)).toEqual(open.slice(0, limit));
          expect(donePrefix(done, bits.length)).toBe(open[0] ?? bits.length);
        },
      ),
    );
  });
});

test.each([
  [1, 5_000],
  [200, 5_000],
  [1_000, 25_000],
])('with %i jobs fed, each is fed again after %i ms', (jobs, milliseconds) => {
  expect(refeedAfter(jobs, settings)).toBe(milliseconds);
});
