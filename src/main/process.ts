/** What every role's process has: logger, metrics, health server, fail points, and an orderly end. */
import { systemClock } from '../observability/clock.ts';
import type { Clock, FailPoint, Logger } from '../observability/contract.ts';
import { startEventLoopMonitor } from '../observability/event-loop.ts';
import { createFailPoints } from '../observability/failpoints.ts';
import { type Check, startHealthServer } from '../observability/http.ts';
import { createLogger } from '../observability/logger.ts';
import { codeLabel, createMetrics, type Metrics } from '../observability/metrics.ts';
import { createKubeRuntime, type KubeObservers, type KubeRuntime } from '../kube/runtime.ts';
import { defaultCredentials } from '../kube/credentials.ts';
import { type Environment, version } from './environment.ts';

export interface RoleProcess {
  env: Environment;
  clock: Clock;
  random: () => number;
  logger: Logger;
  metrics: Metrics;
  failPoint: FailPoint;
}

/** A started role: what health checks ask, and how it ends. */
export interface RunningRole {
  liveness: Readonly<Record<string, Check>>;
  readiness: Readonly<Record<string, Check>>;
  stop: () => Promise<void>;
  /** Resolves when the role cannot go on by itself, with why; the process then ends with an error. */
  failed?: Promise<string>;
}

/**
 * Runs a role until SIGTERM or SIGINT, then stops it in order. A second signal ends the process at once. A rejection
 * that nobody handled ends it too: going on with unknown state would be worse than the restart that follows.
 */
export async function runRole(
  role: string,
  env: Environment,
  start: (process: RoleProcess) => Promise<RunningRole>,
): Promise<void> {
  const clock = systemClock;
  const logger = createLogger({ level: env.logLevel, fields: { role, pod: env.podName } });
  const eventLoop = startEventLoopMonitor();
  const metrics = createMetrics({ role, version: version(), eventLoop });
  const failPoint = createFailPoints(env.failPoints, { logger });
  process.on('unhandledRejection', (error) => endWith(logger, 'unhandled rejection', error));
  process.on('uncaughtException', (error) => endWith(logger, 'uncaught exception', error));

  const stopped = untilStopSignal(logger);
  const running = await start({ env, clock, random: Math.random, logger, metrics, failPoint });
  const health = await startHealthServer({
    host: env.httpHost,
    port: env.httpPort,
    liveness: running.liveness,
    readiness: running.readiness,
    registry: metrics.registry,
    logger,
    eventLoop,
  });
  logger.info('started', { version: version(), health: health.url });
  const failure = await Promise.race([
    stopped.then(() => undefined),
    running.failed ?? new Promise<never>(() => undefined),
  ]);
  if (failure !== undefined) logger.error('cannot go on', { reason: failure });
  await running.stop();
  await health.stop();
  eventLoop.stop();
  logger.info('stopped');
  // Whatever still holds the event loop (a half-open socket) must not keep the Pod.
  process.exit(failure === undefined ? 0 : 1);
}

function untilStopSignal(logger: Logger): Promise<void> {
  return new Promise((resolve) => {
    let signals = 0;
    const onSignal = (signal: NodeJS.Signals): void => {
      signals += 1;
      logger.info('told to stop', { signal });
      if (signals > 1) process.exit(1);
      resolve();
    };
    process.on('SIGTERM', onSignal);
    process.on('SIGINT', onSignal);
  });
}

function endWith(logger: Logger, what: string, error: unknown): void {
  logger.error(what, { error });
  process.exitCode = 1;
  setImmediate(() => process.exit(1));
}

/** The cluster that KUBECONFIG, ~/.kube/config or the Pod's own account names. */
export function connectToCluster(
  role: string,
  { clock, random, logger, metrics }: RoleProcess,
  observers: KubeObservers = {},
): KubeRuntime {
  return createKubeRuntime({
    credentials: defaultCredentials({ clock, environment: process.env }),
    clock,
    random,
    logger,
    transport: { userAgent: `tidegate-${role}/${version()}` },
    onCall: ({ verb, status, milliseconds }) => {
      metrics.kubernetesRequests.inc({ verb, code: codeLabel(status) });
      if (verb !== 'watch') metrics.kubernetesDuration.observe({ verb }, milliseconds / 1000);
    },
    ...observers,
  });
}

/** An outage of Redis heals without a restart; a connection that stays dead this long may not. */
const DEAD_CONNECTION_MILLISECONDS = 5 * 60_000;

/** Readiness follows Redis at once; liveness only after minutes, when a fresh process is worth a try. */
export function redisChecks(
  queue: { healthy: () => boolean },
  { clock, metrics }: RoleProcess,
): Pick<RunningRole, 'liveness' | 'readiness'> {
  let healthyAt = clock.monotonic();
  const awaySeconds = (): number => {
    const now = clock.monotonic();
    if (queue.healthy()) healthyAt = now;
    metrics.redisUp.set(healthyAt === now ? 1 : 0);
    return (now - healthyAt) / 1000;
  };
  const result = (ok: boolean, seconds: number) => ({
    ok,
    detail: seconds === 0 ? 'Redis answers' : `no answer of Redis for ${Math.round(seconds)} s`,
  });
  return {
    liveness: {
      redis: () => {
        const seconds = awaySeconds();
        return result(seconds * 1000 < DEAD_CONNECTION_MILLISECONDS, seconds);
      },
    },
    readiness: {
      redis: () => {
        const seconds = awaySeconds();
        return result(seconds === 0, seconds);
      },
    },
  };
}
