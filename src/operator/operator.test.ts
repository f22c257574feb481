/** Whole reconciles against a real API server; workers are played by the test. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { randomUUID } from 'node:crypto';
import { kubectl } from '../../hack/stack/kubectl.ts';
import { startKube, type Kube } from '../../hack/stack/kube.ts';
import { FINALIZER } from '../api/group.ts';
import type { InferenceBatchJob, InferenceBatchJobSpec } from '../api/inference-batch-job.ts';
import type { ModelDeployment } from '../api/model-deployment.ts';
import { findCondition, isConditionTrue } from '../kube/conditions.ts';
import type { Recorder } from '../kube/contract.ts';
import { kubeconfigCredentials } from '../kube/credentials.ts';
import { createKubeRuntime, type KubeRuntime } from '../kube/runtime.ts';
import { memoryLogger, type LogLine } from '../kube/testing/manual-time.ts';
import { until } from '../kube/testing/real-time.ts';
import { systemClock } from '../observability/clock.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { startOperator, type Operator } from './operator.ts';
import { defaultOperatorSettings, type OperatorSettings } from './settings.ts';
import { counts, finalReport, indexReport, problemOf } from './testing/builders.ts';
import { jobHoldScope } from '../queue/contract.ts';
import { MemoryQueue } from './testing/memory-queue.ts';

const LIMIT = 30_000;

let kube: Kube;
let kubeconfig: string;
beforeAll(async () => {
  kube = await startKube();
  const run = (...args: string[]) => kubectl(args, { kubeconfig: kube.adminKubeconfig });
  await run('apply', '-k', 'crds');
  await run('wait', '--for=condition=Established', '--timeout=60s', 'crd', '--all');
  await run('apply', '-k', 'config/rbac');
  // The rights that an installation gives, no more.
  kubeconfig = await kube.kubeconfigFor({ namespace: 'tidegate-system', name: 'tidegate-operator' });
}, 120_000);
afterAll(() => kube?.stop());

const started: { operator: Operator; recorder: Recorder; runtime: KubeRuntime }[] = [];
afterEach(async () => {
  for (const { operator, recorder, runtime } of started.splice(0)) {
    await operator.stop();
    await recorder.close();
    await runtime.close();
  }
});

interface Running {
  operator: Operator;
  queue: MemoryQueue;
  metrics: Metrics;
  lines: LogLine[];
  namespace: string;
  /** Writes to the API server that this operator made, leases and events left out. */
  writes: () => number;
}

let cluster = 0;

/** Each test has a namespace of its own; operators of different tests never run at the same time. */
async function start(
  change: Partial<OperatorSettings> = {},
  { queue = new MemoryQueue(), namespace = '' }: { queue?: MemoryQueue; namespace?: string } = {},
): Promise<Running> {
  const lines: LogLine[] = [];
  const logger = memoryLogger(lines);
  let writes = 0;
  const runtime = createKubeRuntime({
    credentials: kubeconfigCredentials({ clock: systemClock, files: [kubeconfig] }),
    clock: systemClock,
    random: Math.random,
    logger,
    onCall: ({ verb, resource }) => {
      const quiet = resource.includes('leases') || resource.includes('events');
      if (!['get', 'list', 'watch'].includes(verb) && !quiet) writes++;
    },
  });
  const metrics = createMetrics({ role: 'operator', version: 'test', process: false });
  const identity = randomUUID();
  const recorder = runtime.recorder({ controller: 'tidegate.dev/operator', instance: identity });
  const operator = startOperator({
    kube: runtime,
    queue,
    elector: runtime.elector({
      namespace: 'tidegate-system',
      name: 'tidegate-operator',
      identity,
      settings: { leaseDurationSeconds: 2, renewDeadlineMilliseconds: 1_500, retryMilliseconds: 200 },
    }),
    recorder,
    clock: systemClock,
    logger,
    metrics,
    failPoint: () => Promise.resolve(),
    settings: {
      ...defaultOperatorSettings,
      liveMilliseconds: 100,
      canaryMilliseconds: 50,
      ...change,
      job: {
        ...defaultOperatorSettings.job,
        deletionMilliseconds: 1_000,
        progressWriteMilliseconds: 200,
        stopGraceMilliseconds: 0,
        retryInitialMilliseconds: 50,
        retryCeilingMilliseconds: 200,
        ...change.job,
      },
    },
  });
  started.push({ operator, recorder, runtime });
  let name = namespace;
  if (name === '') {
    name = `t${++cluster}`;
    await must(kube.request('POST', '/api/v1/namespaces', { metadata: { name } }));
  }
  return { operator, queue, metrics, lines, namespace: name, writes: () => writes };
}

async function must(answer: Promise<{ status: number; body: unknown }>): Promise<unknown> {
  const { status, body } = await answer;
  if (status >= 300) throw new Error(`${status} ${JSON.stringify(body)}`);
  return body;
}

const path = (namespace: string, plural: string, name = '') =>
  `/apis/tidegate.dev/v1alpha1/namespaces/${namespace}/${plural}${name === '' ? '' : `/${name}`}`;

async function createDeployment(
  namespace: string,
  spec: object = { target: { urls: ['http://10.9.9.9:8000'] } },
) {
  await must(
    kube.request('POST', path(namespace, 'modeldeployments'), {
      apiVersion: 'tidegate.dev/v1alpha1',
      kind: 'ModelDeployment',
      metadata: { name: 'llama' },
      spec: { model: 'meta/llama', ...spec },
    }),
  );
}

async function createJob(
  namespace: string,
  name = 'job',
  spec: Partial<InferenceBatchJobSpec> = {},
): Promise<string> {
  const created = await must(
    kube.request('POST', path(namespace, 'inferencebatchjobs'), {
      apiVersion: 'tidegate.dev/v1alpha1',
      kind: 'InferenceBatchJob',
      metadata: { name },
      spec: {
        modelRef: { name: 'llama' },
        endpoint: '/v1/chat/completions',
        input: { s3: { bucket: 'bucket', keys: ['in.jsonl'] } },
        output: { s3: { bucket: 'bucket', prefix: `${name}/` } },
        ...spec,
      },
    }),
  );
  return (created as InferenceBatchJob).metadata.uid ?? '';
}

async function read<T>(namespace: string, plural: string, name: string): Promise<T | undefined> {
  const { status, body } = await kube.request('GET', path(namespace, plural, name));
  return status === 404 ? undefined : (body as T);
}
const job = (namespace: string, name = 'job') =>
  read<InferenceBatchJob>(namespace, 'inferencebatchjobs', name);
const deployment = (namespace: string) => read<ModelDeployment>(namespace, 'modeldeployments', 'llama');
const state = async (namespace: string, name = 'job') => (await job(namespace, name))?.status?.state;

const patchJob = (namespace: string, spec: object, name = 'job') =>
  must(
    kube.request(
      'PATCH',
      path(namespace, 'inferencebatchjobs', name),
      { spec },
      'application/merge-patch+json',
    ),
  );

const deleteJob = (namespace: string, name = 'job') =>
  must(kube.request('DELETE', path(namespace, 'inferencebatchjobs', name)));

const done = (shards: number) => Uint8Array.of((0xff << (8 - shards)) & 0xff);

/** Brings a job to the point where shards are fed. */
async function startJob(running: Running, spec: Partial<InferenceBatchJobSpec> = {}): Promise<string> {
  const { queue, namespace } = running;
  await createDeployment(namespace);
  const uid = await createJob(namespace, 'job', spec);
  await until(() => queue.tasks.has(`index-${uid}`));
  queue.took('index', uid);
  queue.report(uid, { index: indexReport() });
  await until(() => queue.shards.get(uid)?.size === 4);
  return uid;
}

describe('a job on a real API server', () => {
  test(
    'goes from apply to Complete, is cleaned up, and is then left alone',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      expect((await job(namespace))?.metadata.finalizers).toEqual([FINALIZER]);
      expect(queue.state(uid).descriptor).toMatchObject({ run: 'Run', model: 'meta/llama' });
      await until(async () => (await state(namespace)) === 'Queued');

      queue.report(uid, {
        counts: counts({ completed: 250 }),
        done: done(1),
        doneShards: 1,
        resultsBytes: 1_000,
      });
      await until(async () => (await job(namespace))?.status?.counts?.completed === 250);
      expect(await state(namespace)).toBe('Running');
      await until(() => queue.tasks.has(`publish-${uid}`));

      queue.report(uid, { counts: counts({ completed: 990, failed: 10 }), done: done(4), doneShards: 4 });
      await until(() => queue.tasks.has(`finalize-${uid}`));
      expect(queue.took('finalize', uid)).toMatchObject({ cause: { kind: 'Complete' } });
      queue.report(uid, { final: finalReport() });
      await until(() => queue.tasks.has(`cleanup-${uid}`));
      const ended = await job(namespace);
      expect(ended?.status).toMatchObject({
        state: 'Completed',
        counts: { total: 1_000, completed: 990, failed: 10, expired: 0, cancelled: 0 },
        progress: '1000/1000',
        percent: 100,
        outputs: { results: 's3://out/x/results.jsonl', manifest: 's3://out/x/manifest.json' },
      });
      expect(isConditionTrue(ended?.status?.conditions, 'Complete')).toBe(true);
      expect(ended?.metadata.finalizers).toEqual([FINALIZER]);

      queue.report(uid, { cleaned: true });
      await until(async () => (await job(namespace))?.metadata.finalizers === undefined);
      expect(queue.jobs.has(uid)).toBe(false);
      expect((await job(namespace))?.status).toEqual(ended?.status);
    },
    LIMIT,
  );

  test(
    'makes no write while nothing changes, and none for a finished one',
    async () => {
      const running = await start();
      const { queue, namespace, writes } = running;
      const uid = await startJob(running);
      await until(async () => (await state(namespace)) === 'Queued');
      await until(async () => (await deployment(namespace))?.status?.readyReplicas === 1);
      const before = writes();
      for (let look = 0; look < 20; look++) {
        const reads = queue.calls.length;
        queue.wake(uid);
        queue.wake(undefined);
        await new Promise((resolve) => setTimeout(resolve, 60));
        expect(queue.calls.length).toBeGreaterThanOrEqual(reads);
      }
      expect(writes()).toBe(before);
    },
    LIMIT,
  );

  test(
    'takes back its shards on suspend, feeds them on resume, and hands a new cap to workers',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      await patchJob(namespace, { suspend: true });
      await until(async () => (await state(namespace)) === 'Suspended');
      expect(queue.state(uid).descriptor?.run).toBe('Suspend');
      expect(queue.shards.has(uid)).toBe(false);
      await patchJob(namespace, { maxInFlight: 7 });
      await until(() => queue.state(uid).descriptor?.maxInFlight === 7);
      await patchJob(namespace, { suspend: false });
      await until(() => queue.shards.get(uid)?.size === 4);
      expect(queue.state(uid).descriptor).toMatchObject({ run: 'Run', maxInFlight: 7 });
    },
    LIMIT,
  );

  test(
    'that is cancelled stops, is finalised for that cause, and keeps what is done',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      await patchJob(namespace, { cancel: true });
      await until(() => queue.tasks.has(`finalize-${uid}`));
      expect(queue.state(uid).descriptor?.run).toBe('Stop');
      expect(queue.shards.has(uid)).toBe(false);
      expect(queue.took('finalize', uid)).toMatchObject({ cause: { kind: 'Cancelled' } });
      queue.report(uid, {
        final: finalReport({
          counts: { total: 1_000, completed: 300, failed: 0, expired: 0, cancelled: 700 },
        }),
      });
      await until(async () => (await state(namespace)) === 'Cancelled');
      const failed = findCondition((await job(namespace))?.status?.conditions, 'Failed');
      expect(failed).toMatchObject({ status: 'True', reason: 'Cancelled' });
    },
    LIMIT,
  );

  test(
    'gets its status beside someone who writes to the object all the time (cases: operators 10)',
    async () => {
      const running = await start();
      const { queue, namespace, lines } = running;
      const uid = await startJob(running);
      let over = false;
      const writer = (async () => {
        for (let n = 0; !over; n++) {
          const patch = { metadata: { annotations: { n: String(n) } } };
          await must(
            kube.request(
              'PATCH',
              path(namespace, 'inferencebatchjobs', 'job'),
              patch,
              'application/merge-patch+json',
            ),
          );
        }
      })();
      for (const suspend of [true, false, true]) {
        await patchJob(namespace, { suspend });
        await until(async () => ((await state(namespace)) === 'Suspended') === suspend);
      }
      over = true;
      await writer;
      expect(queue.state(uid).descriptor?.run).toBe('Suspend');
      expect(lines.filter(({ message }) => message.includes('handling a key failed'))).toEqual([]);
    },
    LIMIT,
  );

  test(
    'that a worker holds by itself, for a missing route, says so and gets no shards; others go on',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      const hold = { reason: 'RouteNotFound', message: 'no route POST /v1/chat/completions (404)', since: 0 };
      queue.holds = [{ queue: `${namespace}.llama`, scope: jobHoldScope(uid), ...hold }];
      queue.wake(undefined);
      await until(async () => (await job(namespace))?.status?.message?.includes('(404)') === true);
      const { status } = (await job(namespace)) ?? {};
      expect(status?.state).toBe('Throttled');
      expect(findCondition(status?.conditions, 'Running')).toMatchObject({ reason: 'RouteNotFound' });
      expect((await deployment(namespace))?.status?.readyReplicas).toBeGreaterThan(0);
      queue.holds = [];
      queue.wake(undefined);
      await until(async () => (await state(namespace)) === 'Queued');
    },
    LIMIT,
  );

  test(
    'without its model waits, and goes on when the model comes',
    async () => {
      const { queue, namespace } = await start();
      const uid = await createJob(namespace);
      await until(
        async () =>
          findCondition((await job(namespace))?.status?.conditions, 'Accepted')?.reason ===
          'ModelDeploymentNotFound',
      );
      expect(queue.jobs.has(uid)).toBe(false);
      expect(queue.tasks.has(`index-${uid}`)).toBe(false);
      await createDeployment(namespace);
      await until(() => queue.tasks.has(`index-${uid}`));
    },
    LIMIT,
  );

  test(
    'of a namespace that the model does not take waits, and goes on when the namespace gets its label',
    async () => {
      const { queue, namespace } = await start();
      const serving = `${namespace}-serving`;
      await must(kube.request('POST', '/api/v1/namespaces', { metadata: { name: serving } }));
      await createDeployment(serving, {
        target: { urls: ['http://10.9.9.9:8000'] },
        allowedNamespaces: 'Selector',
        namespaceSelector: { matchLabels: { batch: 'yes' } },
      });
      const uid = await createJob(namespace, 'job', { modelRef: { name: 'llama', namespace: serving } });
      await until(
        async () =>
          findCondition((await job(namespace))?.status?.conditions, 'Accepted')?.reason ===
          'NamespaceNotAllowed',
      );
      await must(
        kube.request(
          'PATCH',
          `/api/v1/namespaces/${namespace}`,
          { metadata: { labels: { batch: 'yes' } } },
          'application/merge-patch+json',
        ),
      );
      await until(() => queue.tasks.has(`index-${uid}`));
    },
    LIMIT,
  );

  test(
    'shows a problem of its input while it is tried again, and fails for one that no waiting mends',
    async () => {
      const { queue, namespace } = await start();
      await createDeployment(namespace);
      const uid = await createJob(namespace);
      await until(() => queue.tasks.has(`index-${uid}`));
      queue.took('index', uid);
      queue.report(uid, { problem: problemOf({ at: Date.now() }) });
      await until(
        async () =>
          findCondition((await job(namespace))?.status?.conditions, 'Indexed')?.reason ===
          'CredentialsNotFound',
      );
      await until(() => queue.tasks.has(`index-${uid}`));
      queue.took('index', uid);
      queue.report(uid, { problem: problemOf({ reason: 'OutputExists', retryable: false, at: Date.now() }) });
      await until(() => queue.tasks.has(`finalize-${uid}`));
      queue.took('finalize', uid);
      queue.report(uid, {
        final: finalReport({
          counts: { total: 0, ...counts() },
          results: undefined,
          errors: undefined,
          manifest: '',
        }),
      });
      await until(async () => (await state(namespace)) === 'Failed');
      const { status } = (await job(namespace)) ?? {};
      expect(findCondition(status?.conditions, 'Failed')).toMatchObject({
        status: 'True',
        reason: 'OutputExists',
      });
      expect(status?.outputs ?? {}).toEqual({});
    },
    LIMIT,
  );

  test(
    'that ended stays for its time to live, longer than any timer, and goes when that is shortened (cases: operators 23)',
    async () => {
      const { queue, namespace, writes } = await start();
      await createDeployment(namespace);
      await createJob(namespace, 'job', {
        suspend: true,
        cancel: true,
        ttlSecondsAfterFinished: 315_360_000,
      });
      await until(async () => (await job(namespace))?.status?.completionTime !== undefined);
      await until(async () => (await job(namespace))?.metadata.finalizers === undefined);
      const before = writes();
      queue.wake(undefined);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(writes()).toBe(before);
      await patchJob(namespace, { ttlSecondsAfterFinished: 0 });
      await until(async () => (await job(namespace)) === undefined);
    },
    LIMIT,
  );
});

describe('deletion', () => {
  test(
    'stops the job, waits for clean-up, and lets the object go',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      await deleteJob(namespace);
      await until(() => queue.tasks.has(`cleanup-${uid}`));
      expect(queue.state(uid).descriptor?.run).toBe('Gone');
      expect(queue.took('cleanup', uid)).toMatchObject({ publishFirst: true });
      queue.report(uid, { cleaned: true });
      await until(async () => (await job(namespace)) === undefined);
      await until(() => !queue.jobs.has(uid));
    },
    LIMIT,
  );

  test(
    'goes through within its bound when nobody cleans up, is counted, and names the prefix left behind',
    async () => {
      const running = await start();
      const { queue, namespace, metrics, lines } = running;
      const uid = await startJob(running);
      await deleteJob(namespace);
      await until(async () => (await job(namespace)) === undefined);
      expect(queue.jobs.has(uid)).toBe(false);
      expect((await metrics.prefixesLeftBehind.get()).values[0]?.value).toBe(1);
      expect(JSON.stringify(lines)).toContain(`s3://bucket/job/_tidegate/${uid}/`);
    },
    LIMIT,
  );

  test(
    'goes through while Redis is down; Redis forgets the job when it is back',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      queue.up = false;
      await deleteJob(namespace);
      await until(async () => (await job(namespace)) === undefined);
      expect(queue.jobs.has(uid)).toBe(true);
      queue.up = true;
      await until(() => !queue.jobs.has(uid));
    },
    LIMIT,
  );

  test(
    'before the operator saw the object needs nobody (cases: operators 30)',
    async () => {
      const { namespace } = await start();
      await createJob(namespace, 'short');
      await deleteJob(namespace, 'short');
      await until(async () => (await job(namespace, 'short')) === undefined);
    },
    LIMIT,
  );

  test(
    'of a job that never started is immediate: it has no finalizer (cases: operators 13)',
    async () => {
      const { queue, namespace } = await start({
        job: { ...defaultOperatorSettings.job, deletionMilliseconds: 3_600_000 },
      });
      queue.workers = 0;
      await createJob(namespace);
      await until(
        async () => findCondition((await job(namespace))?.status?.conditions, 'Accepted')?.status === 'False',
      );
      await deleteJob(namespace);
      await until(async () => (await job(namespace)) === undefined);
    },
    LIMIT,
  );

  test(
    'of the finalizer by hand makes workers forget the job',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      queue.up = false;
      await deleteJob(namespace);
      await must(
        kube.request(
          'PATCH',
          path(namespace, 'inferencebatchjobs', 'job'),
          { metadata: { finalizers: null } },
          'application/merge-patch+json',
        ),
      );
      queue.up = true;
      await until(() => !queue.jobs.has(uid));
    },
    LIMIT,
  );
});

describe('losses', () => {
  test(
    'an empty Redis is noticed and written again, plan included',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      queue.lose();
      await until(() => queue.state(uid).descriptor !== undefined);
      await until(() => queue.tasks.has(`index-${uid}`));
      await until(() => queue.plan !== undefined);
      expect(isConditionTrue((await job(namespace))?.status?.conditions, 'Indexed')).toBe(true);
      queue.took('index', uid);
      queue.report(uid, {
        index: indexReport(),
        done: done(2),
        doneShards: 2,
        counts: counts({ completed: 500 }),
      });
      await until(() => queue.shards.get(uid)?.size === 2);
    },
    LIMIT,
  );

  test(
    'results that are missing at the end run again',
    async () => {
      const running = await start();
      const { queue, namespace } = running;
      const uid = await startJob(running);
      queue.report(uid, { done: done(4), doneShards: 4, counts: counts({ completed: 1_000 }) });
      await until(() => queue.tasks.has(`finalize-${uid}`));
      queue.took('finalize', uid);
      queue.shards.clear();
      queue.report(uid, { final: finalReport({ missing: [2] }) });
      await until(() => queue.shards.get(uid)?.has(2) === true);
      expect(queue.state(uid).final).toBeUndefined();
      await until(async () => (await state(namespace)) === 'Running');
    },
    LIMIT,
  );
});

describe('two operators', () => {
  test(
    'only the leader writes; the standby takes over, with a higher token, when the leader goes',
    async () => {
      const first = await start();
      const uid = await startJob(first);
      await until(() => first.operator.isLeading);
      const second = await start({}, { queue: first.queue, namespace: first.namespace });
      const token = first.queue.highestFence;
      await new Promise((resolve) => setTimeout(resolve, 500));
      expect(second.operator.isLeading).toBe(false);
      expect(second.writes()).toBe(0);
      await first.operator.stop();
      await until(() => second.operator.isLeading);
      await patchJob(first.namespace, { suspend: true });
      await until(() => first.queue.state(uid).descriptor?.run === 'Suspend');
      expect(first.queue.highestFence).toBeGreaterThan(token);
    },
    LIMIT,
  );

  test(
    'one that Redis has fenced out stops writing and asks to be replaced',
    async () => {
      const running = await start();
      const uid = await startJob(running);
      running.queue.highestFence = Number.MAX_SAFE_INTEGER;
      await patchJob(running.namespace, { maxInFlight: 5 });
      expect(await running.operator.broken).toContain('fenced out');
      expect(running.operator.isLeading).toBe(false);
      expect(running.queue.state(uid).descriptor?.maxInFlight).toBeUndefined();
      expect(await running.operator.liveness['leadership']?.()).toMatchObject({ ok: false });
    },
    LIMIT,
  );
});

describe('a ModelDeployment on a real API server', () => {
  test(
    'by urls is Ready, planned, and loses readiness while a worker holds it',
    async () => {
      const { queue, namespace } = await start({ deploymentNumbersMilliseconds: 100 });
      await createDeployment(namespace, {
        target: { urls: ['http://10.9.9.8:1', 'http://10.9.9.9:1'] },
        headroom: { maxAsyncInFlightPerReplica: 10 },
      });
      await until(async () => (await deployment(namespace))?.status?.readyReplicas === 2);
      await until(() => queue.plan?.some((plan) => plan.queue === `${namespace}.llama`) === true);
      expect(queue.plan?.find((plan) => plan.queue === `${namespace}.llama`)?.replicas).toEqual([
        { address: 'http://10.9.9.8:1', cap: 10 },
        { address: 'http://10.9.9.9:1', cap: 10 },
      ]);
      queue.inFlight.set('http://10.9.9.8:1', 7);
      await until(async () => (await deployment(namespace))?.status?.headroom?.inFlight === 7);
      expect((await deployment(namespace))?.status?.headroom?.limit).toBe(20);

      queue.holds = [
        {
          queue: `${namespace}.llama`,
          scope: '*',
          reason: 'Unauthorized',
          message: 'the key is wrong',
          since: 0,
        },
      ];
      queue.wake(undefined);
      await until(async () => (await deployment(namespace))?.status?.readyReplicas === 0);
      const { status } = (await deployment(namespace)) ?? {};
      expect(findCondition(status?.conditions, 'Ready')).toMatchObject({
        status: 'False',
        reason: 'Unauthorized',
        message: 'the key is wrong',
      });
      queue.holds = [];
      await until(async () => isConditionTrue((await deployment(namespace))?.status?.conditions, 'Ready'));
    },
    LIMIT,
  );

  test(
    'by Service follows its EndpointSlices',
    async () => {
      const { queue, namespace } = await start();
      await createDeployment(namespace, { target: { service: { name: 'vllm', port: 8000 } } });
      const ready = async () =>
        findCondition((await deployment(namespace))?.status?.conditions, 'Ready')?.reason;
      await until(async () => (await ready()) === 'ServiceNotFound');
      await must(
        kube.request('POST', `/api/v1/namespaces/${namespace}/services`, {
          metadata: { name: 'vllm' },
          spec: { ports: [{ name: 'http', port: 8000, targetPort: 9000 }] },
        }),
      );
      await until(async () => (await ready()) === 'NoReadyReplicas');
      const slices = `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`;
      const slice = (conditions: object) => ({
        metadata: { name: 'vllm-1', labels: { 'kubernetes.io/service-name': 'vllm' } },
        addressType: 'IPv4',
        ports: [{ name: 'http', port: 9000 }],
        endpoints: [
          { addresses: ['10.9.9.1'], conditions: { ready: true } },
          { addresses: ['10.9.9.2'], conditions },
        ],
      });
      await must(kube.request('POST', slices, slice({ ready: false })));
      await until(async () => (await deployment(namespace))?.status?.readyReplicas === 1);
      expect((await deployment(namespace))?.status?.replicas).toBe(2);
      await must(kube.request('PUT', `${slices}/vllm-1`, slice({ ready: true })));
      await until(async () => (await deployment(namespace))?.status?.readyReplicas === 2);
      await until(
        () =>
          queue.plan
            ?.find((plan) => plan.queue === `${namespace}.llama`)
            ?.replicas.every((r) => r.cap > 0) === true,
      );
      await must(kube.request('DELETE', `${slices}/vllm-1`));
      await until(async () => (await ready()) === 'NoReadyReplicas');
    },
    LIMIT,
  );
});
