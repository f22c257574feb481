/**
 * CPU time a worker spends on one request while a job runs, against the look-alike that takes no time: reading the
 * input, places and leases, the call itself, the record, and the shard's result in S3 are all in it; what is before
 * the first tenth and after the last twentieth of the lines (index, start, publishing the end) is not.
 * Baseline in the same run: undici alone, with the same bodies, against the same engine.
 *
 *   node hack/bench/dispatch.ts [--runs 5] [--lines 20000] [--line-bytes 1000] [--in-flight 64] [--out FOLDER]
 */
import { parseArgs } from 'node:util';
import { join } from 'node:path';
import { writeCorpus } from './lib/corpus.ts';
import { metricsOf, sumOf } from './lib/metrics-page.ts';
import { cpuSecondsOf } from './lib/process-usage.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { median, rounded } from './lib/stats.ts';
import { bareLoop, startSystem } from './lib/system.ts';

const TARGET_MILLISECONDS = 0.5;
const WARM_UP_LINES = 10_000;

const { values } = parseArgs({
  options: {
    runs: { type: 'string', default: '5' },
    lines: { type: 'string', default: '20000' },
    'line-bytes': { type: 'string', default: '1000' },
    'in-flight': { type: 'string', default: '64' },
    out: { type: 'string', default: RESULTS },
  },
});
const [runs, lines, lineBytes] = [Number(values.runs), Number(values.lines), Number(values['line-bytes'])];
const inFlight = Number(values['in-flight']);

const before = machine();
const system = await startSystem({ engineArgs: ['--profile', 'instant'] }, inFlight);
try {
  const worker = system.stack.roles.find(({ role }) => role === 'worker')!;
  const engineUrl = system.stack.engineUrls[0]!;
  const linesDone = async (): Promise<number> =>
    sumOf(await metricsOf(worker.httpUrl), 'tidegate_lines_total');

  async function runJob(name: string, count: number): Promise<number> {
    const file = join(system.dir, `${count}.jsonl`);
    await writeCorpus(file, { lines: count, lineBytes });
    await system.putInput(`in/${name}`, file);
    const doneBefore = await linesDone();
    const samples: { lines: number; cpuSeconds: number }[] = [];
    await system.createJob(name, `in/${name}`);
    await system.untilCompleted(name, count, async () => {
      const done = (await linesDone()) - doneBefore;
      if (done < count * 0.1 || done > count * 0.95) return;
      samples.push({ lines: done, cpuSeconds: cpuSecondsOf(worker.pid) });
    });
    await system.removeJob(name);
    const [first, last] = [samples[0]!, samples.at(-1)!];
    return ((last.cpuSeconds - first.cpuSeconds) * 1e3) / (last.lines - first.lines);
  }

  await runJob('warm-up', WARM_UP_LINES);
  const file = join(system.dir, `${WARM_UP_LINES}.jsonl`);
  const worked: number[] = [];
  const bare: number[] = [];
  for (let run = 0; run < runs; run++) {
    worked.push(await runJob(`run-${run}`, lines));
    bare.push((await bareLoop(engineUrl, file, { inFlight, requests: lines })).cpuMillisecondsPerRequest);
  }
  const cpuMillisecondsPerRequest = rounded(median(worked));
  const bareCpuMillisecondsPerRequest = rounded(median(bare));
  const ratio = rounded(cpuMillisecondsPerRequest / bareCpuMillisecondsPerRequest);
  const row = {
    measure: `Worker CPU for a request, ${inFlight} in flight, lines of ${shown(lineBytes)} bytes`,
    target: `≤ ${TARGET_MILLISECONDS} ms`,
    result: `${shown(cpuMillisecondsPerRequest)} ms`,
    met: cpuMillisecondsPerRequest <= TARGET_MILLISECONDS,
    baseline: `bare undici ${shown(bareCpuMillisecondsPerRequest)} ms (ratio ${shown(ratio)})`,
  };
  writeResult('dispatch', values.out, before, [row], {
    ...{ runs, lines, lineBytes, inFlight, cpuMillisecondsPerRequest, bareCpuMillisecondsPerRequest, ratio },
    each: { worker: worked.map((each) => rounded(each)), bare: bare.map((each) => rounded(each)) },
  });
} finally {
  await system.stop();
}
