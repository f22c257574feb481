/**
 * A job in a small world of its own: a status in Kubernetes, objects in S3, and a Redis that may lose everything.
 * The leader crashes between any two of its writes, workers do their tasks or not, hours pass; afterwards the world
 * is left in peace and the job has to end well.
 */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import { FINALIZER } from '../../api/group.ts';
import { noOutcomes, type OutcomeCounts } from '../../batch/model.ts';
import { findCondition } from '../../kube/conditions.ts';
import type { FinalReport, JobState as QueueState, Task } from '../../queue/contract.ts';
import { CREATED, deploymentOf, emptyQueue, jobOf, open, settings } from '../testing/builders.ts';
import { decide } from './decide.ts';
import { hasEnded } from './life.ts';
import { EMPTY_MEMORY, type JobMemory, type JobPlan } from './snapshot.ts';

const SHARDS = 3;
const LINES_PER_SHARD = 10;
const TOTAL = SHARDS * LINES_PER_SHARD;

interface World {
  now: number;
  job: InferenceBatchJob | undefined;
  memory: JobMemory;
  redis: QueueState;
  redisUp: boolean;
  tasks: Map<string, Task>;
  queued: Set<number>;
  /** Objects in S3: the index, and for each shard the counts of its result. */
  s3: { index: boolean; results: Map<number, OutcomeCounts>; published: number; working: boolean };
  ends: string[];
  finalizeCauses: Set<string>;
}

const newWorld = (): World => ({
  now: CREATED + 1_000,
  job: jobOf({ metadata: { finalizers: [] }, spec: { completionWindowSeconds: 400 } }),
  memory: EMPTY_MEMORY,
  redis: emptyQueue(),
  redisUp: true,
  tasks: new Map(),
  queued: new Set(),
  s3: { index: false, results: new Map(), published: 0, working: false },
  ends: [],
  finalizeCauses: new Set(),
});

const doneBits = (world: World): Pick<QueueState, 'done' | 'doneShards' | 'counts'> => {
  const done = Uint8Array.of(0);
  const counts = noOutcomes();
  for (const [shard, result] of world.s3.results) {
    done[0] = (done[0] ?? 0) | (0x80 >> shard);
    for (const outcome of Object.keys(counts) as (keyof OutcomeCounts)[]) counts[outcome] += result[outcome];
  }
  return { done, doneShards: world.s3.results.size, counts };
};

/** One reconcile; `crashAfter` writes the leader is dead, and the next one remembers nothing. */
function reconcile(world: World, crashAfter = Number.POSITIVE_INFINITY): JobPlan | undefined {
  const { job } = world;
  if (job === undefined) return undefined;
  const plan = decide(
    {
      job,
      deployment: deploymentOf(),
      namespaceLabels: {},
      availability: open,
      liveWorkers: 1,
      grantsPaused: false,
      fedJobs: 1,
      queue: world.redisUp ? structuredClone(world.redis) : undefined,
      memory: world.memory,
      random: 0.5,
    },
    { now: world.now, monotonic: world.now },
    settings,
  );
  let left = crashAfter;
  for (const write of writesOf(world, plan)) {
    if (left-- <= 0) {
      world.memory = EMPTY_MEMORY;
      return undefined;
    }
    write();
  }
  world.memory = plan.memory;
  return plan;
}

/** In the order of `apply`. */
function writesOf(world: World, plan: JobPlan): (() => void)[] {
  const writes: (() => void)[] = [];
  const object = (change: (job: InferenceBatchJob) => InferenceBatchJob | undefined) => () => {
    if (world.job !== undefined) world.job = change(world.job);
  };
  const finalizers = (list: string[]) =>
    object((job) => {
      const metadata = { ...job.metadata, finalizers: list };
      return job.metadata.deletionTimestamp !== undefined && list.length === 0
        ? undefined
        : { ...job, metadata };
    });
  if (plan.addFinalizer === true) writes.push(finalizers([FINALIZER]));
  const { descriptor } = plan;
  if (descriptor !== undefined) writes.push(() => (world.redis = { ...world.redis, descriptor }));
  if (plan.withdraw === true) writes.push(() => world.queued.clear());
  if (plan.markMissing !== undefined) {
    writes.push(() => (world.redis = { ...world.redis, ...doneBits(world) }));
  }
  for (const report of plan.clear ?? []) {
    writes.push(() => (world.redis = { ...world.redis, [report]: report === 'cleaned' ? false : undefined }));
  }
  for (const { task } of plan.tasks ?? []) {
    const id = task.kind;
    writes.push(() => void (world.tasks.has(id) || world.tasks.set(id, task)));
  }
  for (const shard of plan.feed ?? []) writes.push(() => world.queued.add(shard));
  const { status } = plan;
  if (status !== undefined) {
    writes.push(
      object((job) => {
        if (!hasEnded(job.status) && hasEnded(status.draft)) world.ends.push(status.draft.state ?? '');
        return { ...job, status: status.draft };
      }),
    );
  }
  if (plan.forget === true) {
    writes.push(() => {
      if (!world.redisUp) return;
      world.redis = emptyQueue();
      world.tasks.clear();
      world.queued.clear();
    });
  }
  if (plan.removeFinalizer === true) writes.push(finalizers([]));
  if (plan.deleteObject === true) writes.push(() => (world.job = undefined));
  return writes;
}

/** A worker takes the task, does what its contract says, and reports; `silent`: the report is lost. */
function work(world: World, kind: Task['kind'], silent = false): void {
  const task = world.tasks.get(kind);
  if (task === undefined || !world.redisUp) return;
  world.tasks.delete(kind);
  const run = world.redis.descriptor?.run;
  if (run === undefined) return;
  const report = (change: Partial<QueueState>): void => {
    if (!silent) world.redis = { ...world.redis, ...change };
  };
  switch (task.kind) {
    case 'index':
      if (run !== 'Run' && run !== 'Suspend') return;
      world.s3.index = true;
      world.s3.working = true;
      report({
        index: { total: TOTAL, invalid: 0, shards: SHARDS, bytes: 1, firstInvalid: [] },
        ...doneBits(world),
      });
      return;
    case 'publish':
      if (run === 'Gone') return;
      while (world.s3.results.has(world.s3.published)) world.s3.published++;
      report({ published: { shards: world.s3.published, resultsBytes: 1, errorsBytes: 0, at: world.now } });
      return;
    case 'finalize':
      if (run !== 'Gone') report({ final: finalize(world, task) });
      return;
    case 'cleanup':
      world.s3.working = false;
      report({ cleaned: true });
      return;
  }
}

function finalize(world: World, { cause }: Extract<Task, { kind: 'finalize' }>): FinalReport {
  world.finalizeCauses.add(cause.kind);
  const report = {
    usage: { inputTokens: 0, cachedInputTokens: 0, outputTokens: 0 },
    recentErrors: [],
    manifest: 'm',
  };
  if (!world.s3.index) return { ...report, counts: { total: 0, ...noOutcomes() } };
  const missing = Array.from({ length: SHARDS }, (_, n) => n).filter((n) => !world.s3.results.has(n));
  if (missing.length > 0 && cause.kind === 'Complete') {
    return { ...report, missing, counts: { total: TOTAL, ...noOutcomes() } };
  }
  const outcome = {
    Complete: 'completed',
    Cancelled: 'cancelled',
    Expired: 'expired',
    Failed: 'failed',
  } as const;
  for (const shard of missing) {
    world.s3.results.set(shard, { ...noOutcomes(), [outcome[cause.kind]]: LINES_PER_SHARD });
  }
  world.s3.published = SHARDS;
  return { ...report, counts: { total: TOTAL, ...doneBits(world).counts } };
}

function runShard(world: World, silent = false): void {
  const [shard] = world.queued;
  if (shard === undefined || world.redis.descriptor?.run !== 'Run' || !world.redisUp) return;
  world.queued.delete(shard);
  if (!world.s3.results.has(shard)) {
    world.s3.results.set(shard, { ...noOutcomes(), completed: LINES_PER_SHARD });
  }
  if (!silent) world.redis = { ...world.redis, ...doneBits(world) };
}

function changeSpec(world: World, spec: Partial<InferenceBatchJob['spec']>): void {
  const { job } = world;
  if (job === undefined || hasEnded(job.status)) return;
  const generation = (job.metadata.generation ?? 0) + 1;
  world.job = { ...job, metadata: { ...job.metadata, generation }, spec: { ...job.spec, ...spec } };
}

type Step = (world: World) => void;
const TASKS: Task['kind'][] = ['index', 'publish', 'finalize', 'cleanup'];

const steps: Record<string, fc.Arbitrary<Step>> = {
  reconcile: fc.constant((world) => void reconcile(world)),
  crash: fc.nat(8).map((writes) => (world) => void reconcile(world, writes)),
  work: fc.tuple(fc.constantFrom(...TASKS), fc.boolean()).map(
    ([kind, silent]) =>
      (world) =>
        work(world, kind, silent),
  ),
  shard: fc.boolean().map((silent) => (world) => runShard(world, silent)),
  wiped: fc.constant((world) => {
    world.redis = emptyQueue();
    world.tasks.clear();
    world.queued.clear();
  }),
  lostPart: fc.constantFrom('descriptor', 'index', 'final', 'published').map((part) => (world) => {
    world.redis = { ...world.redis, [part]: undefined };
  }),
  lostResult: fc.nat(SHARDS - 1).map((shard) => (world) => {
    if (world.s3.published === 0 && !hasEnded(world.job?.status)) world.s3.results.delete(shard);
  }),
  down: fc.boolean().map((up) => (world) => void (world.redisUp = up)),
  suspend: fc.boolean().map((suspend) => (world) => changeSpec(world, { suspend })),
  cancel: fc.constant((world) => changeSpec(world, { cancel: true })),
  minutes: fc.constant((world) => void (world.now += 250_000)),
};

/** Everyone does their work, nothing breaks any more. */
function leaveInPeace(world: World): void {
  world.redisUp = true;
  changeSpec(world, { suspend: false });
  for (let round = 0; round < 60; round++) {
    world.now += 6_000;
    reconcile(world);
    for (const kind of TASKS) work(world, kind);
    runShard(world);
  }
}

const history = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: steps['reconcile'] ?? fc.constant(() => undefined) },
    ...Object.values(steps).map((arbitrary) => ({ weight: 1, arbitrary })),
  ),
  { maxLength: 40 },
);

const endings: Record<string, number> = {};

test('whatever is lost and whoever crashes between two writes, a job ends once, with a count for each line', () => {
  fc.assert(
    fc.property(history, (happened) => {
      const world = newWorld();
      for (const step of happened) step(world);
      leaveInPeace(world);
      const { job } = world;
      expect(world.ends).toHaveLength(1);
      expect(job?.status?.state).toBe(world.ends[0]);
      const counts = job?.status?.counts;
      const sum = counts && counts.completed + counts.failed + counts.expired + counts.cancelled;
      expect(sum).toBe(counts?.total);
      if (world.s3.index) expect(counts?.total === TOTAL || job?.status?.state !== 'Completed').toBe(true);
      // An end is carried out for one cause only, apart from a completion that turned out to be none.
      world.finalizeCauses.delete('Complete');
      expect(world.finalizeCauses.size).toBeLessThanOrEqual(1);
      const failed = findCondition(job?.status?.conditions, 'Failed');
      expect(failed === undefined).toBe(job?.status?.state === 'Completed');
      if (job?.spec.cancel === true) expect(job.status?.state).not.toBe('Failed');
      endings[world.ends[0] ?? ''] = (endings[world.ends[0] ?? ''] ?? 0) + 1;
      // Cleaned up, let go, and not touched again.
      expect(world.s3.working).toBe(false);
      expect(job?.metadata.finalizers).toEqual([]);
      expect(reconcile(world)?.status).toBeUndefined();
    }),
    { numRuns: 1_000 },
  );
  // Otherwise the histories have become too tame to show anything.
  expect(Object.keys(endings).sort()).toEqual(['Cancelled', 'Completed', 'Expired']);
});

test('deletion at any moment lets the object go, and cleans up unless Redis is down', () => {
  fc.assert(
    fc.property(history, fc.boolean(), (happened, down) => {
      const world = newWorld();
      for (const step of happened) step(world);
      if (world.job === undefined) return;
      const metadata = { ...world.job.metadata, deletionTimestamp: new Date(world.now).toISOString() };
      // Without a finalizer the API server removes the object at once.
      if ((metadata.finalizers ?? []).length === 0) return;
      world.job = { ...world.job, metadata };
      world.redisUp = !down;
      let seconds = 0;
      while (world.job !== undefined && seconds++ < 40) {
        reconcile(world);
        for (const kind of TASKS) work(world, kind);
        world.now += 1_000;
      }
      expect(world.job).toBeUndefined();
      expect(seconds).toBeLessThanOrEqual(32);
      if (!down) expect([world.s3.working, seconds <= 5]).toEqual([false, true]);
    }),
    { numRuns: 1_000 },
  );
});
