/**
 * The operator on a real API server and a real Redis, with 1,000 live jobs that make no progress and 10,000 finished
 * ones: what it writes while nothing happens, how soon a change of a spec shows in the status, and its memory. Then
 * one job of 10 M lines, 100,000 of which fail with the longest words that a status can carry: how large its status
 * is. Workers are played through the queue's own API: they index, and never take a shard.
 *
 * Writes are those that the API server counted, whoever sent them, less those of leases. Baseline of the reaction:
 * how soon our own watch shows the change of the spec itself.
 *
 *   node hack/bench/operator-scale.ts [--live 1000] [--finished 10000] [--seconds 60] [--samples 100] [--out FOLDER]
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { noOutcomes, noUsage, type RecentError } from '../../src/batch/model.ts';
import { systemClock } from '../../src/observability/clock.ts';
import { silentLogger } from '../../src/observability/logger.ts';
import type { IndexReport } from '../../src/queue/contract.ts';
import { createWorkerQueue } from '../../src/queue/worker-queue.ts';
import { installTidegate } from '../stack/install.ts';
import { startKube } from '../stack/kube.ts';
import { startRedis } from '../stack/redis.ts';
import { startTidegate } from '../stack/tidegate.ts';
import { KubeLoad, type WatchedObject } from './lib/kube-load.ts';
import { apiServerMetrics, metricsOf, type Sample } from './lib/metrics-page.ts';
import { cpuSecondsOf, memoryOf } from './lib/process-usage.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { median, quantile, rounded } from './lib/stats.ts';

const TARGET = { writes: 0, reactionP99Seconds: 2, rssMegabytes: 300, statusBytes: 32 * 1024 };
const GROUP = '/apis/tidegate.dev/v1alpha1/namespaces/default';
const JOBS = `${GROUP}/inferencebatchjobs`;
const PARALLEL = 16;
const MB = 1e6;
/** No write for this long: what the start of the operator had to write is written. */
const QUIET_MILLISECONDS = 20_000;
/** For the baseline of the memory. */
const EMPTY_MILLISECONDS = 10_000;
const SETTLE_WITHIN_MILLISECONDS = 600_000;
const LARGE = { lines: 10_000_000, shards: 40_000, failedLines: 100_000 };
const LARGE_JOB = 'large';

const { values } = parseArgs({
  options: {
    live: { type: 'string', default: '1000' },
    finished: { type: 'string', default: '10000' },
    seconds: { type: 'string', default: '60' },
    samples: { type: 'string', default: '100' },
    out: { type: 'string', default: RESULTS },
  },
});
const [live, finished] = [Number(values.live), Number(values.finished)];
const [seconds, samples] = [Number(values.seconds), Number(values.samples)];

const before = machine();
const dir = mkdtempSync(join(tmpdir(), 'tidegate-bench-'));
const stops: (() => Promise<unknown>)[] = [async () => rmSync(dir, { recursive: true, force: true })];
try {
  const kube = await startKube({ dir: join(dir, 'kube') });
  stops.push(() => kube.stop());
  const redis = await startRedis({ dir: join(dir, 'redis') });
  stops.push(() => redis.stop());
  await installTidegate(kube);
  const load = new KubeLoad(kube, PARALLEL + 1);
  stops.push(() => load.close());

  await load.call('POST', `${GROUP}/modeldeployments`, modelDeployment());
  const kubeconfig = await kube.kubeconfigFor({ namespace: 'tidegate-system', name: 'tidegate-operator' });
  const startOperator = (name: string) =>
    startTidegate({ role: 'operator', name, dir, redisUrl: redis.url, kubeconfig });
  const empty = await startOperator('operator-empty');
  await delay(EMPTY_MILLISECONDS);
  const emptyRssMegabytes = rounded(memoryOf(empty.pid).rssBytes / MB);
  await empty.stop();
  await load.many(finished, PARALLEL, async (index) => {
    await load.call('POST', JOBS, job(`finished-${index}`));
    await load.call('PATCH', `${JOBS}/finished-${index}/status`, { status: finishedStatus() });
  });
  await load.many(live, PARALLEL, (index) => load.call('POST', JOBS, job(`live-${index}`)));

  const worker = createWorkerQueue({
    ...{ redisUrl: redis.url, prefix: 'tg', workerId: 'bench-worker' },
    ...{ clock: systemClock, logger: silentLogger },
  });
  stops.push(() => worker.close(1_000));
  let largeUID = '';
  worker.serveTasks(async ({ kind, uid }) => {
    if (kind === 'index') {
      await worker.report(uid, { index: uid === largeUID ? largeIndex() : smallIndex(), doneShards: [] });
    }
  }, 32);

  const operator = await startOperator('operator');
  stops.push(() => operator.stop());

  const writes = async (): Promise<Map<string, number>> => writesOf(await apiServerMetrics(kube.request));
  while ((await jobStates(operator.httpUrl))['Queued'] !== live) await delay(1_000);
  const settleSeconds = await untilQuiet(writes);
  const states = await jobStates(operator.httpUrl);

  const [writesBefore, cpuBefore] = [await writes(), cpuSecondsOf(operator.pid)];
  await delay(seconds * 1_000);
  const steadyWrites = difference(writesBefore, await writes());
  const steadyCpuPercent = rounded(((cpuSecondsOf(operator.pid) - cpuBefore) / seconds) * 100);
  const { rssBytes } = memoryOf(operator.pid);

  const stopWatching = new AbortController();
  const seen = new Map<string, (object: WatchedObject) => void>();
  await load.watch(JOBS, (object) => seen.get(object.metadata.name)?.(object), stopWatching.signal);
  const reactions: { specSeconds: number; statusSeconds: number }[] = [];
  for (let sample = 0; sample < samples; sample++) {
    reactions.push(await reaction(load, seen, `live-${Math.floor((sample * live) / samples)}`));
  }
  stopWatching.abort();
  const { peakRssBytes } = memoryOf(operator.pid);

  const created = (await load.call('POST', JOBS, job(LARGE_JOB))) as WatchedObject;
  largeUID = created.metadata.uid;
  const statusBytes = await largeStatusBytes(load);

  const of = (pick: (each: { specSeconds: number; statusSeconds: number }) => number): number[] =>
    reactions.map(pick);
  const reactionP99Seconds = rounded(
    quantile(
      of(({ statusSeconds }) => statusSeconds),
      0.99,
    ),
  );
  const steadyWritesTotal = [...steadyWrites.values()].reduce((sum, count) => sum + count, 0);
  const rssMegabytes = rounded(rssBytes / MB);
  const specSeenP99Seconds = rounded(
    quantile(
      of(({ specSeconds }) => specSeconds),
      0.99,
    ),
  );
  const rows = [
    {
      measure: `Operator, ${live.toLocaleString('en-US')} live jobs that make no progress and ${finished.toLocaleString('en-US')} finished: writes in ${seconds} s`,
      target: String(TARGET.writes),
      result: String(steadyWritesTotal),
      met: steadyWritesTotal <= TARGET.writes,
      baseline: `${shown(steadyCpuPercent)} % of a core`,
    },
    {
      measure: `Its reaction to a change of a spec, p99 of ${samples}`,
      target: `< ${TARGET.reactionP99Seconds} s`,
      result: `${shown(reactionP99Seconds)} s`,
      met: reactionP99Seconds < TARGET.reactionP99Seconds,
      baseline: `the change itself in a watch ${shown(specSeenP99Seconds)} s`,
    },
    {
      measure: 'Its memory (RSS)',
      target: `< ${TARGET.rssMegabytes} MB`,
      result: `${shown(rssMegabytes)} MB`,
      met: rssMegabytes < TARGET.rssMegabytes,
      baseline: `without any job ${shown(emptyRssMegabytes)} MB`,
    },
    {
      measure: `Status of a job of ${LARGE.lines.toLocaleString('en-US')} lines, ${LARGE.failedLines.toLocaleString('en-US')} of them failed`,
      target: `< ${TARGET.statusBytes / 1024} KiB`,
      result: `${shown(statusBytes / 1024)} KiB`,
      met: statusBytes < TARGET.statusBytes,
      baseline: '',
    },
  ];
  writeResult('operator-scale', values.out, before, rows, {
    ...{ live, finished, states, settleSeconds: rounded(settleSeconds), seconds, samples },
    ...{ writes: steadyWritesTotal, writesByResource: Object.fromEntries(steadyWrites), steadyCpuPercent },
    reactionP99Seconds,
    reactionMedianSeconds: rounded(median(of(({ statusSeconds }) => statusSeconds))),
    specSeenP99Seconds,
    specSeenMedianSeconds: rounded(median(of(({ specSeconds }) => specSeconds))),
    ...{ emptyRssMegabytes, rssMegabytes, peakRssMegabytes: rounded(peakRssBytes / MB) },
    ...{ large: LARGE, statusBytes },
  });

  /** Every shard is reported as workers do; the size is that of the status once all failures are in it. */
  async function largeStatusBytes(api: KubeLoad): Promise<number> {
    const largeJob = async (): Promise<WatchedObject> =>
      (await api.call('GET', `${JOBS}/${LARGE_JOB}`)) as WatchedObject;
    const counts = async (): Promise<{ total?: number; failed?: number }> =>
      (await largeJob()).status?.['counts'] ?? {};
    while ((await counts()).total !== LARGE.lines) await delay(100);
    const linesPerShard = LARGE.lines / LARGE.shards;
    const failing = LARGE.failedLines / linesPerShard;
    // The last shard stays open, so that the job is not finished behind our back.
    await api.many(LARGE.shards - 1, 64, (shard) =>
      worker.shardDone(largeUID, shard, {
        counts: { ...noOutcomes(), [shard < failing ? 'failed' : 'completed']: linesPerShard },
        usage: { ...noUsage(), inputTokens: 250_000, outputTokens: 50_000 },
        ...{ resultsBytes: 500_000, errorsBytes: 500_000 },
        recentErrors: shard < failing ? longErrors(shard) : [],
      }),
    );
    while ((await counts()).failed !== LARGE.failedLines) await delay(100);
    return Buffer.byteLength(JSON.stringify((await largeJob()).status));
  }
} finally {
  for (const stop of stops.reverse()) await stop();
}

function modelDeployment(): object {
  return {
    ...{ apiVersion: 'tidegate.dev/v1alpha1', kind: 'ModelDeployment' },
    metadata: { name: 'model', namespace: 'default' },
    spec: { model: 'llama', target: { urls: ['http://192.0.2.1:8000'] } },
  };
}

function job(name: string): object {
  return {
    ...{ apiVersion: 'tidegate.dev/v1alpha1', kind: 'InferenceBatchJob' },
    metadata: { name, namespace: 'default', labels: { team: 'claims' } },
    spec: {
      modelRef: { name: 'model' },
      endpoint: '/v1/chat/completions',
      input: {
        s3: { bucket: 'data', keys: [`in/${name}.jsonl`], credentialsSecretRef: { name: 's3-credentials' } },
      },
      output: { s3: { bucket: 'data', prefix: `out/${name}/` } },
    },
  };
}

/** What a job leaves behind that ended and was cleaned up long ago. */
function finishedStatus(): object {
  const lastTransitionTime = '2026-11-01T00:00:00Z';
  const condition = (type: string, status: string, reason: string, message: string): object => ({
    ...{ type, status, reason, message, lastTransitionTime, observedGeneration: 1 },
  });
  return {
    observedGeneration: 1,
    state: 'Completed',
    message: '1,000 of 1,000 lines completed',
    conditions: [
      condition('Accepted', 'True', 'Accepted', 'runs on ModelDeployment default/model'),
      condition('Indexed', 'True', 'Indexed', '1,000 lines in 4 shards'),
      condition('Suspended', 'False', 'NotSuspended', 'spec.suspend is false'),
      condition('Running', 'False', 'Finished', 'the job has ended'),
      condition('Reconciling', 'False', 'Finished', 'the job has ended'),
      condition('Stalled', 'False', 'Finished', 'the job has ended'),
      condition('Complete', 'True', 'Completed', '1,000 of 1,000 lines completed'),
    ],
    counts: { total: 1_000, completed: 1_000, failed: 0, expired: 0, cancelled: 0 },
    ...{ progress: '1000/1000', percent: 100 },
    usage: { inputTokens: 250_000, cachedInputTokens: 0, outputTokens: 50_000 },
    outputs: { results: 's3://data/out/results.jsonl', manifest: 's3://data/out/manifest.json' },
    startTime: lastTransitionTime,
    indexedTime: lastTransitionTime,
    completionTime: lastTransitionTime,
    windowEndTime: '2026-11-02T00:00:00Z',
  };
}

function smallIndex(): IndexReport {
  return { total: 1_000, invalid: 0, shards: 4, bytes: 1_000_000, firstInvalid: [] };
}

function largeIndex(): IndexReport {
  return { total: LARGE.lines, invalid: 0, shards: LARGE.shards, bytes: 1e10, firstInvalid: [] };
}

/** Quotes and characters beyond ASCII: what takes most room. */
function longErrors(shard: number): RecentError[] {
  return Array.from({ length: 10 }, (_, position) => ({
    line: shard * 250 + position + 1,
    customID: '"é'.repeat(170),
    code: 'context_length_exceeded',
    message: '"é'.repeat(4_096),
  }));
}

/** Writes so far by verb and resource, as the API server counted them. */
function writesOf(page: readonly Sample[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { name, labels, value } of page) {
    if (name !== 'apiserver_request_total' || !/^(POST|PUT|PATCH|APPLY|DELETE)/.test(labels['verb'] ?? '')) {
      continue;
    }
    if (labels['resource'] === 'leases') continue;
    const subresource = labels['subresource'] === '' ? '' : `/${labels['subresource']}`;
    const key = `${labels['verb']} ${labels['resource']}${subresource}`;
    counts.set(key, (counts.get(key) ?? 0) + value);
  }
  return counts;
}

function difference(
  earlier: ReadonlyMap<string, number>,
  later: ReadonlyMap<string, number>,
): Map<string, number> {
  const grown = new Map<string, number>();
  for (const [key, value] of later) {
    const more = value - (earlier.get(key) ?? 0);
    if (more > 0) grown.set(key, more);
  }
  return grown;
}

/** @returns how long it took, in seconds, the quiet time at the end not counted. */
async function untilQuiet(writes: () => Promise<Map<string, number>>): Promise<number> {
  const started = performance.now();
  let last = await writes();
  let changedAt = performance.now();
  while (performance.now() - changedAt < QUIET_MILLISECONDS) {
    await delay(1_000);
    const now = await writes();
    const moved = difference(last, now);
    if (moved.size > 0) changedAt = performance.now();
    last = now;
    if (performance.now() - started > SETTLE_WITHIN_MILLISECONDS) {
      throw new Error(`still writing: ${JSON.stringify(Object.fromEntries(moved))}`);
    }
  }
  return (changedAt - started) / 1_000;
}

async function jobStates(operatorUrl: string): Promise<Record<string, number>> {
  const states: Record<string, number> = {};
  for (const { name, labels, value } of await metricsOf(operatorUrl)) {
    if (name === 'tidegate_jobs' && value > 0) states[labels['state'] ?? ''] = value;
  }
  return states;
}

/** Suspends a job: how soon the change itself, and then the status that answers it, come through our own watch. */
async function reaction(
  api: KubeLoad,
  seen: Map<string, (object: WatchedObject) => void>,
  name: string,
): Promise<{ specSeconds: number; statusSeconds: number }> {
  const started = performance.now();
  const since = (): number => (performance.now() - started) / 1_000;
  let specSeconds: number | undefined;
  const shown = new Promise<number>((resolve) => {
    seen.set(name, ({ spec, status }) => {
      if (spec['suspend'] === true) specSeconds ??= since();
      if (status?.['state'] === 'Suspended') resolve(since());
    });
  });
  await api.call('PATCH', `${JOBS}/${name}`, { spec: { suspend: true } });
  const statusSeconds = await shown;
  seen.delete(name);
  return { specSeconds: specSeconds ?? statusSeconds, statusSeconds };
}
