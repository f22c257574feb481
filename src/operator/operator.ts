/**
 * The role `operator`: watches always, writes only while leading. A standby keeps its watches warm, so that it takes
 * over within a lease and not within a list of everything.
 */
import { keyOf, type Change, type Elector, type KubeObject, type Recorder } from '../kube/contract.ts';
import { jsonEqual } from '../kube/merge-patch.ts';
import type { KubeRuntime } from '../kube/runtime.ts';
import type { Clock, FailPoint, Logger } from '../observability/contract.ts';
import type { Check } from '../observability/http.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { OperatorQueue } from '../queue/contract.ts';
import { allOf, createInformers, type Informers } from './informers.ts';
import { SERVICE_NAME_LABEL } from './model-deployment/replicas.ts';
import type { OperatorSettings } from './settings.ts';
import { startTerm, type Term } from './term.ts';

export interface OperatorOptions {
  kube: KubeRuntime;
  queue: OperatorQueue;
  /** Not started yet. */
  elector: Elector;
  recorder: Recorder;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  settings: OperatorSettings;
  failPoint: FailPoint;
  /** Uniform in [0, 1); spreads alarms of many jobs. */
  random?: () => number;
}

export interface Operator {
  readonly isLeading: boolean;
  readonly liveness: Readonly<Record<string, Check>>;
  readonly readiness: Readonly<Record<string, Check>>;
  /** Resolves, with the reason, when this process can be of no more use and should be replaced by a new one. */
  readonly broken: Promise<string>;
  /** Lets running reconciles end, then releases the lease and stops watching. Idempotent. */
  stop(): Promise<void>;
}

/** A watch that has been silent for longer than several of its own idle limits is not being repaired by itself. */
const SILENT_WATCH_MILLISECONDS = 300_000;

export function startOperator(options: OperatorOptions): Operator {
  const { kube, elector, logger, metrics } = options;
  const informers = createInformers(kube);
  const broken = Promise.withResolvers<string>();
  const stopping = new AbortController();
  let term: Term | undefined;
  let ending: Promise<void> = Promise.resolve();
  let brokenBecause: string | undefined;
  let stopped: Promise<void> | undefined;

  forward(informers, () => term);
  for (const informer of allOf(informers)) informer.start();

  /** A term begins when the picture of the cluster is whole, and only after the last one has let go. */
  async function lead(signal: AbortSignal): Promise<void> {
    const whole = AbortSignal.any([signal, stopping.signal]);
    await ending;
    await Promise.all(allOf(informers).map((informer) => informer.synced(whole)));
    if (whole.aborted || brokenBecause !== undefined) return;
    logger.info('leading', { jobs: informers.jobs.store.size });
    metrics.leader.set(1);
    term = startTerm({
      ...options,
      informers,
      random: options.random ?? Math.random,
      onFencedOut: (message) => stepDown(`fenced out: ${message}`),
    });
  }

  function endTerm(): Promise<void> {
    metrics.leader.set(0);
    const last = term;
    term = undefined;
    if (last !== undefined) ending = ending.then(() => last.end());
    return ending;
  }

  /** Another leader has written: our lease is a mistake. A new process starts from what is true. */
  function stepDown(reason: string): void {
    if (brokenBecause !== undefined) return;
    brokenBecause = reason;
    logger.error('stepping down', { reason });
    void endTerm()
      .then(() => elector.stop())
      .catch((error: unknown) => logger.warn('lease not released', { error }))
      .finally(() => broken.resolve(reason));
  }

  elector.start({
    onLeading: (signal) => {
      lead(signal).catch((error: unknown) => {
        if (!signal.aborted && !stopping.signal.aborted)
          stepDown(`could not start to lead: ${String(error)}`);
      });
    },
    onLost: (reason) => {
      logger.warn('not leading any more', { reason });
      void endTerm();
    },
  });

  const silentest = (): number => Math.max(...allOf(informers).map((informer) => informer.sinceLastActivity));
  return {
    get isLeading() {
      return term !== undefined && elector.isLeader;
    },
    broken: broken.promise,
    liveness: {
      leadership: () => ({
        ok: brokenBecause === undefined,
        detail: brokenBecause ?? (elector.isLeader ? 'leading' : 'standing by'),
      }),
    },
    readiness: {
      watches: () => {
        const unsynced = allOf(informers).filter((informer) => !informer.hasSynced).length;
        const silent = Math.round(silentest() / 1_000);
        return {
          ok: unsynced === 0 && silentest() < SILENT_WATCH_MILLISECONDS,
          detail: unsynced > 0 ? `${unsynced} kinds not listed yet` : `last heard of ${silent} s ago`,
        };
      },
      election: () => ({
        ok: elector.healthy(),
        detail: elector.isLeader ? 'leading' : 'standing by',
      }),
      redis: () => ({
        ok: options.queue.healthy(),
        detail: options.queue.healthy() ? 'answers' : 'does not answer',
      }),
    },
    stop: () => {
      stopped ??= (async () => {
        stopping.abort();
        await endTerm();
        await elector.stop();
        await Promise.all(allOf(informers).map((informer) => informer.stop()));
      })();
      return stopped;
    },
  };
}

/** Handlers only name what has to be looked at; while nobody leads, nothing has to. */
function forward(informers: Informers, term: () => Term | undefined): void {
  informers.jobs.onChange((change) => {
    if (change.type === 'Deleted') term()?.jobGone(change.object);
    else term()?.jobChanged(change.object);
  });
  informers.deployments.onChange((change) => {
    if (change.type === 'Deleted') term()?.deploymentGone(change.object);
    else term()?.deploymentChanged(change.object, change.type === 'Added' || !sameSpec(change));
  });
  informers.services.onChange((change) => term()?.serviceChanged(keyOf(change.object)));
  informers.slices.onChange(({ object }) => {
    const service = object.metadata.labels?.[SERVICE_NAME_LABEL];
    if (service !== undefined) term()?.serviceChanged(`${object.metadata.namespace}/${service}`);
  });
  informers.namespaces.onChange((change) => {
    if (change.type === 'Updated' && jsonEqual(change.old.metadata.labels, change.object.metadata.labels))
      return;
    term()?.namespaceChanged(change.object.metadata.name);
  });
}

function sameSpec(change: Extract<Change<KubeObject>, { type: 'Updated' }>): boolean {
  const { metadata } = change.object;
  const old = change.old.metadata;
  return old.generation === metadata.generation && old.deletionTimestamp === metadata.deletionTimestamp;
}
