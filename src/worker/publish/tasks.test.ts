import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { randomUUID } from 'node:crypto';
import { MadeJob } from '../../../hack/bench/made-job.ts';
import { keysUnder, startStore, type StartedStore } from '../../../hack/bench/s3-store.ts';
import type { FailPoint } from '../../observability/contract.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { JobDescriptor } from '../../queue/contract.ts';
import type { TaskJob } from '../tasks.ts';
import { claimPrefix } from './claim.ts';
import { defaultPublishSettings } from './settings.ts';
import { createPublishTasks } from './tasks.ts';

let started: StartedStore;

beforeAll(async () => {
  started = await startStore('tasks');
}, 60_000);

afterAll(() => started.stop());

const tasksWith = (failPoint: FailPoint = async () => undefined) =>
  createPublishTasks({
    ...{
      settings: defaultPublishSettings,
      failPoint,
      logger: silentLogger,
      newId: randomUUID,
      random: Math.random,
    },
    clock: { now: () => 7, monotonic: () => 0 },
  });

function startJob(): { made: MadeJob; job: TaskJob } {
  const { store } = started;
  const made = new MadeJob({
    ...{ store, prefix: `${randomUUID()}/`, uid: randomUUID(), shards: [2, 2] },
    recordBytes: () => 90,
    fails: (ordinal) => ordinal % 2 === 1,
  });
  const named = { uid: made.uid, namespace: 'claims', name: 'november', model: 'm' };
  const descriptor = { ...named, endpoint: '/v1/completions' } as JobDescriptor;
  const stores = { input: store, output: store };
  const signal = new AbortController().signal;
  return { made, job: { descriptor, layout: made.layout, stores, signal } };
}

test('a publish that another one overtakes is no problem of the job: it reports what that one published', async () => {
  const { made, job } = startJob();
  await made.finish(0);
  let overtaken = false;
  const tasks = tasksWith(async (name) => {
    if (name !== 'publish.results.checked' || overtaken) return;
    overtaken = true;
    await made.finish(1);
    await tasksWith().publish(job);
  });
  const { results, errors } = made.expected();
  expect(await tasks.publish(job)).toEqual({
    published: { shards: 2, resultsBytes: results.length, errorsBytes: errors.length, at: 7 },
  });
  expect(overtaken).toBe(true);
});

test('a finalizer that another publisher overtakes goes on from what that one published', async () => {
  const { made, job } = startJob();
  await made.writeIndex();
  await made.finish(0);
  await made.finish(1);
  let overtaken = false;
  const tasks = tasksWith(async (name) => {
    if (name !== 'publish.errors.others-aborted' || overtaken) return;
    overtaken = true;
    await tasksWith().publish(job);
  });
  expect(await tasks.finalize(job, { kind: 'Complete' })).toMatchObject({
    final: { counts: { total: 4, completed: 2, failed: 2 } },
  });
  expect((await started.store.getBytes(made.layout.errors)).bytes.equals(made.expected().errors)).toBe(true);
});

test('clean-up publishes first only when asked to', async () => {
  for (const publishFirst of [true, false]) {
    const { made, job } = startJob();
    const { store } = started;
    const context = { ...job, store, jobUID: made.uid, failPoint: async () => undefined };
    await claimPrefix(context, { namespace: 'claims', name: 'november' });
    await made.finish(0);
    await tasksWith().cleanup(job, publishFirst);
    const left = publishFirst ? [made.layout.errors, made.layout.results] : [];
    expect(await keysUnder(store, made.prefix)).toEqual(left);
  }
});
