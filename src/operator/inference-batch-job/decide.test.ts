import { describe, expect, test } from '@jest/globals';
import type {
  InferenceBatchJob,
  InferenceBatchJobStatus,
  JobConditionType,
  JobState,
} from '../../api/inference-batch-job.ts';
import { JOB_REASONS, JOB_STATES } from '../../api/inference-batch-job.ts';
import { findCondition } from '../../kube/conditions.ts';
import { jsonEqual } from '../../kube/merge-patch.ts';
import type { JobState as QueueState } from '../../queue/contract.ts';
import {
  counts,
  CREATED,
  deploymentOf,
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
import { canMove, isTerminalState, stateOf, TRANSITIONS } from './life.ts';
import { EMPTY_MEMORY, type JobPlan, type JobSnapshot } from './snapshot.ts';

const WINDOW_END = CREATED + 86_400_000;
const at = (now = NOW, monotonic = 1_000_000) => ({ now, monotonic });
const decided = (snapshot: JobSnapshot, moment = at()): JobPlan => decide(snapshot, moment, settings);

const statusAfter = (snapshot: JobSnapshot, plan: JobPlan): InferenceBatchJobStatus =>
  plan.status?.draft ?? snapshot.job.status ?? {};
const conditionOf = (status: InferenceBatchJobStatus | undefined, type: JobConditionType) =>
  findCondition(status?.conditions, type);

/** The status that the operator itself writes in this situation, so that tests start from what really occurs. */
function settled(snapshot: JobSnapshot, moment = at(NOW - 10_000, 990_000)): JobSnapshot {
  const plan = decide(snapshot, moment, settings);
  const status = statusAfter(snapshot, plan);
  return { ...snapshot, job: { ...snapshot.job, status }, memory: plan.memory };
}

const bits = (shards: number): Uint8Array => Uint8Array.of(shards === 0 ? 0 : (0xff << (8 - shards)) & 0xff);

/** One situation of a job's life: its spec, what Redis knows, and what the status says by then. */
interface Situation {
  state: JobState;
  snapshot: JobSnapshot;
}

const started = (job: InferenceBatchJob, change: Partial<QueueState> = {}) =>
  emptyQueue({ descriptor: knownDescriptor(job), index: indexReport(), ...change });

function runningSnapshot(job = jobOf(), change: Partial<QueueState> = {}): JobSnapshot {
  const queue = started(job, { counts: counts({ completed: 300 }), done: bits(1), doneShards: 1, ...change });
  return settled(settled(snapshotOf({ job, queue })), at(NOW - 5_000, 995_000));
}

const endingSnapshot = (job: InferenceBatchJob, change: Partial<QueueState>): JobSnapshot =>
  settled({
    ...runningSnapshot(),
    job: { ...runningSnapshot().job, spec: job.spec },
    queue: started(job, change),
  });

const cancelled = jobOf({ spec: { cancel: true } });

function situations(): Record<JobState, Situation> {
  const job = jobOf();
  const of = (state: JobState, snapshot: JobSnapshot): Situation => ({ state, snapshot });
  const end = (state: JobState, cause: JobSnapshot): Situation => {
    const recorded = settled({ ...cause, queue: { ...(cause.queue ?? emptyQueue()), final: finalReport() } });
    return of(state, recorded);
  };
  return {
    Pending: of('Pending', settled(snapshotOf({ deployment: undefined }))),
    Validating: of('Validating', {
      ...settled(snapshotOf()),
      queue: emptyQueue({ descriptor: knownDescriptor(job) }),
    }),
    Queued: of('Queued', settled(snapshotOf({ queue: started(job) }))),
    Running: of('Running', runningSnapshot()),
    Throttled: of(
      'Throttled',
      settled({
        ...runningSnapshot(),
        availability: {
          ...open,
          readyReplicas: 0,
          blocked: { reason: 'ConnectionRefused', message: 'down' },
        },
      }),
    ),
    Suspended: of(
      'Suspended',
      settled({
        ...runningSnapshot(),
        job: jobOf({ spec: { suspend: true }, status: runningSnapshot().job.status }),
      }),
    ),
    Finalizing: of('Finalizing', endingSnapshot(cancelled, { counts: counts({ completed: 300 }) })),
    Completed: end('Completed', endingSnapshot(job, { doneShards: 4, done: bits(4) })),
    Cancelled: end('Cancelled', endingSnapshot(cancelled, {})),
    Expired: end(
      'Expired',
      settled(snapshotOf({ job: runningSnapshot().job, queue: started(job) }), at(WINDOW_END, 990_000)),
    ),
    Failed: end(
      'Failed',
      endingSnapshot(job, {
        problem: problemOf({ task: 'shard', reason: 'InputChanged', retryable: false }),
      }),
    ),
  };
}

const SITUATIONS: Record<JobState, Situation> = situations();
const STATES = Object.keys(JOB_STATES) as JobState[];

/** Everything that can happen to a job, as a change of what is seen of it. */
const EVENTS: Record<string, (snapshot: JobSnapshot) => { snapshot: JobSnapshot; now?: number }> = {
  'nothing happens': (s) => ({ snapshot: s }),
  'suspend is set': (s) => ({ snapshot: withSpec(s, { suspend: true }) }),
  'suspend is taken back': (s) => ({ snapshot: withSpec(s, { suspend: false }) }),
  'cancel is set': (s) => ({ snapshot: withSpec(s, { cancel: true }) }),
  'the class changes': (s) => ({ snapshot: withSpec(s, { priorityClassName: 'night' }) }),
  'the cap changes': (s) => ({ snapshot: withSpec(s, { maxInFlight: 3 }) }),
  'the window ends': (s) => ({ snapshot: s, now: WINDOW_END }),
  'the window ends long ago': (s) => ({ snapshot: s, now: WINDOW_END + 86_400_000 * 300 }),
  'the deployment goes': (s) => ({ snapshot: { ...s, deployment: undefined } }),
  'the deployment closes to the namespace': (s) => ({
    snapshot: {
      ...s,
      job: { ...s.job, spec: { ...s.job.spec, modelRef: { name: 'llama', namespace: 'other' } } },
      deployment: deploymentOf({}, 'other'),
    },
  }),
  'the index comes': (s) => ({ snapshot: withQueue(s, { index: indexReport() }) }),
  'an empty index comes': (s) => ({
    snapshot: withQueue(s, { index: indexReport({ total: 0, shards: 0 }) }),
  }),
  'lines finish': (s) => ({
    snapshot: withQueue(s, {
      index: indexReport(),
      counts: counts({ completed: 500 }),
      done: bits(2),
      doneShards: 2,
    }),
  }),
  'the last line finishes': (s) => ({
    snapshot: withQueue(s, {
      index: indexReport(),
      counts: counts({ completed: 1_000 }),
      done: bits(4),
      doneShards: 4,
    }),
  }),
  'a task fails for now': (s) => ({ snapshot: withQueue(s, { problem: problemOf({}) }) }),
  'publishing fails for now': (s) => ({
    snapshot: withQueue(s, { problem: problemOf({ task: 'publish', reason: 'StorageUnavailable' }) }),
  }),
  'the input changed': (s) => ({
    snapshot: withQueue(s, {
      problem: problemOf({ task: 'shard', reason: 'InputChanged', retryable: false }),
    }),
  }),
  'the output belongs to another': (s) => ({
    snapshot: withQueue(s, {
      problem: problemOf({ task: 'index', reason: 'OutputExists', retryable: false }),
    }),
  }),
  'a reason nobody knows': (s) => ({
    snapshot: withQueue(s, { problem: problemOf({ reason: 'not a reason!', retryable: false }) }),
  }),
  'finalising fails for now': (s) => ({
    snapshot: withQueue(s, { problem: problemOf({ task: 'finalize', reason: 'StorageUnavailable' }) }),
  }),
  'finalising fails for good': (s) => ({
    snapshot: withQueue(s, {
      problem: problemOf({ task: 'finalize', reason: 'OutputExists', retryable: false }),
    }),
  }),
  'the final report comes': (s) => ({ snapshot: withQueue(s, { final: finalReport() }) }),
  'the final report misses shards': (s) => ({
    snapshot: withQueue(s, { final: finalReport({ missing: [2] }) }),
  }),
  'the replicas go on hold': (s) => ({
    snapshot: {
      ...s,
      availability: { ...open, readyReplicas: 0, blocked: { reason: 'Unauthorized', message: 'bad key' } },
    },
  }),
  'the replicas are unknown': (s) => ({ snapshot: { ...s, availability: undefined } }),
  'all places are taken': (s) => ({ snapshot: { ...s, availability: { ...open, inFlight: 128 } } }),
  'the workers die': (s) => ({ snapshot: { ...s, liveWorkers: 0 } }),
  'Redis stops answering': (s) => ({ snapshot: { ...s, queue: undefined } }),
  'Redis comes back empty': (s) => ({ snapshot: { ...s, queue: emptyQueue() } }),
  'Redis loses the descriptor': (s) => ({ snapshot: withQueue(s, { descriptor: undefined }) }),
  'Redis loses the index': (s) => ({
    snapshot: withQueue(s, { index: undefined, done: new Uint8Array(0), doneShards: 0 }),
  }),
  'Redis loses the final report': (s) => ({ snapshot: withQueue(s, { final: undefined }) }),
  'another leader takes over': (s) => ({ snapshot: { ...s, memory: EMPTY_MEMORY } }),
};

function withSpec(snapshot: JobSnapshot, spec: Partial<InferenceBatchJob['spec']>): JobSnapshot {
  const { job } = snapshot;
  const metadata = { ...job.metadata, generation: (job.metadata.generation ?? 0) + 1 };
  return { ...snapshot, job: { ...job, metadata, spec: { ...job.spec, ...spec } } };
}
const withQueue = (snapshot: JobSnapshot, change: Partial<QueueState>): JobSnapshot => ({
  ...snapshot,
  queue: { ...(snapshot.queue ?? emptyQueue()), ...change },
});

describe('the table of states', () => {
  test.each(STATES)('has %s, and only known states after it', (state) => {
    expect(TRANSITIONS[state].filter((next) => !STATES.includes(next))).toEqual([]);
    expect(TRANSITIONS[state]).not.toContain(state);
  });

  test('has no way out of exactly Completed, Cancelled, Expired and Failed', () => {
    expect(STATES.filter(isTerminalState)).toEqual(['Completed', 'Cancelled', 'Expired', 'Failed']);
  });

  test('reaches an end only through Finalizing, where its cause is on record', () => {
    for (const from of STATES) {
      for (const to of STATES.filter(isTerminalState)) {
        expect([from, to, canMove(from, to)]).toEqual([from, to, from === to || from === 'Finalizing']);
      }
    }
  });

  test.each(STATES)('the tests know a job that is %s', (state) => {
    expect(stateOf(SITUATIONS[state].snapshot.job.status)).toBe(state);
  });
});

const pairs = STATES.flatMap((state) => Object.keys(EVENTS).map((event) => [state, event] as const));

describe('in every state, whatever happens', () => {
  const happening = (state: JobState, event: string) => {
    const change = EVENTS[event]?.(SITUATIONS[state].snapshot);
    if (change === undefined) throw new Error(`no event ${event}`);
    return { snapshot: change.snapshot, moment: at(change.now ?? NOW) };
  };

  test.each(pairs)('%s, when %s: only moves of the table, and conditions that agree', (state, event) => {
    const { snapshot, moment } = happening(state, event);
    const plan = decided(snapshot, moment);
    const status = statusAfter(snapshot, plan);
    const next = stateOf(status);
    expect([state, next, canMove(state, next)]).toEqual([state, next, true]);

    const complete = conditionOf(status, 'Complete')?.status === 'True';
    const failed = conditionOf(status, 'Failed')?.status === 'True';
    expect(complete && failed).toBe(false);
    expect(complete).toBe(next === 'Completed');
    expect(failed).toBe(['Cancelled', 'Expired', 'Failed'].includes(next));
    expect(status.completionTime !== undefined).toBe(isTerminalState(next));
    expect(
      conditionOf(status, 'Reconciling')?.status === 'True' &&
        conditionOf(status, 'Stalled')?.status === 'True',
    ).toBe(false);
    for (const { reason, observedGeneration } of plan.status?.draft.conditions ?? []) {
      expect(Object.keys(JOB_REASONS)).toContain(reason);
      expect(observedGeneration).toBeLessThanOrEqual(snapshot.job.metadata.generation ?? 0);
    }
    if (plan.status !== undefined) expect(status.observedGeneration).toBe(snapshot.job.metadata.generation);
  });

  test.each(pairs)('%s, when %s: a second look finds nothing more to write', (state, event) => {
    const { snapshot, moment } = happening(state, event);
    let current = snapshot;
    let writes = 0;
    for (let look = 0; look < 6; look++) {
      // A second passes between looks; progress may be written, but the same thing never twice.
      const plan = decided(current, at(moment.now + look, moment.monotonic + look));
      if (plan.status !== undefined) writes++;
      if (plan.status !== undefined) expect(jsonEqual(plan.status.draft, current.job.status)).toBe(false);
      current = {
        ...current,
        job: { ...current.job, status: statusAfter(current, plan) },
        memory: {
          ...plan.memory,
          ...(plan.status === undefined ? {} : { progressWrittenAt: moment.monotonic }),
        },
        queue:
          current.queue === undefined || plan.clear === undefined
            ? current.queue
            : {
                ...current.queue,
                ...(plan.clear.includes('problem') ? { problem: undefined } : {}),
                ...(plan.clear.includes('final') ? { final: undefined, doneShards: 3, done: bits(3) } : {}),
              },
      };
    }
    expect(writes).toBeLessThanOrEqual(4);
    expect(decided(current, at(moment.now + 6, moment.monotonic + 6)).status).toBeUndefined();
  });

  const terminal = pairs.filter(([state]) => isTerminalState(state));
  test.each(terminal)('%s, when %s: stays as it ended and runs nothing', (state, event) => {
    const { snapshot, moment } = happening(state, event);
    const plan = decided(snapshot, moment);
    const { observedGeneration: _before, ...before } = snapshot.job.status ?? {};
    const { observedGeneration: _after, ...after } = statusAfter(snapshot, plan);
    expect(after).toEqual(before);
    expect(plan.feed).toBeUndefined();
    expect(plan.events ?? []).toEqual([]);
    expect((plan.tasks ?? []).map(({ task }) => task.kind).filter((kind) => kind !== 'cleanup')).toEqual([]);
    if (plan.descriptor !== undefined) expect(plan.descriptor.run).toBe('Stop');
  });

  const finalizing = Object.keys(EVENTS).filter((event) => event !== 'finalising fails for good');
  test.each(finalizing)('a recorded cancel stays a cancel when %s', (event) => {
    const { snapshot, moment } = happening('Finalizing', event);
    const status = statusAfter(snapshot, decided(snapshot, moment));
    expect(['Finalizing', 'Cancelled']).toContain(status.state);
    if (status.state === 'Cancelled') expect(conditionOf(status, 'Failed')?.reason).toBe('Cancelled');
  });

  const live = pairs.filter(([state]) => !isTerminalState(state) && state !== 'Finalizing');
  test.each(live)('%s, when %s: is looked at again by itself', (state, event) => {
    const { snapshot, moment } = happening(state, event);
    const plan = decided(snapshot, moment);
    expect(plan.requeueAfterMilliseconds).toBeLessThanOrEqual(settings.resyncMilliseconds * 1.2);
    expect(plan.requeueAfterMilliseconds).toBeGreaterThanOrEqual(0);
  });

  test.each(live)(
    '%s, when %s and the object is deleted: stops and lets go within bounds',
    (state, event) => {
      const { snapshot, moment } = happening(state, event);
      const job = {
        ...snapshot.job,
        metadata: { ...snapshot.job.metadata, deletionTimestamp: '2026-11-30T12:01:00Z' },
      };
      const first = decided({ ...snapshot, job }, moment);
      expect(first.feed).toBeUndefined();
      expect(first.status).toBeUndefined();
      if (first.descriptor !== undefined) expect(first.descriptor.run).toBe('Gone');
      const late = decided(
        { ...snapshot, job, memory: first.memory },
        at(moment.now + 30_000, moment.monotonic + settings.deletionMilliseconds),
      );
      expect(late.removeFinalizer).toBe(true);
      expect(late.forget).toBe(true);
    },
  );
});
