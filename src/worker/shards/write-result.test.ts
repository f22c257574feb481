/** Results of shards on a real store, small ones and such as must not be held in memory. */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { randomUUID } from 'node:crypto';
import { startStore, type StartedStore } from '../../../hack/bench/s3-store.ts';
import { encodeCheckpoint } from '../../batch/checkpoint.ts';
import { jobLayout } from '../../batch/layout.ts';
import { noUsage, type LineRecord, type Shard } from '../../batch/model.ts';
import { composeShardResult, readShardResult } from '../../batch/shard-result.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { ObjectStore } from '../../storage/contract.ts';
import { ByteBudget } from './byte-budget.ts';
import { readSaved } from './saved-records.ts';
import { SavedRecordLost, writeShardResult, type ResultContext } from './write-result.ts';

const MiB = 1024 * 1024;
const PART = 5 * MiB;

let started: StartedStore;
let store: ObjectStore;
beforeAll(async () => {
  started = await startStore('results');
  store = started.store;
}, 60_000);
afterAll(() => started.stop());

/** The same store with its largest single body noted, and its answer about conditional writes replaced. */
function watched(honoured: boolean): { store: ObjectStore; largest: () => number } {
  let largest = 0;
  const note = (bytes: number): void => void (largest = Math.max(largest, bytes));
  const proxy = new Proxy(store, {
    get(target, name) {
      const method: unknown = Reflect.get(target, name, target);
      if (typeof method !== 'function') return method;
      const bound = method.bind(target) as (...args: unknown[]) => Promise<unknown>;
      if (name === 'honoursConditions') return async () => ({ put: honoured, complete: honoured });
      if (name === 'put')
        return (key: unknown, bytes: Uint8Array, options: unknown) => {
          note(bytes.length);
          return bound(key, bytes, options);
        };
      if (name === 'getBytes')
        return async (...args: unknown[]) => {
          const read = (await bound(...args)) as { bytes: Buffer };
          note(read.bytes.length);
          return read;
        };
      return bound;
    },
  });
  return { store: proxy, largest: () => largest };
}

const shardOf = (lines: number): Shard => ({
  ...{ shard: 4, source: 0, offset: 0, length: 0, firstOrdinal: 100 },
  lines: Array.from({ length: lines }, (_, n) => ({ line: n + 1, customId: `c${n}` })),
});

const recordsOf = (shard: Shard, bytes: number): LineRecord[] =>
  shard.lines.map(({ line }, position) => ({
    ordinal: shard.firstOrdinal + position,
    line,
    outcome: position % 3 === 2 ? 'failed' : 'completed',
    usage: { ...noUsage(), outputTokens: position },
    bytes: Buffer.alloc(bytes + position, String(position % 10)),
    ...(position % 3 === 2 ? { error: { customId: `c${position}`, code: 'x', message: 'no' } } : {}),
  }));

class Job {
  readonly uid = randomUUID();
  readonly layout = jobLayout(`${this.uid}/`, this.uid);
  readonly memory = new ByteBudget(64 * MiB);
  readonly signal = new AbortController().signal;

  context(target: ObjectStore, writer = 'w'): ResultContext {
    const { uid: jobUID, layout, memory, signal } = this;
    return { store: target, layout, jobUID, writer, memory, signal, partBytes: PART };
  }

  /** Writes these records as checkpoints of a few records each, and reads back where they lie. */
  async save(records: readonly LineRecord[], each: number) {
    const { uid: jobUID, layout, memory, signal } = this;
    for (let at = 0; at < records.length; at += each) {
      const bytes = encodeCheckpoint({ jobUID, shard: 4, writer: 'w' }, records.slice(at, at + each));
      await store.put(layout.checkpoint(4, 'w', at), bytes);
    }
    return readSaved({ store, layout, jobUID, logger: silentLogger, signal, memory }, 4);
  }

  async result() {
    const { bytes } = await store.getBytes(this.layout.shardResult(4));
    return readShardResult(bytes, { jobUID: this.uid, shard: 4 });
  }
}

describe.each([
  ['a store with conditional writes', true],
  ['a store without', false],
])('on %s', (_, honoured) => {
  test.each([
    ['small: from memory alone', 7, 100, 0],
    ['small: partly from checkpoints', 7, 100, 5],
    ['small: all from checkpoints', 7, 100, 7],
    ['large: from memory alone', 4, 2 * MiB, 0],
    ['large: partly from checkpoints', 12, MiB, 9],
    ['large: all from checkpoints', 12, MiB, 12],
    ['one record larger than a part', 2, 11 * MiB, 2],
    ['exactly one part', 1, PART, 1],
  ])('%s', async (_name, lines, bytes, savedLines) => {
    const job = new Job();
    const shard = shardOf(lines);
    const records = recordsOf(shard, bytes);
    const { records: saved } = await job.save(records.slice(0, savedLines), 3);
    const all = [...saved.values(), ...records.slice(savedLines)];
    const target = watched(honoured);
    const header = await writeShardResult(job.context(target.store), shard, all);
    const expected = composeShardResult({ jobUID: job.uid, writer: 'w' }, shard, records);
    expect(header).toEqual(expected.header);
    const result = await job.result();
    expect(result.header).toEqual(header);
    expect(
      Buffer.concat([result.results, result.errors]).equals(Buffer.concat(expected.parts.slice(1))),
    ).toBe(true);
    expect(job.memory.used).toBe(0);
    expect(target.largest()).toBeLessThanOrEqual(PART + 64 * 1024);
    expect(await store.listUploads(job.layout.work)).toEqual([]);
  });

  test.each([
    ['small', 100],
    ['large', 6 * MiB],
  ])('the first result counts, whoever writes another: %s', async (_name, bytes) => {
    const job = new Job();
    const shard = shardOf(2);
    const first = await writeShardResult(
      job.context(watched(honoured).store, 'first'),
      shard,
      recordsOf(shard, bytes),
    );
    const others = recordsOf(shard, bytes + 1);
    const second = await writeShardResult(job.context(watched(honoured).store, 'second'), shard, others);
    expect(second).toEqual(first);
    expect((await job.result()).header.writer).toBe('first');
    expect(await store.listUploads(job.layout.work)).toEqual([]);
  });

  test.each([
    ['small', 100],
    ['large', 3 * MiB],
  ])(
    'a checkpoint that is gone: the result that somebody else wrote counts, else the shard is lost: %s',
    async (_name, bytes) => {
      const job = new Job();
      const shard = shardOf(3);
      const records = recordsOf(shard, bytes);
      const { records: saved } = await job.save(records, 2);
      await store.delete(job.layout.checkpoint(4, 'w', 2));
      const context = job.context(watched(honoured).store);
      await expect(writeShardResult(context, shard, saved.values())).rejects.toThrow(SavedRecordLost);
      const decided = await writeShardResult(job.context(store, 'other'), shard, records);
      expect(await writeShardResult(context, shard, saved.values())).toEqual(decided);
      expect(job.memory.used).toBe(0);
    },
  );
});

test('reads one checkpoint at a time and keeps none of their bytes', async () => {
  const job = new Job();
  const { records } = await job.save(recordsOf(shardOf(9), 2 * MiB), 1);
  expect(records.size).toBe(9);
  for (const record of records.values()) expect('bytes' in record).toBe(false);
  expect(job.memory.used).toBe(0);
});

test('a damaged checkpoint is left out, and of two records for one line the first counts', async () => {
  const job = new Job();
  const shard = shardOf(4);
  const records = recordsOf(shard, 50);
  await job.save(records.slice(0, 2), 2);
  await store.put(job.layout.checkpoint(4, 'x', 0), Buffer.from('{"formatVersion":1}\ntorn'));
  const again = encodeCheckpoint(
    { jobUID: job.uid, shard: 4, writer: 'y' },
    records.slice(1, 3),
    new Map([[103, 1]]),
  );
  await store.put(job.layout.checkpoint(4, 'y', 0), again);
  const saved = await job.save([], 1);
  expect([...saved.records.keys()]).toEqual([100, 101, 102]);
  expect(saved.records.get(101)?.key).toBe(job.layout.checkpoint(4, 'w', 0));
  expect([...saved.attempts]).toEqual([[103, 1]]);
});
