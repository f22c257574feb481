import { beforeEach, describe, expect, test } from '@jest/globals';
import { checkpointAttempts } from '../../batch/checkpoint.ts';
import { noUsage, type LineRecord } from '../../batch/model.ts';
import { ByteBudget } from './byte-budget.ts';
import { Checkpointer } from './checkpointer.ts';
import { type SavedRecord, savedRecords } from './saved-records.ts';

const record = (ordinal: number, bytes = 10): LineRecord => ({
  ordinal,
  line: ordinal + 1,
  outcome: 'completed',
  usage: noUsage(),
  bytes: Buffer.alloc(bytes, 'x'),
});

interface Write {
  sequence: number;
  bytes: Uint8Array;
  succeed: () => void;
  fail: () => void;
}

describe('checkpointer', () => {
  let budget: ByteBudget;
  let writes: Write[];
  let saved: SavedRecord[];
  let checkpointer: Checkpointer;
  beforeEach(() => {
    budget = new ByteBudget(1_000);
    writes = [];
    saved = [];
    checkpointer = new Checkpointer({
      ...{ jobUID: 'uid', shard: 3, writer: 'w' },
      write: (sequence, bytes) =>
        new Promise((resolve, reject) =>
          writes.push({
            ...{ sequence, bytes },
            succeed: () => resolve({ key: `checkpoint-${sequence}`, etag: `"${sequence}"` }),
            fail: () => reject(new Error('store is down')),
          }),
        ),
      onSaved: (records) => saved.push(...records),
      budget,
      failPoint: () => Promise.resolve(),
      settings: { checkpointIntervalMilliseconds: 60_000, checkpointBytes: 30 },
      onError: () => undefined,
    });
  });
  const add = (...ordinals: number[]): void => {
    for (const ordinal of ordinals) {
      budget.charge(10);
      checkpointer.add(record(ordinal));
    }
  };
  const next = async (): Promise<Write> => {
    for (;;) {
      const write = writes.shift();
      if (write !== undefined) return write;
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  const ordinals = (records: readonly { ordinal: number }[]): number[] =>
    records.map(({ ordinal }) => ordinal);

  test('a record is either saved or unsaved once a write that was under way has ended', async () => {
    add(0, 1, 2);
    const write = await next();
    add(3);
    const settled = checkpointer.settle();
    write.succeed();
    await settled;
    expect(ordinals(saved)).toEqual([0, 1, 2]);
    expect(ordinals(checkpointer.unsaved)).toEqual([3]);
    expect(budget.used).toBe(10);
  });

  test('where that write failed, all its records are unsaved again', async () => {
    add(0, 1, 2);
    const write = await next();
    add(3);
    const settled = checkpointer.settle();
    write.fail();
    await settled;
    expect(saved).toEqual([]);
    expect(ordinals(checkpointer.unsaved)).toEqual([0, 1, 2, 3]);
    expect(budget.used).toBe(40);
  });

  test.each(['succeed', 'fail'] as const)(
    'gives back every byte when it is discarded while a write is under way that will %s',
    async (end) => {
      add(0, 1, 2);
      const write = await next();
      add(3);
      checkpointer.discard();
      write[end]();
      await checkpointer.settle();
      expect(budget.used).toBe(0);
    },
  );

  test('is congested while one checkpoint is written and another is full', async () => {
    add(0, 1, 2);
    const first = await next();
    add(3, 4);
    expect(checkpointer.congested).toBe(false);
    add(5);
    expect(checkpointer.congested).toBe(true);
    first.succeed();
    (await next()).succeed();
    await checkpointer.settle();
    expect(checkpointer.congested).toBe(false);
    expect(ordinals(saved)).toEqual([0, 1, 2, 3, 4, 5]);
  });

  test('keeps used attempts, with records and without', async () => {
    const flushed = checkpointer.flush(new Map([[7, 2]]));
    const write = await next();
    expect(checkpointAttempts(write.bytes)).toEqual([[7, 2]]);
    expect(savedRecords({ key: 'k', etag: 'e', bytes: write.bytes }, { jobUID: 'uid', shard: 3 })).toEqual(
      [],
    );
    write.succeed();
    await flushed;
    await checkpointer.flush(new Map());
    expect(writes).toEqual([]);
  });

  test('a full memory is reason enough to write', async () => {
    budget.charge(1_000);
    add(0);
    (await next()).succeed();
    await checkpointer.settle();
    expect(ordinals(saved)).toEqual([0]);
  });

  test('a saved record says where its bytes lie', async () => {
    add(0, 1);
    const flushed = checkpointer.flush();
    const { bytes, succeed } = await next();
    succeed();
    await flushed;
    for (const { start, end } of saved)
      expect(Buffer.from(bytes.subarray(start, end)).toString()).toBe('xxxxxxxxxx');
  });
});
