/**
 * One unbroken time of leading: work queues, reconcilers, and the loops that look at Redis. Everything that is only
 * remembered, not written down, begins and ends with it.
 */
import type { InferenceBatchJob } from '../api/inference-batch-job.ts';
import type { ModelDeployment } from '../api/model-deployment.ts';
import { keyOf, type Elector, type Recorder } from '../kube/contract.ts';
import { jsonEqual } from '../kube/merge-patch.ts';
import type { KubeRuntime } from '../kube/runtime.ts';
import type { Clock, FailPoint, Logger } from '../observability/contract.ts';
import { JOB_STATES, type Metrics } from '../observability/metrics.ts';
import { FencedOut, type OperatorQueue, type QueueId } from '../queue/contract.ts';
import { hasEnded, stateOf } from './inference-batch-job/life.ts';
import { createJobReconciler } from './inference-batch-job/reconciler.ts';
import type { Informers } from './informers.ts';
import { fenceOf, NotLeading } from './leadership.ts';
import { startLoop } from './loop.ts';
import type { Availability } from './model-deployment/availability.ts';
import { createDeploymentBoard } from './model-deployment/board.ts';
import { createDeploymentReconciler } from './model-deployment/reconciler.ts';
import { createOwnWrites } from './own-writes.ts';
import { createPlanWriter, differs } from './plan/plan-writer.ts';
import type { OperatorSettings } from './settings.ts';
import { createTokenBucket } from './token-bucket.ts';

/** Reports of one moment are looked at together. */
const REPORTS_TOGETHER_MILLISECONDS = 50;
/** A reconcile that fails is tried again within the bound of a deletion, several times. */
const BACKOFF = { initialMilliseconds: 200, ceilingMilliseconds: 5_000 };

export interface TermOptions {
  kube: KubeRuntime;
  informers: Informers;
  queue: OperatorQueue;
  elector: Elector;
  recorder: Recorder;
  metrics: Metrics;
  clock: Clock;
  logger: Logger;
  failPoint: FailPoint;
  random: () => number;
  settings: OperatorSettings;
  /** Redis has seen a newer leader than us. */
  onFencedOut: (message: string) => void;
}

export interface Term {
  jobChanged(job: InferenceBatchJob): void;
  jobGone(job: InferenceBatchJob): void;
  /** @param specChanged false where only its status, or nothing that matters to others, moved. */
  deploymentChanged(deployment: ModelDeployment, specChanged: boolean): void;
  deploymentGone(deployment: ModelDeployment): void;
  /** The Service `namespace/name`, or a slice of it, has changed. */
  serviceChanged(key: string): void;
  namespaceChanged(name: string): void;
  /** Resolves when nothing is being worked on any more. */
  end(): Promise<void>;
}

export function startTerm(options: TermOptions): Term {
  const { kube, informers, queue, elector, metrics, clock, logger, settings, recorder, failPoint } = options;
  const fence = () => fenceOf(elector);
  const jobs = kube.queue({ name: 'inferencebatchjobs', backoff: BACKOFF });
  const deployments = kube.queue({ name: 'modeldeployments', backoff: BACKOFF });
  const forgotten = new Map<string, QueueId>();
  const seen = new Map<string, Availability>();
  let ended = false;

  const board = createDeploymentBoard({
    deployments: informers.deployments.store,
    services: informers.services.store,
    slices: informers.slices.store,
    queue,
    addresses: { allowLoopback: settings.allowLoopback },
  });
  const plan = createPlanWriter({
    queue,
    fence,
    clock,
    validMilliseconds: settings.planValidMilliseconds,
    renewMilliseconds: settings.planRenewMilliseconds,
  });
  const shared = { client: kube.client, recorder, metrics, failPoint, fence };
  const jobReconciler = createJobReconciler({
    store: informers.jobs.store,
    sources: {
      deployments: informers.deployments.store,
      namespaces: informers.namespaces.store,
      board,
      queue,
      logger,
      random: options.random,
    },
    tools: {
      ...shared,
      queue,
      logger,
      budget: createTokenBucket(settings.progressWritesPerSecond, clock),
      own: createOwnWrites(),
      forgetLater: (uid, deployment) => forgotten.set(uid, deployment),
      now: () => clock.now(),
      priority: settings.job.priority,
    },
    clock,
    settings: settings.job,
  });
  const deploymentReconciler = createDeploymentReconciler({
    ...shared,
    store: informers.deployments.store,
    board,
    own: createOwnWrites(),
    clock,
    settings,
  });

  function jobsOf(key: string): readonly InferenceBatchJob[] {
    return informers.jobs.store.byIndex('deployment', key).filter((job) => !hasEnded(job.status));
  }

  function allLiveJobs(): void {
    for (const job of informers.jobs.store.list()) if (!hasEnded(job.status)) jobs.add(keyOf(job));
  }

  /** Deployments whose replicas can do something else than before, and with them their jobs. */
  function noticeAvailability(): void {
    for (const deployment of informers.deployments.store.list()) {
      const key = keyOf(deployment);
      const now = board.availability(key);
      const before = seen.get(key);
      if (now === undefined || jsonEqual(before, now)) continue;
      seen.set(key, now);
      deployments.add(key);
      const capacityMoved =
        before?.readyReplicas !== now.readyReplicas ||
        before.limit !== now.limit ||
        !jsonEqual(before.blocked, now.blocked);
      if (capacityMoved) for (const job of jobsOf(key)) jobs.add(keyOf(job));
    }
  }

  async function ensurePlan(): Promise<void> {
    try {
      await plan.ensure(board.plan());
    } catch (error) {
      if (error instanceof FencedOut) options.onFencedOut(error.message);
      throw error;
    }
  }

  function reconcilesWith(
    kind: string,
    key: string,
    reconcile: () => Promise<number | undefined>,
    again: (milliseconds: number) => void,
  ): Promise<void> {
    const startedAt = clock.monotonic();
    const observe = (result: string): void =>
      metrics.reconcile.observe({ kind, result }, (clock.monotonic() - startedAt) / 1_000);
    return reconcile().then(
      (after) => {
        observe('ok');
        if (after !== undefined) again(after);
      },
      (error: unknown) => {
        if (error instanceof NotLeading) return observe('notLeading');
        if (error instanceof FencedOut) {
          observe('fencedOut');
          return options.onFencedOut(error.message);
        }
        observe('error');
        logger.debug('reconcile failed', { kind, key, error });
        throw error;
      },
    );
  }

  /** A failed look at Redis leaves holds and numbers as they were; jobs learn of an outage by themselves. */
  const live = startLoop('live', settings.liveMilliseconds, logger, async () => {
    metrics.redisUp.set(queue.healthy() ? 1 : 0);
    jobReconciler.countFed();
    countStates();
    const { liveWorkers: hadWorkers, grantsPaused: wasPaused, heldJobs: wereHeld } = board;
    await board.refresh();
    if (ended) return;
    for (const uid of wereHeld.symmetricDifference(board.heldJobs)) {
      for (const job of informers.jobs.store.byIndex('uid', uid)) jobs.add(keyOf(job));
    }
    const workersCameOrWent = (hadWorkers === 0) !== (board.liveWorkers === 0);
    if (workersCameOrWent || wasPaused !== board.grantsPaused) allLiveJobs();
    noticeAvailability();
    showReplicas();
    await showDepths();
    if (differs(board.plan(), board.capacity)) plan.lost();
    await ensurePlan();
    for (const [uid, deployment] of forgotten) {
      await queue.removeJob(uid, deployment, fence());
      forgotten.delete(uid);
    }
  });

  let next = 0;
  let wasHealthy = true;
  /** One job's descriptor a period: where it is missing, Redis came back without everything else, too. */
  const canary = startLoop('canary', settings.canaryMilliseconds, logger, async () => {
    const healthy = queue.healthy();
    if (healthy && !wasHealthy) lookAtAll('Redis answers again');
    wasHealthy = healthy;
    const described = jobReconciler.described();
    const uid = described[next++ % Math.max(1, described.length)];
    if (uid === undefined || !healthy) return;
    const state = await queue.readJob(uid);
    if (state.descriptor === undefined && jobReconciler.described().includes(uid) && !ended) {
      lookAtAll('Redis has lost a job: writing everything again');
    }
  });

  function lookAtAll(why: string): void {
    logger.info(why, { jobs: jobReconciler.described().length });
    plan.lost();
    live.soon();
    allLiveJobs();
  }

  function showReplicas(): void {
    const addresses = new Set<string>();
    for (const { replicas } of board.plan()) {
      for (const { address, cap } of replicas) {
        addresses.add(address);
        metrics.setReplica(address, board.capacity(address)?.inFlight ?? 0, cap);
      }
    }
    metrics.retainReplicas(addresses);
  }

  async function showDepths(): Promise<void> {
    const queues = board.plan().map((deployment) => deployment.queue);
    metrics.queueDepth.reset();
    for (const { queue: name, waiting } of await queue.readDepths(queues)) {
      metrics.queueDepth.set({ queue: name }, waiting);
    }
  }

  function countStates(): void {
    const byState = new Map<string, number>();
    for (const job of informers.jobs.store.list()) {
      const state = stateOf(job.status);
      byState.set(state, (byState.get(state) ?? 0) + 1);
    }
    for (const state of JOB_STATES) metrics.jobs.set({ state }, byState.get(state) ?? 0);
  }

  const unsubscribe = queue.onEvent((uid) => {
    if (uid === undefined) {
      live.soon();
      canary.soon();
      return;
    }
    for (const job of informers.jobs.store.byIndex('uid', uid)) {
      jobs.addAfter(keyOf(job), REPORTS_TOGETHER_MILLISECONDS);
    }
  });

  function run(): void {
    if (ended) return;
    jobs.run(
      (key) =>
        reconcilesWith(
          'InferenceBatchJob',
          key,
          () => jobReconciler.reconcile(key),
          (after) => jobs.addAfter(key, after),
        ),
      settings.parallelReconciles,
    );
    deployments.run(
      (key) =>
        reconcilesWith(
          'ModelDeployment',
          key,
          () => deploymentReconciler.reconcile(key),
          (after) => deployments.addAfter(key, after),
        ),
      settings.parallelReconciles,
    );
  }

  // Holds are known before the first status is written, or those of a stopped engine would come and go; where Redis
  // does not answer, this fails within seconds and work begins without.
  board.refresh().then(run, run);
  for (const deployment of informers.deployments.store.list()) deployments.add(keyOf(deployment));
  for (const job of informers.jobs.store.list()) jobs.add(keyOf(job));

  function targetChanged(key: string): void {
    board.invalidate(key);
    deployments.add(key);
    live.soon();
  }

  return {
    jobChanged: (job) => jobs.add(keyOf(job)),
    jobGone: (job) => {
      jobReconciler.gone(job);
      live.soon();
    },
    deploymentChanged: (deployment, specChanged) => {
      const key = keyOf(deployment);
      if (!specChanged) {
        deployments.add(key);
        return;
      }
      targetChanged(key);
      for (const job of jobsOf(key)) jobs.add(keyOf(job));
    },
    deploymentGone: (deployment) => {
      const key = keyOf(deployment);
      board.invalidate(key);
      seen.delete(key);
      deploymentReconciler.gone(deployment);
      live.soon();
      for (const job of jobsOf(key)) jobs.add(keyOf(job));
    },
    serviceChanged: (key) => {
      for (const deployment of informers.deployments.store.byIndex('service', key)) {
        targetChanged(keyOf(deployment));
      }
    },
    namespaceChanged: (name) => {
      for (const job of informers.jobs.store.byIndex('namespace', name)) {
        if (!hasEnded(job.status)) jobs.add(keyOf(job));
      }
    },
    end: async () => {
      ended = true;
      unsubscribe();
      await Promise.all([live.stop(), canary.stop(), jobs.drain(), deployments.drain()]);
      for (const state of JOB_STATES) metrics.jobs.set({ state }, 0);
      metrics.retainReplicas(new Set());
    },
  };
}
