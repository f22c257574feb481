/** A worker: takes control tasks and shards from the queue until it is told to stop. */
import { randomUUID } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { refuseUrl } from '../api/address-rules.ts';
import type { LineRecord } from '../batch/model.ts';
import type { EngineClient } from '../engine/contract.ts';
import type { KubeClient } from '../kube/contract.ts';
import type { Clock, FailPoint, Logger } from '../observability/contract.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { WorkerQueue } from '../queue/contract.ts';
import type { ObjectStore, S3Connection } from '../storage/contract.ts';
import { Credentials } from './credentials.ts';
import { Holds } from './holds.ts';
import type { IndexDependencies } from './index/index-task.ts';
import { ProblemError } from './problems.ts';
import type { WorkerSettings } from './settings.ts';
import { ByteBudget } from './shards/byte-budget.ts';
import { Dispatcher } from './shards/dispatcher.ts';
import { IndexCache } from './shards/open-shard.ts';
import { serveShard } from './shards/serve-shard.ts';
import { StoreAccess } from './store-access.ts';
import { type PublishTasks, runTask } from './tasks.ts';

export interface WorkerDependencies {
  kube: Pick<KubeClient, 'get'>;
  queue: WorkerQueue;
  openStore: (connection: S3Connection) => ObjectStore;
  engine: EngineClient;
  claim: IndexDependencies['claim'];
  publishing: PublishTasks;
  clock: Clock;
  random: () => number;
  logger: Logger;
  metrics: Metrics;
  failPoint: FailPoint;
  allowLoopback: boolean;
  settings: WorkerSettings;
}

export interface Worker {
  /** Takes nothing new, lets requests end, keeps what is finished; resolves within the grace period. */
  stop(): Promise<void>;
}

/** Index chunks (about 1 MB each) and summaries kept. */
const INDEX_CACHE_ENTRIES = 32;
/** How the buffered bytes are divided: bodies to send, answers not yet in S3, results being put together. */
const INPUTS_PART = 3 / 8;
const ANSWERS_PART = 3 / 8;
const RESULTS_PART = 2 / 8;
/** Part of the grace period in which requests may end by themselves; the rest is for writing what is finished. */
const FINISH_PART = 0.6;

export async function startWorker(deps: WorkerDependencies): Promise<Worker> {
  const { queue, engine, clock, random, logger, metrics, failPoint, settings } = deps;
  await mkdir(settings.spillDirectory, { recursive: true });
  const inputs = new ByteBudget(settings.maxBufferedBytes * INPUTS_PART);
  const answers = new ByteBudget(settings.maxBufferedBytes * ANSWERS_PART);
  const results = new ByteBudget(settings.maxBufferedBytes * RESULTS_PART);
  const credentials = new Credentials({
    kube: deps.kube,
    openStore: deps.openStore,
    checkEndpoint: (endpoint) => {
      const refusal = refuseUrl(endpoint, { allowLoopback: deps.allowLoopback });
      if (refusal !== undefined)
        throw new ProblemError('AddressRefused', `s3.endpoint: ${refusal.message}`, false);
    },
    clock,
    settings,
  });
  const access = new StoreAccess({ credentials, clock, random, logger, settings });
  const holds: Holds = new Holds({
    queue,
    engine,
    apiKey: (descriptor) => {
      credentials.engineKeyRefused(descriptor);
      return credentials.engineKey(descriptor);
    },
    clock,
    random,
    logger,
    settings,
    onOpen: () => dispatcher.wake(),
  });
  const dispatcher = new Dispatcher({
    places: queue.places,
    plan: (id) => queue.plan(id),
    isHeld: (id, address) => holds.isHeld(id, address),
    isJobHeld: (id, uid) => holds.isJobHeld(id, uid),
    budget: answers,
    clock,
  });
  const draining = { finish: new AbortController(), abort: new AbortController() };
  const counters = {
    record: ({ outcome, usage }: LineRecord): void => {
      metrics.lines.inc({ outcome });
      metrics.tokens.inc({ kind: 'input' }, usage.inputTokens);
      metrics.tokens.inc({ kind: 'cached_input' }, usage.cachedInputTokens);
      metrics.tokens.inc({ kind: 'output' }, usage.outputTokens);
    },
    retry: (reason: string): void => metrics.retries.inc({ reason }),
  };
  /** How long a task or shard took and how it ended, in the metrics. */
  const timed = async (kind: string, work: () => Promise<void>): Promise<void> => {
    const end = metrics.tasks.startTimer({ kind });
    try {
      await work();
      end({ result: 'ok' });
    } catch (error) {
      end({ result: 'error' });
      throw error;
    }
  };

  const shardDependencies = {
    ...{
      queue,
      engine,
      credentials,
      access,
      dispatcher,
      holds,
      inputs,
      answers,
      results,
      clock,
      random,
      logger,
      failPoint,
    },
    ...{ settings, counters },
    index: new IndexCache(INDEX_CACHE_ENTRIES),
    newWriterId: () => randomUUID().slice(0, 8),
    draining: { finish: draining.finish.signal, abort: draining.abort.signal },
  };
  const taskDependencies = {
    ...{ queue, access, clock, logger, failPoint },
    publishing: deps.publishing,
    draining: draining.finish.signal,
    index: { claim: deps.claim, logger, failPoint, settings },
  };
  queue.serveShards(
    (task, signal) => timed('shard', () => serveShard(shardDependencies, task, signal)),
    settings.hands,
  );
  queue.serveTasks(
    (task, signal) => timed(task.kind, () => runTask(taskDependencies, task, signal)),
    settings.taskConcurrency,
  );
  const retain = setInterval(() => {
    const replicas = queue.replicas();
    if (replicas !== undefined) engine.retain(replicas);
  }, settings.retainMilliseconds);
  logger.info('worker started', { worker: queue.workerId, hands: settings.hands });

  return {
    async stop() {
      const grace = settings.graceMilliseconds;
      clearInterval(retain);
      draining.finish.abort();
      const timer = setTimeout(() => draining.abort.abort(), grace * FINISH_PART);
      await queue.close(grace);
      clearTimeout(timer);
      dispatcher.stop();
      await holds.stop();
      logger.info('worker stopped', { worker: queue.workerId });
    },
  };
}
