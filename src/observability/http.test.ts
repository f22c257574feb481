import { afterEach, describe, expect, test } from '@jest/globals';
import { startEventLoopMonitor } from './event-loop.ts';
import { startHealthServer, type Check, type HealthServer, type HealthServerSettings } from './http.ts';
import { silentLogger } from './logger.ts';
import { createMetrics } from './metrics.ts';

const servers: HealthServer[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop()));
});

async function start(settings: Partial<HealthServerSettings>): Promise<HealthServer> {
  const server = await startHealthServer({
    host: '127.0.0.1',
    port: 0,
    liveness: {},
    readiness: {},
    registry: createMetrics({ role: 'test', version: '0', process: false }).registry,
    logger: silentLogger,
    ...settings,
  });
  servers.push(server);
  return server;
}

async function get(server: HealthServer, path: string, method = 'GET') {
  const response = await fetch(`${server.url}${path}`, { method });
  return { status: response.status, text: await response.text() };
}

describe('the health server', () => {
  test('answers 200 while all checks pass and names each', async () => {
    const server = await start({ readiness: { redis: () => ({ ok: true, detail: 'answers' }) } });
    const { status, text } = await get(server, '/readyz');
    expect(status).toBe(200);
    expect(JSON.parse(text)).toEqual({
      ok: true,
      failed: [],
      checks: { redis: { ok: true, detail: 'answers' } },
    });
  });

  test.each<[string, Check, string]>([
    ['says no', () => ({ ok: false, detail: 'not synced' }), 'not synced'],
    ['throws', () => Promise.reject(new Error('boom')), 'boom'],
    [
      'throws at once',
      () => {
        throw new Error('boom');
      },
      'boom',
    ],
    ['never answers', () => new Promise(() => undefined), 'no answer within'],
  ])('answers 503 and says which check failed when one %s', async (_name, check, detail) => {
    const server = await start({
      readiness: { good: () => ({ ok: true, detail: '' }), bad: check },
      checkTimeoutMilliseconds: 20,
    });
    const { status, text } = await get(server, '/readyz');
    expect(status).toBe(503);
    const report = JSON.parse(text) as { failed: string[]; checks: Record<string, { detail: string }> };
    expect(report.failed).toEqual(['bad']);
    expect(report.checks['bad']?.detail).toContain(detail);
    expect((await get(server, '/livez')).status).toBe(200);
  });

  test('fails readiness, not liveness, while timers come more than 500 ms late', async () => {
    let delay = 0.6;
    const server = await start({ eventLoop: { delaySeconds: () => delay, stop: () => undefined } });
    expect(await get(server, '/readyz')).toMatchObject({
      status: 503,
      text: expect.stringContaining('600 ms') as unknown,
    });
    expect((await get(server, '/livez')).status).toBe(200);
    delay = 0.1;
    expect((await get(server, '/readyz')).status).toBe(200);
  });

  test('serves the page of metrics', async () => {
    const { status, text } = await get(await start({}), '/metrics');
    expect(status).toBe(200);
    expect(text).toContain('# TYPE tidegate_lines_total counter');
  });

  test('refuses other paths and other methods', async () => {
    const server = await start({});
    expect((await get(server, '/')).status).toBe(404);
    expect((await get(server, '/livez', 'POST')).status).toBe(405);
  });
});

test('the event-loop monitor sees a loop that was blocked', async () => {
  const monitor = startEventLoopMonitor();
  // The first tick of its timer must pass before a delay can be seen.
  await new Promise((resolve) => setTimeout(resolve, 30));
  const end = performance.now() + 200;
  while (performance.now() < end);
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect(monitor.delaySeconds(1)).toBeGreaterThan(0.1);
  monitor.stop();
});
