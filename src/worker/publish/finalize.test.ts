import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { createHash, randomUUID } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { MadeJob, type MadeJobOptions } from '../../../hack/bench/made-job.ts';
import { keysUnder, startStore, type StartedStore } from '../../../hack/bench/s3-store.ts';
import type { Manifest } from '../../batch/manifest.ts';
import type { FailPoint } from '../../observability/contract.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { FinalReport, StopCause } from '../../queue/contract.ts';
import type { ObjectStore } from '../../storage/contract.ts';
import { claimPrefix } from './claim.ts';
import { cleanup } from './cleanup.ts';
import { ifThere, type PublishContext } from './context.ts';
import { finalize } from './finalize.ts';
import { publish } from './publish.ts';
import { defaultPublishSettings } from './settings.ts';

const JOB = { namespace: 'claims', name: 'november', model: 'm', endpoint: '/v1/completions' };
const CANCELLED: StopCause = { kind: 'Cancelled' };
const COMPLETE = { kind: 'Complete' } as const;

let started: StartedStore;
let store: ObjectStore;

beforeAll(async () => {
  started = await startStore('finalizing');
  store = started.store;
}, 60_000);

afterAll(() => started.stop());

const madeJob = (options: Partial<MadeJobOptions> = {}): MadeJob =>
  new MadeJob({
    ...{ store, prefix: `${randomUUID()}/`, uid: randomUUID(), shards: [3, 4, 2, 5] },
    recordBytes: (ordinal) => 80 + ordinal,
    fails: (ordinal) => ordinal % 5 === 4,
    ...options,
  });

const contextFor = (job: MadeJob, failPoint: FailPoint = async () => undefined): PublishContext => ({
  ...{ store, layout: job.layout, jobUID: job.uid, failPoint, newId: randomUUID, random: Math.random },
  signal: new AbortController().signal,
  settings: { ...defaultPublishSettings, supersededPauseMilliseconds: 5 },
  clock: { now: () => 0, monotonic: () => 0 },
  logger: silentLogger,
});

const finalizeAs = (job: MadeJob, cause: typeof COMPLETE | StopCause, failPoint?: FailPoint) =>
  finalize({ context: contextFor(job, failPoint), job: JOB, cause });

interface Line {
  custom_id: string;
  response: unknown;
  error?: { code: string; line: number; key: string };
}

async function linesOf(key: string): Promise<Line[]> {
  const read = await ifThere(store.getBytes(key));
  if (read === undefined) return [];
  const text = read.bytes.toString();
  expect(text.endsWith('\n')).toBe(true);
  return text
    .slice(0, -1)
    .split('\n')
    .map((line) => JSON.parse(line) as Line);
}

/** The invariant of the design: one record a line, in one of both files, and counts that equal the files. */
async function checkJob(job: MadeJob, report: FinalReport): Promise<{ results: Line[]; errors: Line[] }> {
  const results = await linesOf(job.layout.results);
  const errors = await linesOf(job.layout.errors);
  const ids = [...results, ...errors].map((line) => line.custom_id);
  expect(ids.toSorted()).toEqual(Array.from({ length: job.total }, (_, n) => `line-${n}`).toSorted());
  const ordinals = (lines: Line[]) => lines.map((line) => Number(line.custom_id.slice(5)));
  for (const lines of [results, errors])
    expect(ordinals(lines)).toEqual(ordinals(lines).toSorted((a, b) => a - b));
  const { total, completed, failed, expired, cancelled } = report.counts;
  expect({ total, completed, others: failed + expired + cancelled }).toEqual({
    ...{ total: job.total, completed: results.length, others: errors.length },
  });
  expect(report.results !== undefined).toBe(results.length > 0);
  expect(report.errors !== undefined).toBe(errors.length > 0);
  await checkManifest(job, report);
  return { results, errors };
}

async function checkManifest(job: MadeJob, report: FinalReport): Promise<void> {
  const { info, bytes } = await store.getBytes(job.layout.manifest);
  expect(info.metadata).toMatchObject({ 'tidegate-job-uid': job.uid });
  const manifest = JSON.parse(bytes.toString()) as Manifest;
  expect(manifest.counts).toEqual(report.counts);
  expect(manifest.usage).toEqual(report.usage);
  for (const name of ['results', 'errors'] as const) {
    const file = manifest[name];
    const content = await ifThere(store.getBytes(job.layout[name]));
    expect(file === null).toBe(content === undefined);
    if (file === null || content === undefined) continue;
    expect(file.bytes).toBe(content.bytes.length);
    expect(Number.parseInt(file.crc32, 16)).toBe(crc32(content.bytes));
    let end = 0;
    for (const { offset, bytes: length, sha256 } of file.segments) {
      expect(offset).toBe(end);
      end += length;
      expect(createHash('sha256').update(content.bytes.subarray(offset, end)).digest('hex')).toBe(sha256);
    }
    expect(end).toBe(file.bytes);
  }
}

const codes = (lines: Line[]): Record<string, number> => {
  const found: Record<string, number> = {};
  for (const { error } of lines) if (error) found[error.code] = (found[error.code] ?? 0) + 1;
  return found;
};

describe('a complete job', () => {
  test('is published whole, with counts, usage and a manifest that verifies', async () => {
    const job = madeJob();
    await job.writeIndex();
    for (const { shard } of job.shards) await job.finish(shard);
    const report = await finalizeAs(job, COMPLETE);
    await checkJob(job, report);
    expect(report.counts).toEqual({ total: 14, completed: 12, failed: 2, expired: 0, cancelled: 0 });
    expect(report.usage).toEqual({ inputTokens: 42, cachedInputTokens: 14, outputTokens: 28 });
    expect(report.results).toBe(`s3://finalizing/${job.layout.results}`);
    expect(report.recentErrors.map(({ line }) => line)).toEqual([5, 10]);
  });

  test('with shards that have no result names them and changes nothing', async () => {
    const job = madeJob();
    await job.writeIndex();
    await job.finish(0);
    await job.finish(2);
    const report = await finalizeAs(job, COMPLETE);
    expect(report.missing).toEqual([1, 3]);
    expect(await keysUnder(store, job.layout.results)).toEqual([]);
    expect(await keysUnder(store, job.layout.manifest)).toEqual([]);
  });

  test.each([
    ['of which no line failed has no errors.jsonl', false, 'errors'],
    ['of which every line failed has no results.jsonl', true, 'results'],
  ] as const)('%s (BerriAI/litellm#33987)', async (_name, failing, absent) => {
    const job = madeJob({ fails: () => failing });
    await job.writeIndex();
    for (const { shard } of job.shards) {
      await job.finish(shard);
      await publish(contextFor(job));
    }
    const report = await finalizeAs(job, COMPLETE);
    await checkJob(job, report);
    expect(report[absent]).toBeUndefined();
    expect(await keysUnder(store, job.layout[absent])).toEqual([]);
  });

  test('keeps the last ten errors over all shards', async () => {
    const job = madeJob({ shards: [8, 8, 8, 8], fails: (ordinal) => ordinal % 2 === 1 });
    await job.writeIndex();
    for (const { shard } of job.shards) await job.finish(shard);
    const { recentErrors } = await finalizeAs(job, COMPLETE);
    expect(recentErrors.map(({ line }) => line)).toEqual([14, 16, 18, 20, 22, 24, 26, 28, 30, 32]);
  });

  test('of more shards than one publish takes is published in several', async () => {
    const job = madeJob({ shards: new Array<number>(9).fill(2) });
    await job.writeIndex();
    for (const { shard } of job.shards) await job.finish(shard);
    const context = contextFor(job);
    context.settings = { ...context.settings, maxShards: 2 };
    await checkJob(job, await finalize({ context, job: JOB, cause: COMPLETE }));
  });
});

describe('a job that ends early gives each unfinished line one error record', () => {
  const causes: [string, StopCause, string, 'cancelled' | 'expired' | 'failed'][] = [
    ['cancelled', CANCELLED, 'batch_cancelled', 'cancelled'],
    ['expired', { kind: 'Expired' }, 'batch_expired', 'expired'],
    ['failed', { kind: 'Failed', reason: 'InputChanged', message: 'replaced' }, 'batch_failed', 'failed'],
  ];
  test.each(causes)('%s', async (_name, cause, code, outcome) => {
    const invalid = (ordinal: number) =>
      ordinal === 13 ? { code: 'missing_required_parameter', message: 'no body', param: 'body' } : undefined;
    const job = madeJob({ fails: () => false, invalid });
    await job.writeIndex();
    await job.finish(0);
    await publish(contextFor(job));
    await job.checkpoint(1, 3);
    const report = await finalizeAs(job, cause);
    const { errors } = await checkJob(job, report);
    // 3 lines of a finished shard, 3 of a checkpoint; one line that could never run; 7 that did not get to.
    expect(report.counts.completed).toBe(6);
    expect(codes(errors)).toEqual({ [code]: 7, missing_required_parameter: 1 });
    expect(report.counts[outcome]).toBe(outcome === 'failed' ? 8 : 7);
    expect(errors.at(-1)).toMatchObject({ custom_id: 'line-13', error: { line: 14, key: 'in.jsonl' } });
  });

  test('and takes of two checkpoints with the same lines each line once (two workers had the shard)', async () => {
    const job = madeJob({ fails: () => false });
    await job.writeIndex();
    await job.checkpoint(1, 3, 'worker-a');
    await job.checkpoint(1, 2, 'worker-b');
    const report = await finalizeAs(job, CANCELLED);
    await checkJob(job, report);
    expect(report.counts).toMatchObject({ completed: 3, cancelled: 11 });
  });

  test('and passes over a damaged checkpoint', async () => {
    const job = madeJob({ fails: () => false });
    await job.writeIndex();
    await job.checkpoint(1, 3);
    const key = job.layout.checkpoint(1, 'made', 0);
    const { bytes } = await store.getBytes(key);
    await store.put(key, bytes.subarray(0, -5));
    const report = await finalizeAs(job, CANCELLED);
    await checkJob(job, report);
    expect(report.counts).toMatchObject({ completed: 0, cancelled: 14 });
  });

  test('but lets a result count that a worker wrote first', async () => {
    const job = madeJob();
    await job.writeIndex();
    let late = true;
    const report = await finalizeAs(job, CANCELLED, async (name) => {
      if (name === 'finalize.shard-finished' && late) {
        late = false;
        await Promise.allSettled(job.shards.map(({ shard }) => job.finish(shard)));
      }
    });
    await checkJob(job, report);
  });

  test('with the last line of a job of 70 shards in a second index chunk', async () => {
    const job = madeJob({ shards: new Array<number>(70).fill(1) });
    await job.writeIndex();
    const report = await finalizeAs(job, { kind: 'Expired' });
    await checkJob(job, report);
    expect(report.counts.expired).toBe(70);
  });
});

describe('a job that ended before it was indexed', () => {
  test('has counts of zero, no files, and a manifest', async () => {
    const job = madeJob({ shards: [] });
    const report = await finalizeAs(job, CANCELLED);
    expect(report.counts).toEqual({ total: 0, completed: 0, failed: 0, expired: 0, cancelled: 0 });
    expect(await keysUnder(store, job.prefix)).toEqual([job.layout.claim, job.layout.manifest].toSorted());
    await checkManifest(job, report);
  });

  test('because the prefix is another job’s leaves no mark there', async () => {
    const owner = madeJob();
    await owner.writeIndex();
    for (const { shard } of owner.shards) await owner.finish(shard);
    await finalizeAs(owner, COMPLETE);
    await cleanup({ context: contextFor(owner), publishForMilliseconds: 0 });
    const before = await keysUnder(store, owner.prefix);
    const manifest = await store.head(owner.layout.manifest);
    const late = madeJob({ prefix: owner.prefix });
    await expect(claimPrefix(contextFor(late), JOB)).rejects.toMatchObject({ code: 'OutputExists' });
    const failed = { kind: 'Failed', reason: 'OutputExists', message: '' } as const;
    expect(await finalizeAs(late, failed)).toMatchObject({ manifest: '', counts: { total: 0 } });
    await cleanup({ context: contextFor(late), publishForMilliseconds: 1000 });
    expect(await keysUnder(store, owner.prefix)).toEqual(before);
    expect((await store.head(owner.layout.manifest)).etag).toBe(manifest.etag);
  });
});

class Crash extends Error {}

test('a finalizer that crashes at any moment and runs again, also beside another, ends the same', async () => {
  const prepare = async (): Promise<MadeJob> => {
    const job = madeJob();
    await job.writeIndex();
    await job.finish(0);
    await publish(contextFor(job));
    await job.finish(2);
    await job.checkpoint(1, 2);
    return job;
  };
  const moments: string[] = [];
  const whole = await finalizeAs(await prepare(), CANCELLED, async (name) => {
    moments.push(name);
  });
  expect(moments).toEqual(expect.arrayContaining(['finalize.results-complete', 'finalize.manifest-written']));
  for (const crashAt of moments.keys()) {
    const job = await prepare();
    let reached = 0;
    const crashing = finalizeAs(job, CANCELLED, async () => {
      // A crashed process runs nothing more, not even its clean-up.
      if (reached++ >= crashAt) await new Promise(() => undefined);
    });
    crashing.catch(() => undefined);
    while (reached <= crashAt) await new Promise((resolve) => setImmediate(resolve));
    const [first, second] = await Promise.all([finalizeAs(job, CANCELLED), finalizeAs(job, CANCELLED)]);
    await checkJob(job, first);
    expect(first.counts).toEqual(whole.counts);
    expect(second.counts).toEqual(whole.counts);
  }
}, 120_000);

test('a failure at any moment is only a failure, and the next run goes on', async () => {
  const job = madeJob();
  await job.writeIndex();
  await job.finish(1);
  const moments: string[] = [];
  for (let attempt = 0; ; attempt++) {
    let reached = 0;
    const run = finalizeAs(job, CANCELLED, async (name) => {
      if (reached++ < attempt) return;
      moments.push(name);
      throw new Crash(name);
    });
    const report = await run.catch((error: unknown) => {
      if (error instanceof Crash) return undefined;
      throw error;
    });
    if (report === undefined) continue;
    await checkJob(job, report);
    break;
  }
  expect(moments.length).toBeGreaterThan(10);
});

test('a published file that someone else wrote to is noticed, not built upon', async () => {
  const job = madeJob();
  await job.writeIndex();
  await job.finish(0);
  await publish(contextFor(job));
  const { info, bytes } = await store.getBytes(job.layout.results);
  await store.put(job.layout.results, bytes.subarray(1), { metadata: info.metadata ?? {} });
  await job.finish(1);
  await expect(publish(contextFor(job))).rejects.toMatchObject({ code: 'PublishedDamaged' });
  await store.put(job.layout.results, Buffer.from('not ours\n'));
  await expect(publish(contextFor(job))).rejects.toMatchObject({ code: 'OutputExists' });
});

test('a result that was replaced between both files, on a store without conditions, is never mixed in', async () => {
  const job = madeJob({ shards: [4, 4], fails: (ordinal) => ordinal % 2 === 0 });
  await job.writeIndex();
  await job.finish(0);
  const crashed = publish(
    contextFor(job, async (name) => {
      if (name === 'publish.errors.begin') throw new Crash();
    }),
  );
  await expect(crashed).rejects.toThrow(Crash);
  await store.delete(job.layout.shardResult(0));
  const other = new MadeJob({
    ...{ store, prefix: job.prefix, uid: job.uid, shards: [4, 4] },
    ...{ recordBytes: () => 99, fails: (ordinal) => ordinal < 3 },
  });
  await other.finish(0);
  await expect(publish(contextFor(job))).rejects.toMatchObject({ code: 'ResultChanged' });
  await store.delete(job.layout.shardResult(0));
  await job.finish(0);
  await publish(contextFor(job));
  await job.finish(1);
  await checkJob(job, await finalizeAs(job, COMPLETE));
});

/** versitygw 1.8 drops an object's metadata where an abort of the upload meets its Complete. */
describe('on a store that loses the metadata of a published file', () => {
  const losing = (uploads: number): ObjectStore => {
    let left = uploads;
    return new Proxy(store, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target);
        if (name !== 'createMultipart')
          return typeof value === 'function' ? (value as () => unknown).bind(target) : value;
        return (key: string, options?: Parameters<ObjectStore['createMultipart']>[1]) =>
          target.createMultipart(key, left-- > 0 ? { ...options, metadata: {} } : options);
      },
    });
  };

  const finishedJob = async (): Promise<MadeJob> => {
    const job = madeJob();
    await job.writeIndex();
    for (const { shard } of job.shards) await job.finish(shard);
    await claimPrefix(contextFor(job), JOB);
    return job;
  };

  test('the file is written again at once', async () => {
    const job = await finishedJob();
    const context = { ...contextFor(job), store: losing(1) };
    await checkJob(job, await finalize({ context, job: JOB, cause: COMPLETE }));
  });

  test('a crash right after is healed by the next publisher, and the job still ends whole', async () => {
    const job = await finishedJob();
    const crash: FailPoint = async (name) => {
      if (name === 'publish.results.completed') throw new Error('crash');
    };
    await expect(publish({ ...contextFor(job, crash), store: losing(1) })).rejects.toThrow('crash');
    await checkJob(job, await finalizeAs(job, COMPLETE));
  });

  test('a store that keeps none at all is named, instead of being written to for ever', async () => {
    const job = await finishedJob();
    await expect(publish({ ...contextFor(job), store: losing(1_000) })).rejects.toMatchObject({
      code: 'PublishedDamaged',
    });
  });
});
