/**
 * ModelDeployments over a Service, with real EndpointSlices. Stack and engines run in a network namespace, on
 * addresses that are no loopback, and Tidegate without the flag that allows those: as in a cluster.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import type { EngineCall } from '../checker/check.ts';
import { chatLines } from '../harness/input.ts';
import { batchJob, conditionOf, hasEnded, modelDeployment } from '../harness/objects.ts';
import { JOB, openScenario, type Scenario } from '../harness/scenario.ts';
import { until } from '../harness/until.ts';
import { SERVICE, SERVICE_PORT, testService, type DeploymentStatus, type TestService } from './service.ts';

const MINUTES = 60_000;
/** Places on each replica: few, so that a job lasts as long as the test wants to look at it. */
const PLACES = 4;

const missing = process.env['TIDEGATE_NETNS_MISSING'];
const [suite, title] =
  missing === undefined
    ? [describe, 'a ModelDeployment over a Service']
    : [describe.skip, `a ModelDeployment over a Service (skipped: ${missing})`];

const open: Scenario[] = [];
const killed = new Set<string>();
afterEach(async () => {
  for (const part of killed) await open[0]?.stack.control.restart(part);
  killed.clear();
  for (const each of open.splice(0)) {
    await each.close();
    // What it says of an engine, such as "terminating", would hold for the next test's deployment too.
    await testService(each).removeDeployment();
  }
});

async function scenario(name: string): Promise<{ s: Scenario; service: TestService }> {
  const s = await openScenario(name, {
    deployment: {
      target: { service: { name: SERVICE, port: SERVICE_PORT } },
      headroom: { maxAsyncInFlightPerReplica: PLACES },
    },
  });
  open.push(s);
  return { s, service: testService(s) };
}

/** Starts a job whose calls take this long until the test lets them go. */
async function startJob(s: Scenario, lines: number, callMilliseconds: number, spec = {}): Promise<string> {
  const key = await s.putInput('in.jsonl', chatLines(s.namespace, lines));
  if (callMilliseconds > 0) await s.engineFaults({ fault: 'slow', delayMilliseconds: callMilliseconds });
  await s.createJob({ keys: [key], spec });
  return key;
}

async function untilCalls(
  s: Scenario,
  service: TestService,
  engine: number,
  what: string,
  holds: (calls: EngineCall[]) => boolean,
): Promise<EngineCall[]> {
  const calls = (): Promise<EngineCall[]> => Promise.resolve(service.calls(engine));
  return until(`engine ${engine} has ${what}`, calls, holds, {
    withinSeconds: 30,
    explain: () => s.explain(),
  });
}

const ended = (calls: readonly EngineCall[], ending: EngineCall['ending']): number =>
  calls.filter((call) => call.ending === ending).length;
const running = (calls: readonly EngineCall[]): number => ended(calls, 'open');
const readyOf = ({ conditions }: DeploymentStatus) => conditions?.find(({ type }) => type === 'Ready');

/** Lets the calls go, waits for the end of the job and looks at everything it left. */
async function expectComplete(
  s: Scenario,
  key: string,
  lines: number,
  repeatedCalls: number = 0,
): Promise<void> {
  await s.engineFaults();
  const job = await s.untilEnded();
  expect(job.status?.counts).toEqual({ total: lines, completed: lines, failed: 0, expired: 0, cancelled: 0 });
  expect(await s.violations(job, [key], { repeatedCalls })).toEqual([]);
}

suite(title, () => {
  test(
    'sends work to every ready endpoint, each at its own address and port',
    async () => {
      const { s, service } = await scenario('both');
      await service.put();
      await service.putReplica(0);
      await service.putReplica(1);
      const key = await startJob(s, 300, 20);
      await expectComplete(s, key, 300);
      for (const engine of [0, 1]) expect(ended(service.calls(engine), 'answered')).toBeGreaterThan(0);
      await service.untilDeployment('has two replicas', ({ replicas, readyReplicas }) =>
        [replicas, readyReplicas].every((count) => count === 2),
      );
    },
    2 * MINUTES,
  );

  test(
    'sends nothing to an endpoint that is not ready, and work as soon as it is',
    async () => {
      const { s, service } = await scenario('unready');
      await service.put();
      await service.putReplica(0, { ready: false });
      await service.putReplica(1, { ready: false });
      const key = await startJob(s, 300, 200);
      const status = await service.untilDeployment('sees its replicas', ({ replicas }) => replicas === 2);
      expect(readyOf(status)).toMatchObject({
        status: 'False',
        reason: 'NoReadyReplicas',
        message: 'none of 2 replicas is ready',
      });
      await s.untilJob(
        'waits for a replica',
        (job) => conditionOf(job, 'Running')?.reason === 'NoReadyReplicas',
      );
      expect(s.calls()).toEqual([]);

      await service.putReplica(0, { ready: true });
      await untilCalls(
        s,
        service,
        0,
        'answered two rounds',
        (calls) => ended(calls, 'answered') > 2 * PLACES,
      );
      expect(service.calls(1)).toEqual([]);

      await service.putReplica(1, { ready: true });
      await untilCalls(s, service, 1, 'work', (calls) => calls.length > 0);
      await expectComplete(s, key, 300);
    },
    2 * MINUTES,
  );

  test.each([
    ['a terminating endpoint', false],
    ['one that is called ready to its end (publishNotReadyAddresses)', true],
  ])(
    'sends nothing new to %s, and lets what runs there finish',
    async (_, ready) => {
      const { s, service } = await scenario('terminating');
      await service.put();
      await service.putReplica(0);
      await service.putReplica(1);
      const key = await startJob(s, 240, 2_000);
      await untilCalls(s, service, 1, 'all its places taken', (calls) => running(calls) === PLACES);
      await service.putReplica(1, { ready, serving: true, terminating: true });
      await service.untilDeployment('has one ready replica', ({ readyReplicas }) => readyReplicas === 1);
      const last = await untilCalls(s, service, 1, 'finished what it had', (calls) => running(calls) === 0);

      await s.engineFaults({ fault: 'slow', delayMilliseconds: 200 });
      const before = service.calls(0).length;
      await untilCalls(s, service, 0, 'more work', (calls) => calls.length >= before + 3 * PLACES);
      expect(hasEnded(await s.job())).toBe(false);
      expect(service.calls(1)).toHaveLength(last.length);
      expect(ended(service.calls(1), 'answered')).toBe(last.length);
      await expectComplete(s, key, 240);
    },
    2 * MINUTES,
  );

  test(
    'runs the lines of a replica that dies elsewhere; refused connections cost them no attempt',
    async () => {
      const { s, service } = await scenario('dies');
      await service.put();
      await service.putReplica(0);
      await service.putReplica(1);
      // One attempt is what the death costs a line; a second one that is lost would fail it.
      const key = await startJob(s, 240, 500, { retry: { maxAttempts: 2 } });
      await untilCalls(s, service, 1, 'all its places taken', (calls) => running(calls) === PLACES);
      killed.add('engine-1');
      await s.stack.control.signal('engine-1', 'SIGKILL');
      const cut = running(service.calls(1));

      // It is still listed: Tidegate finds out by itself, before Kubernetes does.
      const held = await service.untilDeployment('holds it', ({ readyReplicas }) => readyReplicas === 1);
      expect(held.replicas).toBe(2);
      expect(readyOf(held)?.status).toBe('True');
      await service.removeReplica(1);
      await service.untilDeployment('has one replica', ({ replicas }) => replicas === 1);
      expect(hasEnded(await s.job())).toBe(false);

      expect(cut).toBeGreaterThan(0);
      await expectComplete(s, key, 240, cut);
      const attempts = new Map<string | undefined, number>();
      for (const { marker } of s.calls()) attempts.set(marker, (attempts.get(marker) ?? 0) + 1);
      expect(Math.max(...attempts.values())).toBeLessThanOrEqual(2);
    },
    2 * MINUTES,
  );

  test(
    'runs the lines of a replica elsewhere that is listed no more, though it still answers',
    async () => {
      const { s, service } = await scenario('unlisted');
      await service.put();
      await service.putReplica(0);
      await service.putReplica(1);
      const key = await startJob(s, 240, 1_000);
      await untilCalls(s, service, 1, 'all its places taken', (calls) => running(calls) === PLACES);
      await service.removeReplica(1);
      await service.untilDeployment('has one replica', ({ replicas }) => replicas === 1);
      const last = await untilCalls(s, service, 1, 'nothing to do', (calls) => running(calls) === 0);
      const before = service.calls(0).length;
      await untilCalls(s, service, 0, 'more work', (calls) => calls.length >= before + 2 * PLACES);
      expect(service.calls(1)).toHaveLength(last.length);
      await expectComplete(s, key, 240, ended(last, 'aborted'));
    },
    2 * MINUTES,
  );

  test(
    'gives work to a replica that is added in mid-run',
    async () => {
      const { s, service } = await scenario('added');
      await service.put();
      await service.putReplica(0);
      const key = await startJob(s, 200, 500);
      await untilCalls(s, service, 0, 'work', (calls) => calls.length >= PLACES);
      await service.putReplica(1);
      await untilCalls(s, service, 1, 'all its places taken', (calls) => running(calls) === PLACES);
      expect(hasEnded(await s.job())).toBe(false);
      await expectComplete(s, key, 200);
    },
    2 * MINUTES,
  );

  test(
    'names a missing Service and a missing port, and goes on when both are there',
    async () => {
      const { s, service } = await scenario('missing');
      await service.putReplica(0);
      const key = await startJob(s, 20, 0);
      const absent = await service.untilDeployment(
        'misses its Service',
        (status) => readyOf(status)?.reason === 'ServiceNotFound',
      );
      expect(readyOf(absent)).toMatchObject({
        status: 'False',
        message: `Service ${SERVICE} does not exist in this namespace`,
      });
      const waiting = await s.untilJob(
        'says what it waits for',
        (job) => conditionOf(job, 'Running')?.reason === 'NoReadyReplicas',
      );
      expect(waiting.status?.message).toContain(`Service ${SERVICE} does not exist`);

      await service.put([
        { name: 'metrics', port: 9090 },
        { name: 'http', port: 8080 },
      ]);
      const portless = await service.untilDeployment(
        'misses its port',
        (status) => readyOf(status)?.reason === 'PortNotFound',
      );
      expect(readyOf(portless)).toMatchObject({
        status: 'False',
        message: `Service ${SERVICE} has no port ${SERVICE_PORT}; it has 9090, 8080`,
      });
      expect(s.calls()).toEqual([]);

      // The port of the Service leads to that of the endpoints by its name; the numbers have nothing in common.
      await service.put();
      await expectComplete(s, key, 20);
    },
    2 * MINUTES,
  );

  test(
    'counts an endpoint once that stands in two slices, or in one of each family',
    async () => {
      const { s, service } = await scenario('twice');
      await service.put();
      await service.putReplica(0);
      await service.putReplica(0, { ready: false }, 'moving');
      const { port } = new URL(s.stack.description.engines[0]?.url ?? '');
      expect((await service.writeSlice('of-ipv6', '2001:db8::10', Number(port))).status).toBeLessThan(300);
      const key = await startJob(s, 40, 0);
      await expectComplete(s, key, 40);
      const status = await service.untilDeployment(
        'is ready',
        (seen) => readyOf(seen)?.message === '1 of 1 replicas take work',
      );
      expect(status).toMatchObject({ replicas: 1, readyReplicas: 1 });
    },
    2 * MINUTES,
  );
});

suite(title.replace('over a Service', 'without the flag for loopback'), () => {
  test('runs with roles that do not have it', async () => {
    const { s } = await scenario('flag');
    const { parts } = await s.stack.control.describe();
    const roles = parts.filter(({ name }) => /^(operator|worker)-/.test(name));
    expect(roles.length).toBeGreaterThan(1);
    for (const { pid } of roles) {
      const environment = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
      expect(environment.filter((entry) => entry.startsWith('TIDEGATE_ALLOW_LOOPBACK'))).toEqual([]);
      expect(readFileSync(`/proc/${pid}/cmdline`, 'utf8')).not.toContain('loopback');
    }
  });

  test.each([
    ['a loopback address', 'http://127.0.0.1:8000', /127\.0\.0\.1 is this machine itself/],
    [
      'a loopback address written as one number',
      'http://2130706433:8000',
      /127\.0\.0\.1 is this machine itself/,
    ],
    ['a link-local address', 'http://169.254.169.254', /169\.254\.169\.254 is link-local/],
  ])(
    'refuses a replica at %s',
    async (_, url, message) => {
      const s = await openScenario('refused', { deployment: false });
      open.push(s);
      await s.create(modelDeployment(s.namespace, [url]));
      const status = await testService(s).untilDeployment(
        'is refused',
        (seen) => readyOf(seen)?.reason === 'AddressRefused',
      );
      expect(readyOf(status)).toMatchObject({ status: 'False', message: expect.stringMatching(message) });
    },
    MINUTES,
  );

  test.each(['127.0.0.1', '169.254.169.254'])(
    'meets no slice with %s: the API server refuses it',
    async (address) => {
      const { service } = await scenario('slice');
      const answer = await service.writeSlice('bad', address, 8000);
      expect(answer).toMatchObject({ status: 422, body: { reason: 'Invalid' } });
    },
  );

  test(
    "leaves out an endpoint at a cloud's metadata service, which the API server takes",
    async () => {
      const { s, service } = await scenario('metadata');
      await service.put();
      await service.putReplica(0);
      expect((await service.writeSlice('metadata', '100.100.100.200', 80)).status).toBeLessThan(300);
      const key = await startJob(s, 20, 0);
      await expectComplete(s, key, 20);
      const status = await service.untilDeployment('is ready', (seen) => readyOf(seen)?.status === 'True');
      expect(status.replicas).toBe(1);
    },
    2 * MINUTES,
  );

  test(
    'refuses a loopback address as S3 endpoint',
    async () => {
      const { s, service } = await scenario('s3');
      await service.put();
      const { description } = s.stack;
      const endpoint = 'http://127.0.0.1:9000';
      await s.create(
        batchJob(
          { ...description, s3: { ...description.s3, endpoint } },
          { name: JOB, namespace: s.namespace, keys: ['in.jsonl'], outputPrefix: `${s.namespace}/out/` },
        ),
      );
      const job = await s.untilJob('is refused', ({ status }) =>
        (status?.conditions ?? []).some(({ reason }) => reason === 'AddressRefused'),
      );
      expect(JSON.stringify(job.status?.conditions)).toContain('127.0.0.1 is this machine itself');
    },
    MINUTES,
  );
});
