/** `/livez`, `/readyz` and `/metrics` of a role: what Kubernetes and Prometheus ask. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';
import type { Logger } from './contract.ts';
import type { EventLoopMonitor } from './event-loop.ts';

export interface CheckResult {
  ok: boolean;
  /** What was found, for people; never a secret. */
  detail: string;
}

/** Must answer fast; one that throws, or takes longer than the time limit, has failed. */
export type Check = () => CheckResult | Promise<CheckResult>;

export interface HealthServerSettings {
  host: string;
  /** 0 picks a free one. */
  port: number;
  /** A failed one makes Kubernetes restart the process: only what a restart can heal. */
  liveness: Readonly<Record<string, Check>>;
  /** A failed one takes the process out of rotation. */
  readiness: Readonly<Record<string, Check>>;
  registry: Registry;
  logger: Logger;
  /** Adds the check `eventLoop` to readiness: delay p99 above 500 ms fails. */
  eventLoop?: EventLoopMonitor;
  checkTimeoutMilliseconds?: number;
}

export interface HealthServer {
  readonly port: number;
  readonly url: string;
  stop(): Promise<void>;
}

const MAX_LOOP_DELAY_SECONDS = 0.5;

/** A check on the delay of timers of this process, from `mechanics`: above 500 ms locks and probes are in danger. */
export const eventLoopCheck =
  (eventLoop: EventLoopMonitor): Check =>
  () => {
    const delay = eventLoop.delaySeconds(0.99);
    return {
      ok: delay <= MAX_LOOP_DELAY_SECONDS,
      detail: `delay p99 ${Math.round(delay * 1_000)} ms, allowed ${MAX_LOOP_DELAY_SECONDS * 1_000} ms`,
    };
  };

export async function startHealthServer(settings: HealthServerSettings): Promise<HealthServer> {
  const timeout = settings.checkTimeoutMilliseconds ?? 2_000;
  const readiness = {
    ...settings.readiness,
    ...(settings.eventLoop === undefined ? {} : { eventLoop: eventLoopCheck(settings.eventLoop) }),
  };
  const respond = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = (request.url ?? '/').split('?', 1)[0];
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('allow', 'GET, HEAD');
      return sendJson(response, 405, { error: `${request.method} is not allowed here, only GET and HEAD` });
    }
    switch (path) {
      case '/livez':
        return sendReport(response, await runChecks(settings.liveness, timeout));
      case '/readyz':
        return sendReport(response, await runChecks(readiness, timeout));
      case '/metrics': {
        const page = await settings.registry.metrics();
        response.writeHead(200, { 'content-type': settings.registry.contentType }).end(page);
        return;
      }
      default:
        return sendJson(response, 404, { error: 'not found; there are /livez, /readyz and /metrics' });
    }
  };
  const server = createServer((request, response) => {
    respond(request, response).catch((error: unknown) => {
      settings.logger.error('health request failed', { error, path: request.url });
      if (response.headersSent) response.destroy();
      else sendJson(response, 500, { error: 'internal error; see the log' });
    });
  });
  // Longer than the idle time of common load balancers, so that it is they who close.
  server.keepAliveTimeout = 75_000;
  server.headersTimeout = 76_000;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(settings.port, settings.host, resolve);
  });
  const { port } = server.address() as AddressInfo;
  const host = settings.host.includes(':') ? `[${settings.host}]` : settings.host;
  return {
    port,
    url: `http://${host}:${port}`,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

interface Report {
  ok: boolean;
  /** Names of the failed checks, first thing to read. */
  failed: string[];
  checks: Record<string, CheckResult>;
}

async function runChecks(
  checks: Readonly<Record<string, Check>>,
  timeoutMilliseconds: number,
): Promise<Report> {
  const results = await Promise.all(
    Object.entries(checks).map(
      async ([name, check]) => [name, await runCheck(check, timeoutMilliseconds)] as const,
    ),
  );
  const failed = results.filter(([, result]) => !result.ok).map(([name]) => name);
  return { ok: failed.length === 0, failed, checks: Object.fromEntries(results) };
}

async function runCheck(check: Check, timeoutMilliseconds: number): Promise<CheckResult> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<CheckResult>((resolve) => {
    timer = setTimeout(
      () => resolve({ ok: false, detail: `no answer within ${timeoutMilliseconds} ms` }),
      timeoutMilliseconds,
    );
  });
  try {
    return await Promise.race([check(), late]);
  } catch (error) {
    return { ok: false, detail: error instanceof Error ? error.message : String(error) };
  } finally {
    clearTimeout(timer);
  }
}

const sendReport = (response: ServerResponse, report: Report): void =>
  sendJson(response, report.ok ? 200 : 503, report);

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response
    .writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' })
    .end(`${JSON.stringify(body)}\n`);
}
