/** A worker on a real Redis and a real S3 server; the engine is played by the test, call by call. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { randomUUID } from 'node:crypto';
import { startRedis, type Redis } from '../../hack/stack/redis.ts';
import { startS3, type S3 } from '../../hack/stack/s3.ts';
import { jobLayout } from '../batch/layout.ts';
import type { EngineClient, EngineOutcome, EngineRequest } from '../engine/contract.ts';
import { systemClock } from '../observability/clock.ts';
import { createLogger, silentLogger } from '../observability/logger.ts';
import { createMetrics } from '../observability/metrics.ts';
import type { JobDescriptor, JobState, OperatorQueue, Task } from '../queue/contract.ts';
import { createOperatorQueue } from '../queue/operator-queue.ts';
import { createWorkerQueue } from '../queue/worker-queue.ts';
import type { ObjectStore } from '../storage/contract.ts';
import { StoreProvider } from '../storage/provider.ts';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { claimPrefix } from './publish/claim.ts';
import { defaultPublishSettings } from './publish/settings.ts';
import { createPublishTasks } from './publish/tasks.ts';
import { defaultWorkerSettings, type WorkerSettings } from './settings.ts';
import { startWorker, type Worker } from './worker.ts';

const ADDRESS = 'http://192.0.2.1:8000';
const QUEUE = 'serving.llama';
const BUCKET = 'claims';
const fence = { transitions: 1, leaderUID: 'test' };
const queueSettings = {
  pollMilliseconds: 100,
  renewMilliseconds: 100,
  leaseMilliseconds: 1_500,
  leaseMarginMilliseconds: 200,
  progressMilliseconds: 50,
  lockMilliseconds: 2_000,
  stalledMilliseconds: 500,
};

type Answer = (request: EngineRequest, prompt: string) => Promise<EngineOutcome> | EngineOutcome;

const echo: Answer = (_, prompt) => ({
  kind: 'answer',
  status: 200,
  requestId: 'req-1',
  contentType: 'application/json',
  body: Buffer.from(
    `{"model":"llama","choices":[{"message":{"content":${JSON.stringify(prompt)}}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`,
  ),
});

/** Ends when the caller aborts, as a server that never answers. */
const hang: Answer = ({ signal }) =>
  new Promise((resolve) =>
    signal.addEventListener('abort', () => resolve({ kind: 'aborted' }), { once: true }),
  );

class PlayedEngine implements EngineClient {
  readonly calls: string[] = [];
  inFlight = 0;
  most = 0;
  reachable = true;
  answer: Answer = echo;
  async send(request: EngineRequest): Promise<EngineOutcome> {
    const body = JSON.parse(Buffer.concat(request.body).toString()) as {
      model: string;
      messages: { content: string }[];
    };
    const prompt = body.messages[0]?.content ?? '';
    this.calls.push(`${body.model} ${prompt}`);
    this.inFlight += 1;
    this.most = Math.max(this.most, this.inFlight);
    try {
      await new Promise((resolve) => setImmediate(resolve));
      if (request.signal.aborted) return { kind: 'aborted' };
      return await this.answer(request, prompt);
    } finally {
      this.inFlight -= 1;
    }
  }
  probe(): ReturnType<EngineClient['probe']> {
    return Promise.resolve(
      this.reachable ? { ok: true } : { ok: false, reason: 'ConnectionRefused', message: 'refused' },
    );
  }
  retain(): void {}
  close(): Promise<void> {
    return Promise.resolve();
  }
}

const line = (id: string, model = 'llama'): string =>
  JSON.stringify({
    custom_id: id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model, messages: [{ role: 'user', content: `say ${id}` }] },
  });
const lines = (count: number, from = 0): string =>
  Array.from({ length: count }, (_, i) => `${line(`c${from + i}`)}\n`).join('');

async function until<T>(what: string, look: () => Promise<T | undefined | false>): Promise<T> {
  const deadline = performance.now() + 20_000;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) return found;
    if (performance.now() > deadline) throw new Error(`gave up waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** All that the workers and their stores say, at every level. */
const said: string[] = [];
const recorder = createLogger({
  level: 'debug',
  stream: new Writable({
    write: (chunk, _encoding, done) => {
      said.push(String(chunk));
      done();
    },
  }),
});
const WRONG_SECRET = 'known-but-wrong-secret-0815';

let redis: Redis;
let s3: S3;
let stores: StoreProvider;
let store: ObjectStore;
let directory: string;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tidegate-worker-'));
  [redis, s3] = await Promise.all([startRedis(), startS3({ dir: join(directory, 's3') })]);
  const { endpoint, region, accessKeyId, secretAccessKey } = s3;
  const credentials = { accessKeyId, secretAccessKey };
  const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });
  await client.send(new CreateBucketCommand({ Bucket: BUCKET }));
  client.destroy();
  stores = new StoreProvider({ logger: recorder, settings: { allowLoopback: true } });
  store = stores.open({ bucket: BUCKET, endpoint, region, credentials, forcePathStyle: true });
}, 60_000);
afterAll(async () => {
  stores?.close();
  await Promise.all([redis?.stop(), s3?.stop()]);
  rmSync(directory, { recursive: true, force: true });
});

let secretIsWrong = false;

/** What the Secret of the namespace holds, as the API server answers it. */
const secretReader = {
  get: () =>
    Promise.resolve({
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: 's3' },
      data: {
        AWS_ACCESS_KEY_ID: Buffer.from(s3.accessKeyId).toString('base64'),
        AWS_SECRET_ACCESS_KEY: Buffer.from(secretIsWrong ? WRONG_SECRET : s3.secretAccessKey).toString(
          'base64',
        ),
      },
    }),
};

describe('worker', () => {
  let prefix: string;
  let operator: OperatorQueue;
  let engine: PlayedEngine;
  let workers: Worker[];
  let descriptor: JobDescriptor;

  beforeEach(async () => {
    prefix = `t${randomUUID().slice(0, 8)}`;
    engine = new PlayedEngine();
    workers = [];
    operator = createOperatorQueue({
      redisUrl: redis.url,
      prefix,
      clock: systemClock,
      logger: silentLogger,
      settings: queueSettings,
    });
    await until('Redis is connected', () => Promise.resolve(operator.healthy()));
    const connection = {
      bucket: BUCKET,
      region: s3.region,
      endpoint: s3.endpoint,
      forcePathStyle: true,
      credentialsSecretRef: { name: 's3' },
    };
    descriptor = {
      uid: randomUUID(),
      namespace: 'claims',
      name: 'job',
      generation: 1,
      queue: QUEUE,
      endpoint: '/v1/chat/completions',
      input: { connection, keys: [`${prefix}/in.jsonl`], compression: 'Auto', invalidLines: 'Record' },
      output: { connection, prefix: `${prefix}/out/` },
      model: 'llama',
      aliases: ['llama-8b'],
      engine: 'vLLM',
      retry: { maxAttempts: 2, initialBackoffSeconds: 0.01, maxBackoffSeconds: 0.02 },
      requestTimeoutSeconds: 30,
      priority: 10,
      deadline: Date.now() + 86_400_000,
      run: 'Run',
    };
    await plan(8);
  });
  afterEach(async () => {
    await Promise.all(workers.map((worker) => worker.stop()));
    const told = JSON.stringify(await state());
    await operator.close();
    for (const secret of [s3.secretAccessKey, WRONG_SECRET, Buffer.from(WRONG_SECRET).toString('base64')]) {
      expect(told).not.toContain(secret);
      expect(said.filter((line) => line.includes(secret))).toEqual([]);
    }
  });

  const plan = (cap: number): Promise<void> =>
    operator.putPlan([{ queue: QUEUE, replicas: [{ address: ADDRESS, cap }] }], 60_000, fence);

  async function addWorker(settings: Partial<WorkerSettings> = {}): Promise<Worker> {
    const clock = systemClock;
    const failPoint = (): Promise<void> => Promise.resolve();
    const publishing = createPublishTasks({
      settings: defaultPublishSettings,
      ...{ failPoint, clock },
      logger: recorder,
      newId: randomUUID,
      random: Math.random,
    });
    const worker = await startWorker({
      kube: secretReader as never,
      queue: createWorkerQueue({
        redisUrl: redis.url,
        prefix,
        workerId: `w${workers.length}`,
        clock,
        logger: recorder,
        settings: queueSettings,
      }),
      openStore: (connection) => stores.open(connection),
      engine,
      claim: (target, layout, { uid, namespace, name }, signal) =>
        claimPrefix({ store: target, layout, jobUID: uid, signal, failPoint }, { namespace, name }),
      publishing,
      clock,
      random: Math.random,
      logger: recorder,
      metrics: createMetrics({ role: 'worker', version: '0', process: false }),
      failPoint,
      allowLoopback: true,
      settings: {
        ...defaultWorkerSettings(join(directory, 'spill')),
        graceMilliseconds: 2_000,
        initialProbeMilliseconds: 50,
        maxProbeMilliseconds: 100,
        holdValidMilliseconds: 1_000,
        idleHandBackMilliseconds: 3_000,
        initialStoreRetryMilliseconds: 20,
        ...settings,
      },
    });
    workers.push(worker);
    return worker;
  }

  const put = (text: string | Uint8Array, key = `${prefix}/in.jsonl`) => store.put(key, Buffer.from(text));
  const state = (): Promise<JobState> => operator.readJob(descriptor.uid);
  const update = async (change: Partial<JobDescriptor>): Promise<void> => {
    descriptor = { ...descriptor, ...change, generation: descriptor.generation + 1 };
    await operator.putJob(descriptor, fence);
  };
  const read = async (key: string): Promise<Record<string, unknown>[]> => {
    const { bytes } = await store.getBytes(key);
    return bytes
      .toString()
      .trimEnd()
      .split('\n')
      .map((text) => JSON.parse(text) as Record<string, unknown>);
  };
  async function index(): Promise<JobState> {
    await operator.putJob(descriptor, fence);
    await operator.queueTask({ kind: 'index', uid: descriptor.uid });
    return until('the input is indexed', async () => {
      const found = await state();
      return found.index === undefined && found.problem === undefined ? undefined : found;
    });
  }
  async function feed(shards: number): Promise<void> {
    await operator.feedShards(
      QUEUE,
      descriptor.uid,
      Array.from({ length: shards }, (_, n) => n),
      descriptor.priority,
    );
  }
  async function finish(
    cause: Extract<Task, { kind: 'finalize' }>['cause'],
  ): Promise<NonNullable<JobState['final']>> {
    await operator.queueTask({ kind: 'finalize', uid: descriptor.uid, cause });
    return until('the job is final', async () => (await state()).final);
  }
  const layout = () => jobLayout(descriptor.output.prefix, descriptor.uid);
  /** Feeds the first shards again and again, as the operator does, until all of them are done. */
  const done = (shards: number) =>
    until(`${shards} shards are done`, async () => {
      if ((await state()).doneShards === shards) return true;
      await feed(shards);
      return undefined;
    });

  test('takes a job from its input to its published files, bad lines among them', async () => {
    await put(
      `${lines(600)}not json\n\n${line('c600', 'llama-8b')}\n${line('c5')}\n${line('c601', 'other')}\n`,
    );
    await addWorker();
    const indexed = await index();
    expect(indexed.index).toMatchObject({ total: 604, invalid: 3, shards: 3 });
    await feed(3);
    await done(3);
    const final = await finish({ kind: 'Complete' });
    expect(final.counts).toEqual({ total: 604, completed: 601, failed: 3, expired: 0, cancelled: 0 });
    expect(final.usage).toEqual({ inputTokens: 1803, cachedInputTokens: 0, outputTokens: 1202 });
    const results = await read(layout().results);
    expect(results.map(({ custom_id }) => custom_id)).toEqual(Array.from({ length: 601 }, (_, i) => `c${i}`));
    for (const { custom_id, response } of results) {
      expect(JSON.stringify(response)).toContain(`"say ${custom_id as string}"`);
    }
    const errors = await read(layout().errors);
    expect(errors.map(({ error }) => error)).toMatchObject([
      { code: 'invalid_json_line', line: 601 },
      { code: 'duplicate_custom_id', line: 604 },
      { code: 'model_not_found', line: 605 },
    ]);
    // The alias reached the engine under the name it knows (litellm#36159), and each line was sent once.
    expect(engine.calls.filter((call) => call === 'llama say c600')).toHaveLength(1);
    expect(engine.calls).toHaveLength(601);
    expect(engine.most).toBeLessThanOrEqual(8);
  }, 30_000);

  test('two workers share the places of a replica and never send a line twice', async () => {
    await put(lines(1_000));
    await Promise.all([addWorker(), addWorker()]);
    await index();
    await feed(4);
    await done(4);
    expect(new Set(engine.calls).size).toBe(1_000);
    expect(engine.calls).toHaveLength(1_000);
    expect(engine.most).toBeLessThanOrEqual(8);
  }, 30_000);

  test('suspended: lines in flight end, the shard is given back with what is done, and goes on from there', async () => {
    await put(lines(250));
    await addWorker();
    await index();
    const open: (() => void)[] = [];
    engine.answer = (request, prompt) =>
      engine.calls.length <= 100
        ? echo(request, prompt)
        : new Promise((resolve) => open.push(() => resolve(echo(request, prompt))));
    await feed(1);
    await until('the engine holds lines', () => Promise.resolve(open.length === 8));
    const sent = engine.calls.length;
    await update({ run: 'Suspend' });
    await operator.withdrawShards(QUEUE, descriptor.uid);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(engine.inFlight).toBe(8);
    engine.answer = echo;
    for (const answer of open) answer();
    await until('a checkpoint is written', async () => {
      for await (const _ of store.list(layout().checkpoints(0))) return true;
      return undefined;
    });
    expect(engine.calls).toHaveLength(sent);
    await update({ run: 'Run' });
    await feed(1);
    await done(1);
    expect(new Set(engine.calls).size).toBe(250);
    expect(engine.calls).toHaveLength(250);
  }, 30_000);

  test('stopped: calls are aborted, finished lines stay, every other line has its record (batch-gateway#221, #504)', async () => {
    await put(lines(25));
    await addWorker();
    await index();
    engine.answer = (request, prompt) =>
      Number(prompt.slice('say c'.length)) < 5 ? echo(request, prompt) : hang(request, prompt);
    await feed(1);
    await until(
      'five are done and eight hang',
      async () => engine.inFlight === 8 && (await state()).counts.completed === 5,
    );
    await update({ run: 'Stop' });
    await until('nothing is in flight', () => Promise.resolve(engine.inFlight === 0));
    await until('a checkpoint is written', async () => {
      for await (const _ of store.list(layout().checkpoints(0))) return true;
      return undefined;
    });
    const final = await finish({ kind: 'Cancelled' });
    expect(final.counts).toEqual({ total: 25, completed: 5, failed: 0, expired: 0, cancelled: 20 });
    expect((await read(layout().results)).map(({ custom_id }) => custom_id)).toEqual([
      'c0',
      'c1',
      'c2',
      'c3',
      'c4',
    ]);
    const errors = await read(layout().errors);
    expect(errors.map(({ custom_id }) => custom_id)).toEqual(
      Array.from({ length: 20 }, (_, i) => `c${i + 5}`),
    );
    expect(errors[0]).toMatchObject({ response: null, error: { code: 'batch_cancelled', line: 6 } });
  }, 30_000);

  test('an engine that is down costs no line its attempts, and work goes on when it is back', async () => {
    await put(lines(20));
    await addWorker();
    await index();
    engine.reachable = false;
    engine.answer = () => ({
      kind: 'hold',
      scope: 'Replica',
      reason: 'ConnectionRefused',
      status: undefined,
      message: 'connection refused',
    });
    await feed(1);
    const hold = await until('the hold is seen', async () => (await operator.readHolds(QUEUE))[0]);
    expect(hold).toMatchObject({ scope: ADDRESS, reason: 'ConnectionRefused' });
    const calls = engine.calls.length;
    expect(calls).toBeLessThanOrEqual(8);
    engine.reachable = true;
    engine.answer = echo;
    await until('the hold is gone', async () => (await operator.readHolds(QUEUE)).length === 0);
    await feed(1);
    await done(1);
    expect((await state()).counts).toMatchObject({ completed: 20, failed: 0 });
  }, 30_000);

  test('busy answers cost no attempt, and a replica is left alone as long as it asks', async () => {
    await put(lines(20));
    await addWorker();
    await index();
    let refusals = 30;
    engine.answer = (request, prompt) =>
      refusals-- > 0 ? { kind: 'busy', status: 429, retryAfterMilliseconds: 20 } : echo(request, prompt);
    await feed(1);
    await done(1);
    expect((await state()).counts).toMatchObject({ completed: 20, failed: 0 });
  }, 30_000);

  test('one line that breaks its engine ends with a record, the others with answers (ray#59194)', async () => {
    await put(lines(50));
    await addWorker();
    await index();
    engine.answer = (request, prompt) =>
      prompt === 'say c7'
        ? { kind: 'fault', status: undefined, reason: 'ConnectionLost', message: 'the connection was lost' }
        : echo(request, prompt);
    await feed(1);
    await done(1);
    const final = await finish({ kind: 'Complete' });
    expect(final.counts).toMatchObject({ completed: 49, failed: 1 });
    expect(final.recentErrors).toMatchObject([{ line: 8, customID: 'c7', code: 'request_failed' }]);
    expect(engine.calls.filter((call) => call.endsWith('say c7'))).toHaveLength(2);
  }, 30_000);

  test('input replaced while the job runs is noticed, and what is done is kept', async () => {
    await put(lines(500));
    await addWorker();
    await index();
    await feed(1);
    await done(1);
    await put(lines(500, 1_000));
    await operator.feedShards(QUEUE, descriptor.uid, [1], 10);
    const problem = await until('the change is reported', async () => (await state()).problem);
    expect(problem).toMatchObject({ task: 'shard', reason: 'InputChanged', retryable: false });
    await update({ run: 'Stop' });
    const final = await finish({ kind: 'Failed', reason: 'InputChanged', message: problem.message });
    expect(final.counts).toMatchObject({ completed: 250, failed: 250 });
  }, 30_000);

  test('after Redis came back empty, a survey finds what is done', async () => {
    await put(lines(500));
    await addWorker();
    await index();
    await feed(1);
    await done(1);
    const before = await state();
    await operator.removeJob(descriptor.uid, QUEUE, fence);
    expect((await state()).doneShards).toBe(0);
    const surveyed = await index();
    expect(surveyed.index).toEqual(before.index);
    expect(surveyed.counts).toEqual(before.counts);
    expect(surveyed.doneShards).toBe(1);
    await feed(2);
    await done(2);
    expect(engine.calls).toHaveLength(500);
  }, 30_000);

  test('a graceful stop loses no answer: another worker goes on from the checkpoint', async () => {
    await put(lines(250));
    const first = await addWorker();
    await index();
    let hung = 0;
    engine.answer = (request, prompt) => {
      if (engine.calls.length <= 60) return echo(request, prompt);
      hung += 1;
      return hang(request, prompt);
    };
    await feed(1);
    await until('some lines are answered and some hang', () => Promise.resolve(hung === 8));
    await first.stop();
    workers = [];
    engine.answer = echo;
    await addWorker();
    await feed(1);
    await done(1);
    const sent = new Map<string, number>();
    for (const call of engine.calls) sent.set(call, (sent.get(call) ?? 0) + 1);
    // The eight that hung when the worker stopped are sent again, and no other.
    expect([...sent.values()].filter((times) => times > 1)).toHaveLength(8);
    expect(sent.size).toBe(250);
  }, 30_000);

  test('a line that kills its engine ends, also when its shard is given back while the engine restarts', async () => {
    descriptor = {
      ...descriptor,
      retry: { maxAttempts: 3, initialBackoffSeconds: 0.01, maxBackoffSeconds: 0.02 },
    };
    await put(lines(1));
    await addWorker({ idleHandBackMilliseconds: 100 });
    await index();
    let down = false;
    engine.answer = () => {
      if (down) {
        return {
          ...{ kind: 'hold', scope: 'Replica', reason: 'ConnectionRefused' },
          ...{ status: undefined, message: 'refused' },
        };
      }
      down = true;
      engine.reachable = false;
      return { kind: 'fault', status: undefined, reason: 'ConnectionLost', message: 'closed' };
    };
    for (let deaths = 1; deaths <= 3; deaths++) {
      await until(`the engine died ${deaths} times`, async () => {
        await feed(1);
        return down;
      });
      if (deaths < 3) {
        await until('the shard is given back', async () => {
          let checkpoints = 0;
          for await (const _ of store.list(layout().checkpoints(0))) checkpoints += 1;
          return checkpoints === deaths;
        });
      }
      down = false;
      engine.reachable = true;
    }
    await done(1);
    const final = await finish({ kind: 'Complete' });
    expect(final.counts).toMatchObject({ completed: 0, failed: 1 });
  }, 60_000);

  test('a shard that waits for memory is given back at once when its job is suspended', async () => {
    await put(lines(500));
    await addWorker({ maxBufferedBytes: 1_000 });
    await index();
    engine.answer = hang;
    await feed(2);
    await until('the first shard is at work', () => Promise.resolve(engine.inFlight === 8));
    await update({ run: 'Suspend' });
    expect(engine.inFlight).toBe(8);
    engine.answer = echo;
    await update({ run: 'Stop' });
    await until('nothing is in flight', () => Promise.resolve(engine.inFlight === 0));
    await update({ run: 'Run' });
    await done(2);
    expect(new Set(engine.calls).size).toBe(500);
  }, 60_000);

  test('a Secret that becomes wrong while lines run stops them, quotes nothing, and costs no answer once mended', async () => {
    await put(lines(250));
    await addWorker({ credentialsMaxAgeMilliseconds: 0 });
    await index();
    try {
      engine.answer = (request, prompt) => {
        secretIsWrong = true;
        engine.answer = echo;
        return echo(request, prompt);
      };
      await feed(1);
      const problem = await until('the refusal is told', async () => {
        await feed(1);
        return (await state()).problem;
      });
      expect(problem).toMatchObject({ task: 'shard', reason: 'CredentialsInvalid', retryable: true });
    } finally {
      secretIsWrong = false;
    }
    await done(1);
    expect(new Set(engine.calls).size).toBe(250);
    expect(engine.calls).toHaveLength(250);
  }, 60_000);

  const badInput: [string, () => Promise<void>, Partial<NonNullable<JobState['problem']>>][] = [
    ['no such key', () => Promise.resolve(), { reason: 'NoSuchKey', retryable: true }],
    ['no line at all', async () => void (await put('\n \n')), { reason: 'EmptyInput', retryable: false }],
    [
      'truncated gzip',
      async () => void (await put(Buffer.from('1f8b0800000000000003', 'hex'))),
      { reason: 'InvalidInput', retryable: false },
    ],
    [
      'no such bucket',
      async () => {
        descriptor = {
          ...descriptor,
          input: {
            ...descriptor.input,
            connection: { ...descriptor.input.connection, bucket: 'nosuchbucket' },
          },
        };
      },
      { reason: 'NoSuchBucket', retryable: true },
    ],
    [
      'own identity with a custom endpoint',
      async () => {
        const { credentialsSecretRef: _, ...connection } = descriptor.input.connection;
        descriptor = { ...descriptor, input: { ...descriptor.input, connection } };
      },
      { reason: 'CredentialsInvalid', retryable: true },
    ],
    [
      'a link-local endpoint',
      async () => {
        descriptor = {
          ...descriptor,
          input: {
            ...descriptor.input,
            connection: { ...descriptor.input.connection, endpoint: 'http://169.254.169.254' },
          },
        };
      },
      { reason: 'AddressRefused', retryable: false },
    ],
  ];
  test.each(badInput)(
    'says what is wrong with the input: %s',
    async (_, arrange, expected) => {
      await arrange();
      await addWorker();
      const { problem } = await index();
      expect(problem).toMatchObject({ task: 'index', ...expected });
    },
    30_000,
  );

  /** A second job of the same worker, with its own prefix; the first stays in `descriptor`. */
  async function secondJob(count: number, change: Partial<JobDescriptor> = {}): Promise<JobDescriptor> {
    const first = descriptor;
    const key = `${prefix}/second.jsonl`;
    await put(lines(count, 100_000), key);
    descriptor = {
      ...first,
      uid: randomUUID(),
      name: 'second',
      input: { ...first.input, keys: [key] },
      output: { ...first.output, prefix: `${prefix}/second/` },
      ...change,
    };
    await index();
    const second = descriptor;
    descriptor = first;
    return second;
  }

  const feedOf = (job: JobDescriptor, shards: number[]): Promise<void> =>
    operator.feedShards(job.queue, job.uid, shards, job.priority);

  test('a job of 2 shards beside a large one takes turns with it, and ends within three times its own work', async () => {
    await put(lines(250 * 24));
    await addWorker();
    await index();
    const large = descriptor;
    const small = await secondJob(500);
    const window = async (): Promise<void> => {
      const { doneShards } = await operator.readJob(large.uid);
      await feedOf(
        large,
        [0, 1, 2, 3, 4, 5, 6, 7].map((n) => n + doneShards).filter((n) => n < 24),
      );
    };
    await window();
    await until('the large job is under way', () => Promise.resolve(engine.calls.length > 100));
    const before = engine.calls.length;
    await until('the small job is done', async () => {
      await window();
      await feedOf(small, [0, 1]);
      return (await operator.readJob(small.uid)).doneShards === 2;
    });
    // What the engine did meanwhile, in lines: the small job's 500, and no more than its turns of the large one.
    expect(engine.calls.length - before).toBeLessThanOrEqual(3 * 500);
  }, 60_000);

  test('a job of 2 shards beside one whose engine is dead is not kept from its own engine', async () => {
    const dead = 'http://192.0.2.9:8000';
    await operator.putPlan(
      [
        { queue: QUEUE, replicas: [{ address: ADDRESS, cap: 8 }] },
        { queue: 'serving.dead', replicas: [{ address: dead, cap: 8 }] },
      ],
      60_000,
      fence,
    );
    engine.reachable = false;
    engine.answer = (request, prompt) =>
      request.address === dead
        ? {
            kind: 'hold',
            scope: 'Replica',
            reason: 'ConnectionRefused',
            status: undefined,
            message: 'refused',
          }
        : echo(request, prompt);
    await put(lines(250 * 16));
    descriptor = { ...descriptor, queue: 'serving.dead' };
    await addWorker({ hands: 8 });
    await index();
    const large = descriptor;
    const small = await secondJob(500, { queue: QUEUE });
    await feedOf(
      large,
      Array.from({ length: 16 }, (_, n) => n),
    );
    await until('the hold is seen', async () => (await operator.readHolds('serving.dead')).length > 0);
    await until('the small job is done', async () => {
      await feedOf(small, [0, 1]);
      return (await operator.readJob(small.uid)).doneShards === 2;
    });
    expect((await operator.readJob(large.uid)).counts).toMatchObject({ completed: 0, failed: 0 });
  }, 60_000);

  test('an output prefix of another job is refused and left as it is', async () => {
    await put(lines(3));
    await addWorker();
    await index();
    descriptor = { ...descriptor, uid: randomUUID(), name: 'second' };
    const { problem } = await index();
    expect(problem).toMatchObject({ task: 'index', reason: 'OutputExists', retryable: false });
  }, 30_000);
});
