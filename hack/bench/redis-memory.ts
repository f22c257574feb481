/**
 * What one batch job costs in Redis: `used_memory` above the empty server, at its peak, for jobs of 1 M and 10 M lines
 * (4,000 and 40,000 shards), while shards are fed in a window, taken, finished and reported. Baseline in the same run:
 * one BullMQ entry per shard, all queued at once. Target of the issue: at most 5 MB in total.
 *
 *   node hack/bench/redis-memory.ts [--out FOLDER] [shards …]
 */
import { parseArgs } from 'node:util';
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { noOutcomes, noUsage, SHARD_MAX_LINES } from '../../src/batch/model.ts';
import { systemClock } from '../../src/observability/clock.ts';
import { silentLogger } from '../../src/observability/logger.ts';
import type { JobDescriptor, ShardDone } from '../../src/queue/contract.ts';
import { createOperatorQueue } from '../../src/queue/operator-queue.ts';
import { createWorkerQueue } from '../../src/queue/worker-queue.ts';
import { startRedis } from '../stack/redis.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';

const QUEUE = 'default.llama';
const UID = '7d0c2f3e-5b0a-4a6e-9a43-0f8f4c1d2e3f';
const FENCE = { transitions: 1, leaderUID: 'bench' };
const WINDOW = 64;
const TARGET_BYTES = 5 * 1024 * 1024;

interface Row {
  shards: number;
  lines: number;
  emptyBytes: number;
  peakBytes: number;
  peakTotalBytes: number;
  idleAfterBytes: number;
  baselineBytes: number;
  seconds: number;
}

const usedMemory = async (redis: Redis): Promise<number> =>
  Number(/^used_memory:(\d+)/m.exec(await redis.info('memory'))?.[1]);

async function measure(shards: number): Promise<Row> {
  const server = await startRedis();
  const redis = new Redis(server.url);
  try {
    const base = { redisUrl: server.url, prefix: 'bench', clock: systemClock, logger: silentLogger };
    const emptyBytes = await usedMemory(redis);
    const operator = createOperatorQueue(base);
    const worker = createWorkerQueue({ ...base, workerId: 'bench-worker' });
    const started = performance.now();
    await operator.putJob(descriptor(), FENCE);
    await operator.putPlan(
      [{ queue: QUEUE, replicas: [{ address: 'http://engine', cap: 64 }] }],
      600_000,
      FENCE,
    );
    await worker.report(UID, {
      index: {
        total: shards * SHARD_MAX_LINES,
        invalid: 0,
        shards,
        bytes: shards * 250_000,
        firstInvalid: [],
      },
      doneShards: [],
    });
    let next = 0;
    const refill = async (): Promise<void> => {
      const window: number[] = [];
      while (window.length < WINDOW && next < shards) window.push(next++);
      await operator.feedShards(QUEUE, UID, window, 1_000);
    };
    let done = 0;
    let peak = 0;
    await refill();
    await new Promise<void>((resolve, reject) => {
      worker.serveShards(async ({ uid, shard }) => {
        worker.shardProgress(uid, shard, { ...noOutcomes(), completed: 100 }, noUsage());
        await worker.shardDone(uid, shard, shardDone(shard));
        done += 1;
        if (done % 500 === 0) peak = Math.max(peak, await usedMemory(redis));
        if (done % WINDOW === 0) await refill();
        if (done === shards) resolve();
      }, 32);
      setTimeout(
        () => reject(new Error(`only ${done} of ${shards} shards after 10 minutes`)),
        600_000,
      ).unref();
    });
    peak = Math.max(peak, await usedMemory(redis));
    const seconds = (performance.now() - started) / 1_000;
    const state = await operator.readJob(UID);
    if (state.doneShards !== shards || state.counts.completed !== shards * SHARD_MAX_LINES) {
      throw new Error(`counted ${state.counts.completed} lines in ${state.doneShards} shards`);
    }
    await worker.close(1_000);
    await operator.removeJob(UID, QUEUE, FENCE);
    await operator.close();
    const idleAfterBytes = await usedMemory(redis);
    return {
      shards,
      lines: shards * SHARD_MAX_LINES,
      emptyBytes,
      peakBytes: peak - emptyBytes,
      peakTotalBytes: peak,
      idleAfterBytes: idleAfterBytes - emptyBytes,
      baselineBytes: await baseline(redis, shards),
      seconds,
    };
  } finally {
    redis.disconnect();
    await server.stop();
  }
}

async function baseline(redis: Redis, shards: number): Promise<number> {
  await redis.flushall();
  const before = await usedMemory(redis);
  const queue = new Queue('all-at-once', { connection: redis });
  for (let first = 0; first < shards; first += 1_000) {
    await queue.addBulk(
      Array.from({ length: Math.min(1_000, shards - first) }, (_, at) => ({
        name: 'shard',
        data: { uid: UID, shard: first + at },
        opts: { jobId: `${UID}-${first + at}`, priority: 1_000 },
      })),
    );
  }
  const used = (await usedMemory(redis)) - before;
  await queue.close();
  return used;
}

function shardDone(shard: number): ShardDone {
  const failed = {
    line: shard * SHARD_MAX_LINES,
    customID: `request-${shard}`,
    code: 'context_length_exceeded',
    message: 'x'.repeat(200),
  };
  return {
    counts: { ...noOutcomes(), completed: SHARD_MAX_LINES },
    usage: { inputTokens: 250_000, cachedInputTokens: 0, outputTokens: 50_000 },
    resultsBytes: 500_000,
    errorsBytes: 0,
    recentErrors: shard % 10 === 0 ? [failed] : [],
  };
}

function descriptor(): JobDescriptor {
  return {
    uid: UID,
    namespace: 'default',
    name: 'bench',
    generation: 1,
    queue: QUEUE,
    endpoint: '/v1/chat/completions',
    input: {
      connection: { bucket: 'data' },
      keys: ['in.jsonl'],
      compression: 'Auto',
      invalidLines: 'Record',
    },
    output: { connection: { bucket: 'data' }, prefix: 'out/' },
    model: 'llama',
    aliases: [],
    engine: 'vLLM',
    retry: { maxAttempts: 3, initialBackoffSeconds: 1, maxBackoffSeconds: 30 },
    requestTimeoutSeconds: 600,
    priority: 1_000,
    deadline: 4_000_000_000_000,
    run: 'Run',
  };
}

const { values, positionals } = parseArgs({
  options: { out: { type: 'string', default: RESULTS } },
  allowPositionals: true,
});
const sizes = positionals.map(Number);
const before = machine();
const rows: Row[] = [];
for (const shards of sizes.length > 0 ? sizes : [4_000, 40_000]) rows.push(await measure(shards));
const mb = (bytes: number): string => `${shown(bytes / 1024 / 1024)} MB`;
writeResult(
  'redis-memory',
  values.out,
  before,
  rows.map(({ lines, peakTotalBytes, emptyBytes, baselineBytes }) => ({
    measure: `Redis peak, ${lines.toLocaleString('en-US')} lines, workers played`,
    target: `≤ ${mb(TARGET_BYTES)}`,
    result: mb(peakTotalBytes),
    met: peakTotalBytes <= TARGET_BYTES,
    baseline: `all shards queued at once ${mb(emptyBytes + baselineBytes)}, empty ${mb(emptyBytes)}`,
  })),
  { jobs: rows },
);
