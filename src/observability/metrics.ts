/**
 * Every metric of Tidegate, in one place. Rules: prefix `tidegate_`; base units (seconds, bytes); labels are
 * bounded (never a job, tenant, line, key or message); series whose labels are a fixed set exist from the start
 * with 0, so that `rate()` sees the first event.
 */
import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics } from 'prom-client';
import type { EventLoopMonitor } from './event-loop.ts';

export const JOB_STATES = [
  'Pending',
  'Validating',
  'Queued',
  'Running',
  'Throttled',
  'Suspended',
  'Finalizing',
  'Completed',
  'Cancelled',
  'Expired',
  'Failed',
] as const;
export const LINE_OUTCOMES = ['completed', 'failed', 'expired', 'cancelled'] as const;
export const TOKEN_KINDS = ['input', 'cached_input', 'output'] as const;
export const RETRY_REASONS = [
  'Busy',
  'ConnectionLost',
  'ServerError',
  'Timeout',
  'InvalidAnswer',
  'ErrorInAnswer',
  'ConnectionRefused',
  'Unauthorized',
  'RouteNotFound',
  'ModelNotFound',
  'HandedBack',
] as const;
export const TASK_KINDS = ['index', 'publish', 'finalize', 'cleanup', 'shard'] as const;
export const ENGINE_OUTCOMES = ['answer', 'busy', 'fault', 'hold', 'aborted'] as const;

const CALL_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];
const ENGINE_SECONDS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800];
const LOOP_QUANTILES = [0.5, 0.9, 0.99];

/** How many abandoned output prefixes stay visible by name. */
const LEFT_BEHIND_SHOWN = 16;

export interface MetricsSettings {
  role: string;
  version: string;
  eventLoop?: EventLoopMonitor;
  /** CPU, memory, garbage collection and handles of the process under their usual names. Default true. */
  process?: boolean;
}

export type Metrics = ReturnType<typeof createMetrics>;

/** A registry of its own with every metric declared; nothing is shared between two calls. */
export function createMetrics(settings: MetricsSettings) {
  const registry = new Registry();
  const registers = [registry];
  const counter = <L extends string>(name: string, help: string, labelNames: readonly L[] = []) =>
    new Counter<L>({ name: `tidegate_${name}`, help, labelNames, registers });
  const gauge = <L extends string>(name: string, help: string, labelNames: readonly L[] = []) =>
    new Gauge<L>({ name: `tidegate_${name}`, help, labelNames, registers });
  const histogram = <L extends string>(
    name: string,
    help: string,
    labelNames: readonly L[],
    buckets: number[],
  ) => new Histogram<L>({ name: `tidegate_${name}`, help, labelNames, buckets, registers });

  const metrics = {
    registry,
    jobs: gauge('jobs', 'Batch jobs by state.', ['state']),
    lines: counter('lines_total', 'Lines that got their record, by outcome.', ['outcome']),
    tokens: counter('tokens_total', 'Tokens as engines reported them; cached_input is part of input.', [
      'kind',
    ]),
    inFlight: gauge('in_flight', 'Requests in flight at a replica.', ['replica']),
    inFlightLimit: gauge('in_flight_limit', 'Requests that may be in flight at a replica.', ['replica']),
    queueDepth: gauge('queue_depth', 'Entries waiting: control tasks, or shards of a model deployment.', [
      'queue',
    ]),
    retries: counter('retries_total', 'Lines that had to wait or to be sent again, by reason.', ['reason']),
    tasks: histogram(
      'task_duration_seconds',
      'Control tasks and shards as a worker ran them.',
      ['kind', 'result'],
      [0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600],
    ),
    engineRequests: histogram(
      'engine_request_duration_seconds',
      'Requests to inference servers, by how they ended.',
      ['outcome'],
      ENGINE_SECONDS,
    ),
    s3Requests: counter('s3_requests_total', 'Calls to the object store, retries included.', [
      'operation',
      'code',
    ]),
    s3Duration: histogram(
      's3_request_duration_seconds',
      'Calls to the object store.',
      ['operation'],
      CALL_SECONDS,
    ),
    kubernetesRequests: counter('kubernetes_requests_total', 'Calls to the Kubernetes API.', [
      'verb',
      'code',
    ]),
    kubernetesDuration: histogram(
      'kubernetes_request_duration_seconds',
      'Calls to the Kubernetes API, watches excluded.',
      ['verb'],
      CALL_SECONDS,
    ),
    reconcile: histogram(
      'reconcile_duration_seconds',
      'Reconciliations by kind and result.',
      ['kind', 'result'],
      CALL_SECONDS,
    ),
    statusWrites: counter('status_writes_total', 'Status patches sent, by kind.', ['kind']),
    leader: gauge('leader', '1 while this process leads.'),
    redisUp: gauge('redis_up', '1 while Redis answers.'),
    prefixesLeftBehind: counter(
      'prefixes_left_behind_total',
      'Deleted jobs whose working objects could not be removed in time.',
    ),
    prefixLeftBehind: gauge(
      'prefix_left_behind_timestamp_seconds',
      `The last ${LEFT_BEHIND_SHOWN} output prefixes with working objects left behind, and when.`,
      ['prefix'],
    ),
    eventLoopDelay: new Gauge({
      name: 'tidegate_event_loop_delay_seconds',
      help: 'How late timers of this process come, over the last 5 to 10 seconds.',
      labelNames: ['quantile'],
      registers,
      collect() {
        for (const quantile of LOOP_QUANTILES) {
          this.set({ quantile }, settings.eventLoop?.delaySeconds(quantile) ?? 0);
        }
      },
    }),
    build: gauge('build_info', '1, with version and role as labels.', ['version', 'role']),
  };

  for (const state of JOB_STATES) metrics.jobs.set({ state }, 0);
  for (const outcome of LINE_OUTCOMES) metrics.lines.inc({ outcome }, 0);
  for (const kind of TOKEN_KINDS) metrics.tokens.inc({ kind }, 0);
  for (const reason of RETRY_REASONS) metrics.retries.inc({ reason }, 0);
  for (const outcome of ENGINE_OUTCOMES) metrics.engineRequests.zero({ outcome });
  for (const kind of TASK_KINDS) for (const result of ['ok', 'error']) metrics.tasks.zero({ kind, result });
  metrics.leader.set(0);
  metrics.redisUp.set(0);
  metrics.prefixesLeftBehind.inc(0);
  metrics.build.set({ version: settings.version, role: settings.role }, 1);

  if (settings.process !== false) collectDefaultMetrics({ register: registry });

  const replicasSeen = new Set<string>();
  const leftBehind: string[] = [];
  return {
    ...metrics,
    /** Requests in flight at a replica, and how many may be. */
    setReplica(replica: string, inFlight: number, limit: number): void {
      replicasSeen.add(replica);
      metrics.inFlight.set({ replica }, inFlight);
      metrics.inFlightLimit.set({ replica }, limit);
    },
    /** Forgets the series of replicas that are gone. */
    retainReplicas(addresses: ReadonlySet<string>): void {
      for (const replica of replicasSeen) {
        if (addresses.has(replica)) continue;
        replicasSeen.delete(replica);
        metrics.inFlight.remove({ replica });
        metrics.inFlightLimit.remove({ replica });
      }
    },
    /** Counts a clean-up that was given up; only the last few are named, so that the page stays bounded. */
    leaveBehind(prefix: string, atEpochMilliseconds: number): void {
      metrics.prefixesLeftBehind.inc();
      if (!leftBehind.includes(prefix)) leftBehind.push(prefix);
      metrics.prefixLeftBehind.set({ prefix }, atEpochMilliseconds / 1_000);
      const forgotten = leftBehind.length > LEFT_BEHIND_SHOWN ? leftBehind.shift() : undefined;
      if (forgotten !== undefined) metrics.prefixLeftBehind.remove({ prefix: forgotten });
    },
  };
}

/** The label of a call that ended with this HTTP status; `none` where no answer came. */
export const codeLabel = (status: number | undefined): string =>
  status !== undefined && status >= 100 && status <= 599 ? String(Math.trunc(status)) : 'none';
