/**
 * CPU seconds of the workers for each line of whole jobs, from the object's creation to the end of its clean-up: index,
 * places, calls, checkpoints, results, publishing. Start-up is subtracted: the workers run and have done one job
 * before. Operator, Kubernetes, Redis and S3 are real; the engine answers at once, so that it costs little itself.
 * Baseline in the same run: undici alone, with the same bodies, against the same engine. With two workers the largest
 * of the regular sizes is run again.
 *
 *   node hack/bench/end-to-end.ts [--runs 3] [--lines 10000,100000] [--million] [--in-flight 64] [--out FOLDER]
 */
import { Redis } from 'ioredis';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { writeCorpus } from './lib/corpus.ts';
import { metricsOf, sumOf } from './lib/metrics-page.ts';
import { cpuSecondsOf } from './lib/process-usage.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { median, rounded } from './lib/stats.ts';
import { bareLoop, startBareEngine, startSystem, type System } from './lib/system.ts';

const TARGET = { spreadPercent: 10, redisPeakMegabytes: 5 };
/** Code is still being compiled in the first tens of thousands of lines; that belongs to the start. */
const WARM_UP_LINES = 50_000;
const BARE_BODIES = 10_000;
const MILLION = 1_000_000;
const [LINE_BYTES, ANSWER_BYTES] = [500, 500];
const MiB = 1024 * 1024;

const { values } = parseArgs({
  options: {
    runs: { type: 'string', default: '3' },
    lines: { type: 'string', default: '10000,100000' },
    million: { type: 'boolean', default: false },
    'in-flight': { type: 'string', default: '64' },
    out: { type: 'string', default: RESULTS },
  },
});
const inFlight = Number(values['in-flight']);
const sizes = values.lines.split(',').map(Number);
let jobs = 0;

interface JobCost {
  cpuMillisecondsPerLine: number;
  linesPerSecond: number;
  s3CallsPerThousandLines: number;
}

const before = machine();
const scratch = mkdtempSync(join(tmpdir(), 'tidegate-bench-'));
try {
  const engine = await startBareEngine(scratch, { delayMilliseconds: 0, answerBytes: ANSWER_BYTES });
  const one = await withSystem(engine.url, 1, async (system) => {
    await runJob(system, WARM_UP_LINES);
    const measured = [];
    for (const lines of sizes) measured.push(await runJobs(system, lines, Number(values.runs)));
    if (values.million) measured.push(await runJobs(system, MILLION, 1));
    return measured;
  });
  const largest = sizes.at(-1)!;
  const two = await withSystem(engine.url, 2, async (system) => {
    await runJob(system, 2 * WARM_UP_LINES);
    return [await runJobs(system, largest, Number(values.runs))];
  });
  const file = join(scratch, 'bare.jsonl');
  await writeCorpus(file, { lines: BARE_BODIES, lineBytes: LINE_BYTES });
  const bare: number[] = [];
  for (let run = 0; run < Number(values.runs); run++) {
    bare.push((await bareLoop(engine.url, file, { inFlight, requests: largest })).cpuMillisecondsPerRequest);
  }
  await engine.stop();

  const costs = one.result.map(({ cpuMillisecondsPerLine }) => cpuMillisecondsPerLine);
  const spreadPercent = rounded((Math.max(...costs) / Math.min(...costs) - 1) * 100);
  const ofLargest = one.result[sizes.length - 1]!;
  const redisPeakMegabytes = rounded(Math.max(one.redisPeakBytes, two.redisPeakBytes) / MiB);
  const bareCpuMillisecondsPerRequest = rounded(median(bare));
  const ratioToBare = rounded(ofLargest.cpuMillisecondsPerLine / bareCpuMillisecondsPerRequest);
  const ofTwo = two.result[0]!;
  const twoToOne = {
    linesPerSecond: rounded(ofTwo.linesPerSecond / ofLargest.linesPerSecond),
    cpuMillisecondsPerLine: rounded(ofTwo.cpuMillisecondsPerLine / ofLargest.cpuMillisecondsPerLine),
  };
  const rows = [
    {
      measure: `Worker CPU for a line of a whole job, ${one.result.map(({ lines }) => lines.toLocaleString('en-US')).join(' / ')} lines`,
      target: `flat within ${TARGET.spreadPercent} %`,
      result: `${costs.map(shown).join(' / ')} ms: ${shown(spreadPercent)} % apart`,
      met: spreadPercent <= TARGET.spreadPercent,
      baseline: `bare undici ${shown(bareCpuMillisecondsPerRequest)} ms (ratio ${shown(ratioToBare)})`,
    },
    {
      measure: `Two workers to one, ${largest.toLocaleString('en-US')} lines`,
      target: 'reported',
      result: `${shown(twoToOne.linesPerSecond)} × the lines/s, ${shown(twoToOne.cpuMillisecondsPerLine)} × the CPU for a line`,
      met: true,
      baseline: `one worker ${shown(ofLargest.linesPerSecond)} lines/s`,
    },
    {
      measure: 'Redis peak during all these jobs',
      target: `≤ ${TARGET.redisPeakMegabytes} MB`,
      result: `${shown(redisPeakMegabytes)} MB`,
      met: redisPeakMegabytes <= TARGET.redisPeakMegabytes,
      baseline: '',
    },
  ];
  writeResult('end-to-end', values.out, before, rows, {
    ...{ lineBytes: LINE_BYTES, answerBytes: ANSWER_BYTES, inFlight },
    ...{ bareCpuMillisecondsPerRequest, oneWorker: one.result, spreadPercent, ratioToBare },
    ...{ twoWorkers: two.result, twoToOne, redisPeakMegabytes },
  });
} finally {
  rmSync(scratch, { recursive: true, force: true });
}

async function withSystem<T>(
  engineUrl: string,
  workers: number,
  measure: (system: System) => Promise<T>,
): Promise<{ result: T; redisPeakBytes: number }> {
  const system = await startSystem({ engineUrl, workers }, inFlight);
  const redis = new Redis(system.stack.redis.url);
  try {
    const result = await measure(system);
    const peak = /^used_memory_peak:(\d+)/m.exec(await redis.info('memory'))?.[1];
    return { result, redisPeakBytes: Number(peak) };
  } finally {
    redis.disconnect();
    await system.stop();
  }
}

async function runJobs(system: System, lines: number, runs: number) {
  const each: JobCost[] = [];
  for (let run = 0; run < runs; run++) each.push(await runJob(system, lines));
  const of = (pick: (cost: JobCost) => number): number => rounded(median(each.map(pick)));
  return {
    ...{ lines, runs },
    cpuMillisecondsPerLine: of((cost) => cost.cpuMillisecondsPerLine),
    linesPerSecond: of((cost) => cost.linesPerSecond),
    s3CallsPerThousandLines: of((cost) => cost.s3CallsPerThousandLines),
    each,
  };
}

async function runJob(system: System, lines: number): Promise<JobCost> {
  const workers = system.stack.roles.filter(({ role }) => role === 'worker');
  const cpuSeconds = (): number => workers.reduce((sum, { pid }) => sum + cpuSecondsOf(pid), 0);
  const s3Calls = async (): Promise<number> => {
    const pages = await Promise.all(workers.map(({ httpUrl }) => metricsOf(httpUrl)));
    return pages.reduce((sum, page) => sum + sumOf(page, 'tidegate_s3_requests_total'), 0);
  };
  const file = join(scratch, 'in.jsonl');
  await writeCorpus(file, { lines, lineBytes: LINE_BYTES });
  await system.putInput('in.jsonl', file);
  const [cpuBefore, callsBefore, started] = [cpuSeconds(), await s3Calls(), performance.now()];
  const name = `job-${jobs++}`;
  await system.createJob(name, 'in.jsonl');
  await system.untilCompleted(name, lines);
  const seconds = (performance.now() - started) / 1000;
  await system.removeJob(name);
  const cost: JobCost = {
    cpuMillisecondsPerLine: rounded(((cpuSeconds() - cpuBefore) * 1e3) / lines),
    linesPerSecond: rounded(lines / seconds),
    s3CallsPerThousandLines: rounded(((await s3Calls()) - callsBefore) / (lines / 1000)),
  };
  console.error(`${workers.length} worker(s), ${lines} lines: ${JSON.stringify(cost)}`);
  return cost;
}
