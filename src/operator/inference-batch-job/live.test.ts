import { describe, expect, test } from '@jest/globals';
import type { InferenceBatchJobStatus, JobConditionType } from '../../api/inference-batch-job.ts';
import { findCondition } from '../../kube/conditions.ts';
import {
  counts,
  emptyQueue,
  finalReport,
  indexReport,
  jobOf,
  knownDescriptor,
  NOW,
  open,
  problemOf,
  settings,
  snapshotOf,
} from '../testing/builders.ts';
import { decide } from './decide.ts';
import { EMPTY_MEMORY, type JobPlan, type JobSnapshot } from './snapshot.ts';
import { MAX_STATUS_BYTES, recentErrorsOf } from './status.ts';

const at = (seconds = 0) => ({ now: NOW + seconds * 1_000, monotonic: 1_000_000 + seconds * 1_000 });
const decided = (snapshot: JobSnapshot, seconds = 0): JobPlan => decide(snapshot, at(seconds), settings);
const running = (change: Partial<JobSnapshot> = {}): JobSnapshot => {
  const job = change.job ?? jobOf();
  return snapshotOf({
    queue: emptyQueue({ descriptor: knownDescriptor(job), index: indexReport() }),
    ...change,
    job,
  });
};
/** The snapshot as it would be after the plan was carried out. */
const after = (snapshot: JobSnapshot, plan: JobPlan): JobSnapshot => ({
  ...snapshot,
  job: { ...snapshot.job, ...(plan.status === undefined ? {} : { status: plan.status.draft }) },
  memory: { ...plan.memory, ...(plan.status === undefined ? {} : { progressWrittenAt: at().monotonic }) },
});
const statusOf = (plan: JobPlan, { job }: JobSnapshot): InferenceBatchJobStatus =>
  plan.status?.draft ?? job.status ?? {};
const reasonIn = (status: InferenceBatchJobStatus | undefined, type: JobConditionType) =>
  findCondition(status?.conditions, type)?.reason;
const kinds = (plan: JobPlan) => (plan.tasks ?? []).map(({ task }) => task.kind);

describe('a new job', () => {
  test('gets its finalizer before anything is written elsewhere, in one plan', () => {
    const plan = decided(snapshotOf({ job: jobOf({ metadata: { finalizers: ['other/one'] } }) }));
    expect(plan).toMatchObject({ addFinalizer: true, descriptor: { run: 'Run' } });
    expect(kinds(plan)).toEqual(['index']);
    expect(plan.status?.draft).toMatchObject({ state: 'Validating', windowEndTime: '2026-12-01T12:00:00Z' });
    expect(plan.events?.map(({ reason }) => reason)).toEqual(['Accepted']);
  });

  test.each<[string, Partial<JobSnapshot>, string]>([
    [
      'suspended at birth',
      { job: jobOf({ spec: { suspend: true }, metadata: { finalizers: [] } }) },
      'Suspended',
    ],
    [
      'without its deployment',
      { job: jobOf({ metadata: { finalizers: [] } }), deployment: undefined },
      'Pending',
    ],
  ])('%s touches neither Redis nor S3, and needs no finalizer', (_name, change, state) => {
    const plan = decided(snapshotOf(change));
    expect(Object.keys(plan).sort()).toEqual(['events', 'memory', 'requeueAfterMilliseconds', 'status']);
    expect(plan.status?.draft.state).toBe(state);
  });

  test.each<[string, Partial<JobSnapshot>['job']]>([
    ['cancelled', jobOf({ spec: { suspend: true, cancel: true }, metadata: { finalizers: [] } })],
    [
      'expired',
      jobOf({ spec: { suspend: true, completionWindowSeconds: 60 }, metadata: { finalizers: [] } }),
    ],
  ])('suspended at birth and %s ends without a worker', (_name, job) => {
    const first = snapshotOf({ job: job ?? jobOf(), liveWorkers: 0, queue: undefined });
    const recorded = after(first, decided(first));
    expect(recorded.job.status?.state).toBe('Finalizing');
    const plan = decided(recorded);
    expect(plan.status?.draft.counts).toEqual({ total: 0, ...counts() });
    expect(plan.status?.draft.completionTime).toBeDefined();
    expect(plan.tasks).toBeUndefined();
  });
});

describe('feeding', () => {
  test('gives the first shards that are not done, and only new ones when asked again soon', () => {
    const big = { index: indexReport({ shards: 400, total: 100_000 }) };
    const first = running({ queue: emptyQueue({ descriptor: knownDescriptor(jobOf()), ...big }) });
    const plan = decided(first);
    expect(plan.feed).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    const next = after(first, plan);
    expect(decided(next, 1).feed).toBeUndefined();
    const moved = {
      ...next,
      queue: { ...(next.queue ?? emptyQueue()), done: Uint8Array.of(0b1100_0000), doneShards: 2 },
    };
    expect(decided(moved, 1).feed).toEqual([8, 9]);
    expect(decided(moved, 6).feed).toEqual([2, 3, 4, 5, 6, 7, 8, 9]);
  });

  const held = {
    ...open,
    readyReplicas: 0,
    blocked: { reason: 'Unauthorized', message: 'the key is wrong' },
  };
  test.each<[string, Partial<JobSnapshot>, string, string]>([
    ['suspended', { job: jobOf({ spec: { suspend: true } }) }, 'Suspended', 'SuspendedByUser'],
    ['on hold', { availability: held }, 'Throttled', 'Unauthorized'],
    ['without its deployment', { deployment: undefined }, 'Throttled', 'ModelDeploymentNotFound'],
    [
      'without replicas',
      { availability: { ...open, blocked: { reason: 'ServiceNotFound', message: 'no Service' } } },
      'Throttled',
      'NoReadyReplicas',
    ],
  ])('stops for a job that is %s, and what waits is taken back once', (_name, change, state, reason) => {
    const fed = after(running(), decided(running()));
    const stopped = {
      ...fed,
      ...change,
      job: {
        ...(change.job ?? fed.job),
        ...(fed.job.status === undefined ? {} : { status: fed.job.status }),
      },
    };
    const plan = decided(stopped);
    expect(plan.feed).toBeUndefined();
    expect(plan.withdraw).toBe(true);
    expect(plan.status?.draft.state).toBe(state);
    expect(reasonIn(plan.status?.draft, 'Running')).toBe(reason);
    expect(decided(after(stopped, plan)).withdraw).toBeUndefined();
  });

  test('goes on when a hold is over', () => {
    const stopped = after(running({ availability: held }), decided(running({ availability: held })));
    expect(decided({ ...stopped, availability: open }).feed).toEqual([0, 1, 2, 3]);
  });
});

describe('changes of the spec on a running job', () => {
  test.each<[string, Parameters<typeof jobOf>[0], object]>([
    ['a cap', { spec: { maxInFlight: 3 } }, { maxInFlight: 3, run: 'Run' }],
    ['suspend', { spec: { suspend: true } }, { run: 'Suspend' }],
    [
      'another window',
      { spec: { completionWindowSeconds: 3_600 } },
      { deadline: Date.parse('2026-11-30T13:00:00Z') },
    ],
    [
      'retries',
      { spec: { retry: { maxAttempts: 2, initialBackoffSeconds: 1, maxBackoffSeconds: 1 } } },
      { retry: { maxAttempts: 2 } },
    ],
  ])('%s is told to workers at once', (_name, change, expected) => {
    const known = emptyQueue({ descriptor: knownDescriptor(jobOf()), index: indexReport() });
    expect(decided(running({ job: jobOf(change), queue: known })).descriptor).toMatchObject(expected);
  });

  test('nothing is told when nothing changed', () => {
    expect(decided(running()).descriptor).toBeUndefined();
  });
});

describe('problems', () => {
  const troubled = (change: Parameters<typeof problemOf>[0]) =>
    snapshotOf({ queue: emptyQueue({ descriptor: knownDescriptor(jobOf()), problem: problemOf(change) }) });

  test('of the input are shown, and tried again after a pause that doubles', () => {
    let snapshot = troubled({});
    const pauses: number[] = [];
    for (let attempt = 0; attempt < 6; attempt++) {
      const waiting = decided(snapshot);
      expect(kinds(waiting)).toEqual([]);
      expect(waiting.clear).toBeUndefined();
      pauses.push(waiting.requeueAfterMilliseconds ?? 0);
      const shown = after(snapshot, waiting);
      const again = decided(shown, 60);
      expect(again).toMatchObject({ clear: ['problem'], tasks: [{ task: { kind: 'index' } }] });
      snapshot = after(shown, again);
    }
    expect(pauses).toEqual([2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    expect(reasonIn(snapshot.job.status, 'Indexed')).toBe('CredentialsNotFound');
    expect(snapshot.job.status).toMatchObject({ state: 'Validating', message: problemOf({}).message });
    expect(findCondition(snapshot.job.status?.conditions, 'Stalled')?.status).toBe('True');
  });

  test('are gone from the status once the input is indexed', () => {
    const first = troubled({});
    const shown = after(first, decided(first));
    const plan = decided({ ...shown, queue: { ...(shown.queue ?? emptyQueue()), index: indexReport() } });
    expect(plan.clear).toEqual(['problem']);
    expect(reasonIn(plan.status?.draft, 'Indexed')).toBe('Indexed');
    expect(findCondition(plan.status?.draft.conditions, 'Stalled')?.status).toBe('False');
  });

  test('of publishing do not stop the lines', () => {
    const snapshot = running();
    const plan = decided({
      ...snapshot,
      queue: {
        ...(snapshot.queue ?? emptyQueue()),
        problem: problemOf({ task: 'publish', reason: 'AccessDenied', message: 'the bucket is read-only' }),
        counts: counts({ completed: 250 }),
        done: Uint8Array.of(0x80),
        doneShards: 1,
      },
    });
    expect(plan.feed).toEqual([1, 2, 3]);
    expect(kinds(plan)).toEqual([]);
    expect(plan.status?.draft).toMatchObject({ state: 'Running', message: 'the bucket is read-only' });
    expect(reasonIn(plan.status?.draft, 'Stalled')).toBe('AccessDenied');
  });

  test('whose text is gigantic are shown with 1 KiB of it (cases: operators 17)', () => {
    const plan = decided(troubled({ message: 'x'.repeat(1_000_000) }));
    for (const { message } of plan.status?.draft.conditions ?? []) {
      expect(Buffer.byteLength(message)).toBeLessThanOrEqual(1_024);
    }
  });
});

describe('the status', () => {
  const progressing = (completed: number, change: Partial<JobSnapshot> = {}) =>
    running({
      queue: emptyQueue({
        descriptor: knownDescriptor(jobOf()),
        index: indexReport({ shards: 4 }),
        counts: counts({ completed }),
        usage: { inputTokens: completed * 10, cachedInputTokens: 0, outputTokens: completed * 30 },
      }),
      ...change,
    });

  test('shows progress at most every five seconds, and transitions at once', () => {
    const first = progressing(100);
    const shown = after(first, decided(first));
    const queueOf = (completed: number) => progressing(completed).queue;
    const soon = decided({ ...shown, queue: queueOf(200) }, 1);
    expect(soon.status).toBeUndefined();
    expect(soon.requeueAfterMilliseconds).toBeLessThanOrEqual(4_000);
    const later = decided({ ...shown, queue: queueOf(200) }, 5);
    expect(later.status).toMatchObject({ urgent: false, draft: { progress: '200/1000', percent: 20 } });
    const suspended = { ...shown, job: { ...shown.job, spec: { ...shown.job.spec, suspend: true } } };
    expect(decided({ ...suspended, queue: queueOf(200) }, 1).status).toMatchObject({ urgent: true });
  });

  test('forecasts the end from the last minute, and keeps quiet about less than 5 %', () => {
    let snapshot = progressing(0);
    for (let second = 0; second <= 30; second += 5) {
      snapshot = { ...snapshot, queue: progressing(second * 10).queue };
      snapshot = after(snapshot, decided(snapshot, second));
      snapshot = { ...snapshot, memory: { ...snapshot.memory, progressWrittenAt: 0 } };
    }
    expect(snapshot.job.status).toMatchObject({
      throughput: { recordsPerMinute: 600, tokensPerSecond: 400 },
      estimatedCompletionTime: '2026-11-30T12:02:40Z',
    });
    const slightly = decided({ ...snapshot, queue: progressing(352).queue }, 35);
    expect(slightly.status?.draft).toMatchObject({
      throughput: { recordsPerMinute: 600 },
      estimatedCompletionTime: '2026-11-30T12:02:40Z',
    });
  });

  test('keeps rates and forecast when the leader changes', () => {
    const before = progressing(500);
    const status = {
      ...(decided(before).status?.draft ?? {}),
      throughput: { recordsPerMinute: 70, tokensPerSecond: 80 },
      estimatedCompletionTime: '2026-11-30T13:00:00Z',
    };
    const plan = decided({ ...before, job: jobOf({ status }) });
    expect(plan.status).toBeUndefined();
  });

  test('names a published file once it has a record', () => {
    const snapshot = progressing(250);
    const published = { shards: 1, resultsBytes: 5_000, errorsBytes: 0, at: NOW };
    const plan = decided({ ...snapshot, queue: { ...(snapshot.queue ?? emptyQueue()), published } });
    expect(plan.status?.draft.outputs).toEqual({ results: 's3://out/x/results.jsonl' });
  });

  test('says what a job waits for that got no place', () => {
    const full = { ...open, inFlight: 128 };
    const queued = decided(running({ availability: full }));
    expect(queued.status?.draft).toMatchObject({
      state: 'Queued',
      message: 'waiting for a free place on 2 replicas',
    });
    const started = progressing(10, { availability: full });
    const stuck = decided(after(started, decided(started)), 30);
    expect(stuck.status?.draft).toMatchObject({
      state: 'Throttled',
      message: 'waiting for a free place on 2 replicas',
    });
  });

  test.each<[string, number, number, boolean, string]>([
    ['no shard is held', 0, 0, false, 'Queued'],
    ['a worker holds a shard and there are free places', 1, 0, false, 'Running'],
    ['a worker holds a shard, but others have all places', 1, 3_000, true, 'Queued'],
    ['a shard is held for longer than one without places would be', 1, 60_000, true, 'Running'],
  ])('before its first line has ended, where %s', (_name, openShards, openFor, full, state) => {
    const availability = full ? { ...open, inFlight: 128 } : open;
    const snapshot = running({ availability });
    const queue = { ...(snapshot.queue ?? emptyQueue()), openShards, openForMilliseconds: openFor };
    expect(decided({ ...snapshot, queue }).status?.draft.state).toBe(state);
  });

  test('is not Throttled by long lines of its own', () => {
    const busy = progressing(10, { availability: { ...open, inFlight: 128 } });
    const own = {
      ...busy,
      queue: { ...(busy.queue ?? emptyQueue()), openShards: 2, openForMilliseconds: 90_000 },
    };
    const shown = after(own, decided(own));
    expect(statusOf(decided(shown, 120), shown).state).toBe('Running');
  });

  test('says that a Redis that came up empty gives out no places yet', () => {
    const snapshot = running({ grantsPaused: true });
    const queue = { ...(snapshot.queue ?? emptyQueue()), openShards: 1 };
    expect(decided({ ...snapshot, queue }).status?.draft).toMatchObject({
      state: 'Queued',
      message: expect.stringContaining('after one lease time'),
    });
  });

  test('does not tell of a short outage of Redis, and tells of a long one once', () => {
    const first = progressing(10);
    const shown = after(first, decided(first));
    const out = { ...shown, queue: undefined };
    const soon = decided(out);
    expect(soon.status).toBeUndefined();
    const later = decided(after(out, soon), 11);
    expect(reasonIn(later.status?.draft, 'Running')).toBe('QueueUnavailable');
    expect(decided(after({ ...out, memory: soon.memory }, later), 60).status).toBeUndefined();
  });

  test('of 10 M lines with gigantic errors stays below 32 KiB', () => {
    const giant = {
      line: 10_000_000,
      customID: '\u0001"\\'.repeat(512),
      code: '"'.repeat(4_000),
      message: '\\"'.repeat(100_000),
    };
    const snapshot = running();
    const queue = {
      ...(snapshot.queue ?? emptyQueue()),
      index: indexReport({ total: 10_000_000, shards: 40_000, invalid: 100_000 }),
      counts: counts({ completed: 9_000_000, failed: 100_000 }),
      recentErrors: Array.from({ length: 10 }, () => giant),
      problem: problemOf({ task: 'shard', reason: 'StorageUnavailable', message: '"'.repeat(100_000) }),
    };
    const { draft } = decided({ ...snapshot, queue }).status ?? {};
    expect(Buffer.byteLength(JSON.stringify(draft))).toBeLessThanOrEqual(MAX_STATUS_BYTES);
    expect(draft?.recentErrors?.length).toBeGreaterThan(0);
  });

  test('leaves out a custom_id that a line does not have', () => {
    expect(recentErrorsOf([{ line: 1, customID: null, code: 'c', message: 'm' }])).toEqual([
      { line: 1, code: 'c', message: 'm' },
    ]);
  });
});

describe('the end', () => {
  const cancelled = jobOf({ spec: { cancel: true } });
  const ending = () => {
    const first = running({ job: cancelled });
    return after(first, decided(first));
  };

  test('stops workers at once, before it is carried out', () => {
    const plan = decided(running({ job: cancelled }));
    expect(plan).toMatchObject({ descriptor: { run: 'Stop' }, withdraw: true });
    expect(plan.status?.draft.state).toBe('Finalizing');
    expect(kinds(plan)).toEqual([]);
  });

  test('gives workers a moment to check in what they have finished', () => {
    const stopped = { descriptor: knownDescriptor(cancelled, 'Stop'), index: indexReport() };
    const held = { ...ending(), queue: emptyQueue({ ...stopped, openShards: 2 }) };
    const finalize = [
      { task: { kind: 'finalize', uid: 'uid-1', cause: { kind: 'Cancelled' } }, delayMilliseconds: 0 },
    ];
    const waits = decided(held);
    expect(waits.tasks).toBeUndefined();
    expect(waits.requeueAfterMilliseconds).toBe(settings.stopGraceMilliseconds);
    expect(decided({ ...held, queue: emptyQueue(stopped) }).tasks).toEqual(finalize);
    expect(decided(held, settings.stopGraceMilliseconds / 1_000).tasks).toEqual(finalize);
  });

  test('is one patch with condition, time, counts and outputs; the event comes with it', () => {
    const snapshot = ending();
    const plan = decided({
      ...snapshot,
      queue: { ...(snapshot.queue ?? emptyQueue()), final: finalReport() },
    });
    expect(plan.status).toMatchObject({
      urgent: true,
      draft: {
        state: 'Cancelled',
        completionTime: '2026-11-30T12:01:00Z',
        counts: { total: 1_000, completed: 990, failed: 10, expired: 0, cancelled: 0 },
        outputs: { errors: 's3://out/x/errors.jsonl' },
      },
    });
    expect(plan.status?.draft.estimatedCompletionTime).toBeUndefined();
    expect(plan.events?.at(-1)).toEqual({
      type: 'Normal',
      reason: 'Cancelled',
      message: 'spec.cancel was set; 990 of 1000 lines completed, 10 failed',
    });
  });

  test('shows the numbers it ends with, and no forecast, from its first moment on', () => {
    const job = jobOf({ status: { estimatedCompletionTime: '2026-11-30T13:00:00Z', progress: '10/1000' } });
    const done = { index: indexReport(), doneShards: 4, counts: counts({ completed: 1_000 }) };
    const plan = decided(running({ job, queue: emptyQueue({ descriptor: knownDescriptor(job), ...done }) }));
    expect(plan.status?.draft).toMatchObject({ state: 'Finalizing', progress: '1000/1000', percent: 100 });
    expect(plan.status?.draft.estimatedCompletionTime).toBeUndefined();
  });

  test('that can never be published keeps what was done, and says where', () => {
    const snapshot = ending();
    const problem = problemOf({
      task: 'finalize',
      reason: 'OutputExists',
      message: 'another job is there',
      retryable: false,
    });
    const queue = { ...(snapshot.queue ?? emptyQueue()), counts: counts({ completed: 300 }), problem };
    const closing = decided({ ...snapshot, queue });
    const { status } = after(snapshot, closing).job;
    expect(status).toMatchObject({
      state: 'Failed',
      message: expect.stringContaining('another job is there'),
    });
    expect(status?.message).toContain('kept under s3://out/x/_tidegate/uid-1/');
    expect(reasonIn(status, 'Failed')).toBe('OutputExists');
    expect(reasonIn(status, 'Running')).toBe('ResultsNotPublished');

    const finished = after(snapshot, closing);
    const letGo = { removeFinalizer: true, leftBehind: { prefix: 's3://out/x/_tidegate/uid-1/' } };
    expect(decided({ ...finished, queue })).toMatchObject(letGo);
    expect(kinds(decided({ ...finished, queue }))).toEqual([]);
    const deletionTimestamp = new Date(NOW).toISOString();
    const deleted = { ...finished.job, metadata: { ...finished.job.metadata, deletionTimestamp } };
    expect(decided({ ...finished, job: deleted, queue })).toMatchObject(letGo);
    expect(kinds(decided({ ...finished, job: deleted, queue }))).toEqual([]);
  });

  test('waits for S3 as long as that takes, and says so', () => {
    const snapshot = ending();
    const problem = problemOf({ task: 'finalize', reason: 'StorageUnavailable', message: 'S3 answers 503' });
    const plan = decided(
      { ...snapshot, queue: { ...(snapshot.queue ?? emptyQueue()), problem } },
      86_400 * 30,
    );
    expect(plan.status?.draft).toMatchObject({ state: 'Finalizing', message: 'S3 answers 503' });
    expect(plan).toMatchObject({ clear: ['problem'], tasks: [{ task: { kind: 'finalize' } }] });
  });

  test('comes without S3 where nothing was indexed', () => {
    const unindexed = emptyQueue({ descriptor: knownDescriptor(cancelled) });
    const first = snapshotOf({ job: cancelled, queue: unindexed });
    const recorded = after(first, decided(first));
    expect(kinds(decided(recorded))).toEqual(['finalize']);
    const problem = problemOf({ task: 'finalize', reason: 'NoSuchBucket' });
    const refused = decided({ ...recorded, queue: { ...unindexed, problem } });
    expect(refused.status?.draft).toMatchObject({ state: 'Cancelled', counts: { total: 0 } });
    const silent = decided({ ...recorded, memory: { ...recorded.memory, stoppedAt: at().monotonic } }, 60);
    expect(silent.status?.draft).toMatchObject({
      state: 'Cancelled',
      counts: { total: 0 },
      message: 'spec.cancel was set before the input was read: no line has run, and none has a record',
    });
    expect(reasonIn(silent.status?.draft, 'Indexed')).toBe('Cancelled');
  });
});

describe('a suspended job', () => {
  test('forecasts nothing, and measures anew when it goes on', () => {
    const job = jobOf({
      spec: { suspend: true },
      status: {
        throughput: { recordsPerMinute: 600, tokensPerSecond: 7_000 },
        estimatedCompletionTime: '2026-11-30T13:00:00Z',
      },
    });
    const memory = { ...EMPTY_MEMORY, samples: [{ at: 0, records: 0, tokens: 0 }] };
    const plan = decided(running({ job, memory }));
    expect(plan.status?.draft.throughput).toBeUndefined();
    expect(plan.status?.draft.estimatedCompletionTime).toBeUndefined();
    expect(plan.memory.samples).toEqual([]);
  });
});

describe('a deletion', () => {
  const deletedAgo = (seconds: number, change: Partial<JobSnapshot> = {}) => {
    const deletionTimestamp = new Date(NOW - seconds * 1_000).toISOString();
    const job = jobOf({ metadata: { deletionTimestamp }, status: change.job?.status });
    return running({ ...change, job });
  };
  const seen = (secondsAgo: number) => ({
    ...EMPTY_MEMORY,
    deletionSeenAt: at().monotonic - secondsAgo * 1_000,
  });

  test.each<[string, number, number, boolean]>([
    ['waits for clean-up', 29, 29, false],
    ['waits for no more than half a minute', 31, 31, true],
    ['begins the wait anew with a new leader', 60, 11, false],
    ['but not for ever: one that outlived several leaders waits less', 600, 11, true],
    ['though long enough for a worker to try', 600, 9, false],
  ])('%s', (_name, age, seenFor, over) => {
    const plan = decided(deletedAgo(age, { memory: seen(seenFor) }));
    expect(plan.removeFinalizer ?? false).toBe(over);
    expect(plan.leftBehind?.why).toBe(over ? 'clean-up took too long' : undefined);
  });

  test('of a job whose store could never be opened does not wait for it to open', () => {
    const typo = jobOf();
    const problem = problemOf({});
    const first = snapshotOf({
      job: typo,
      queue: emptyQueue({ descriptor: knownDescriptor(typo), problem }),
    });
    const { status } = after(first, decided(first)).job;
    const queue = emptyQueue({
      descriptor: knownDescriptor(typo, 'Gone'),
      problem: problemOf({ task: 'cleanup' }),
    });
    const plan = decided(deletedAgo(1, { job: jobOf({ status }), queue, memory: seen(1) }));
    expect(plan).toMatchObject({ removeFinalizer: true, forget: true });
    const other = { ...queue, problem: problemOf({ task: 'cleanup', reason: 'StorageUnavailable' }) };
    const waits = decided(deletedAgo(1, { job: jobOf({ status }), queue: other, memory: seen(1) }));
    expect(waits.removeFinalizer).toBeUndefined();
  });
});
