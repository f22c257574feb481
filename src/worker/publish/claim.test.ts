import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { MadeJob } from '../../../hack/bench/made-job.ts';
import { keysUnder, startStore, type StartedStore } from '../../../hack/bench/s3-store.ts';
import type { FailPoint } from '../../observability/contract.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { ObjectStore } from '../../storage/contract.ts';
import { claimPrefix, findForeignOutput } from './claim.ts';
import { cleanup } from './cleanup.ts';
import type { PublishContext } from './context.ts';
import { publish } from './publish.ts';
import { defaultPublishSettings } from './settings.ts';

let started: StartedStore;
let store: ObjectStore;

beforeAll(async () => {
  started = await startStore('claiming');
  store = started.store;
}, 60_000);

afterAll(() => started.stop());

const madeJob = (prefix = `${randomUUID()}/`, uid: string = randomUUID()): MadeJob =>
  new MadeJob({ store, prefix, uid, shards: [3, 3], recordBytes: () => 90, fails: (n) => n % 3 === 0 });

const contextFor = (job: MadeJob, failPoint: FailPoint = async () => undefined): PublishContext => ({
  ...{ store, layout: job.layout, jobUID: job.uid, failPoint, newId: randomUUID, random: Math.random },
  signal: new AbortController().signal,
  settings: defaultPublishSettings,
  clock: { now: () => 0, monotonic: () => 0 },
  logger: silentLogger,
});

const NAMED = { namespace: 'claims', name: 'november' };

describe('a claim', () => {
  test('may be repeated by its job, and keeps others out, naming it and the way out', async () => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await claimPrefix(contextFor(job), NAMED);
    const other = claimPrefix(contextFor(madeJob(job.prefix)), { namespace: 'other', name: 'late' });
    await expect(other).rejects.toThrow(`s3://claiming/${job.layout.claim} claims this output prefix`);
    await expect(other).rejects.toThrow(`claims/november (${job.uid})`);
    await expect(other).rejects.toMatchObject({ code: 'OutputExists' });
  });

  test('is won by exactly one of ten jobs that start at once', async () => {
    const prefix = `${randomUUID()}/`;
    const jobs = Array.from({ length: 10 }, () => madeJob(prefix));
    const won = await Promise.allSettled(jobs.map((job) => claimPrefix(contextFor(job), NAMED)));
    expect(won.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  test('by a prefix that another begins with is independent', async () => {
    const outer = madeJob('a/');
    await claimPrefix(contextFor(outer), NAMED);
    await claimPrefix(contextFor(madeJob('a/b/')), NAMED);
  });

  test('that cannot be read is not ours', async () => {
    const job = madeJob();
    await store.put(job.layout.claim, Buffer.from('torn {'));
    await expect(claimPrefix(contextFor(job), NAMED)).rejects.toMatchObject({ code: 'OutputExists' });
  });
});

describe('files under the prefix', () => {
  test.each([
    ['results', 'of another job', { 'tidegate-job-uid': 'someone' }],
    ['errors', 'of another job', { 'tidegate-job-uid': 'someone' }],
    ['manifest', 'of another job', { 'tidegate-job-uid': 'someone' }],
    ['results', 'that nobody signed', {}],
  ] as const)('%s %s refuse a claim and are named, and no claim is left', async (file, _whose, metadata) => {
    const job = madeJob();
    await store.put(job.layout[file], Buffer.from('theirs'), { metadata });
    const claimed = claimPrefix(contextFor(job), NAMED);
    await expect(claimed).rejects.toMatchObject({ code: 'OutputExists' });
    await expect(claimed).rejects.toThrow(`s3://claiming/${job.layout[file]}`);
    expect(await keysUnder(store, job.prefix)).toEqual([job.layout[file]]);
  });

  test('of our own are no obstacle: the job goes on after a crash', async () => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await job.finish(0);
    await publish(contextFor(job));
    expect(await findForeignOutput(contextFor(job))).toBeUndefined();
    await claimPrefix(contextFor(job), NAMED);
  });

  test('with other names are no obstacle', async () => {
    const job = madeJob();
    await store.put(`${job.prefix}results.jsonl.old`, Buffer.from('x'));
    await claimPrefix(contextFor(job), NAMED);
  });
});

describe('clean-up', () => {
  test('removes working objects, uploads and the claim, and leaves what is published', async () => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await job.writeIndex();
    await job.finish(0);
    await publish(contextFor(job));
    await job.checkpoint(1, 2);
    await (await store.createMultipart(job.layout.results)).uploadPart(1, Buffer.from('frozen'));
    await store.createMultipart(job.layout.unpacked(0));
    const neighbour = madeJob(job.prefix, `${job.uid}0`);
    await neighbour.writeIndex();
    for (const _again of [1, 2]) await cleanup({ context: contextFor(job), publishForMilliseconds: 0 });
    const left = await keysUnder(store, job.prefix);
    expect(left.filter((key) => !key.startsWith(neighbour.layout.work))).toEqual([
      job.layout.errors,
      job.layout.results,
    ]);
    expect(left.some((key) => key.startsWith(neighbour.layout.work))).toBe(true);
    expect(await store.listUploads(job.prefix)).toEqual([]);
    expect((await store.getBytes(job.layout.results)).bytes.equals(job.expected(1).results)).toBe(true);
  });

  test('of a deleted job publishes what is finished first', async () => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await job.finish(0);
    await cleanup({ context: contextFor(job), publishForMilliseconds: 10_000 });
    expect((await store.getBytes(job.layout.results)).bytes.equals(job.expected(1).results)).toBe(true);
    expect(await keysUnder(store, job.prefix)).toEqual([job.layout.errors, job.layout.results]);
  });

  test('does not let a slow publish hold it up', async () => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await job.finish(0);
    const slow = contextFor(job, async (name) => {
      if (name === 'publish.results.checked') await pause(100);
    });
    await cleanup({ context: slow, publishForMilliseconds: 20 });
    expect(await keysUnder(store, job.prefix)).toEqual([]);
    expect(await store.listUploads(job.prefix)).toEqual([]);
  });

  test('leaves another job’s claim, uploads and files alone', async () => {
    const owner = madeJob();
    await claimPrefix(contextFor(owner), NAMED);
    await owner.finish(0);
    await publish(contextFor(owner));
    const upload = await store.createMultipart(owner.layout.results);
    const before = await keysUnder(store, owner.prefix);
    await cleanup({ context: contextFor(madeJob(owner.prefix)), publishForMilliseconds: 1000 });
    expect(await keysUnder(store, owner.prefix)).toEqual(before);
    expect(await store.listUploads(owner.layout.results)).toEqual([
      { key: owner.layout.results, uploadId: upload.uploadId },
    ]);
    await upload.abort();
  });

  test.each(['cleanup.published', 'cleanup.work-removed'])('goes on after a crash at %s', async (moment) => {
    const job = madeJob();
    await claimPrefix(contextFor(job), NAMED);
    await job.writeIndex();
    const crashing = contextFor(job, async (name) => {
      if (name === moment) throw new Error('crash');
    });
    await expect(cleanup({ context: crashing, publishForMilliseconds: 0 })).rejects.toThrow('crash');
    await cleanup({ context: contextFor(job), publishForMilliseconds: 0 });
    expect(await keysUnder(store, job.prefix)).toEqual([]);
  });
});
