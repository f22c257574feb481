/**
 * One worker with many requests in flight, bodies and answers of 4 kB, an engine that takes a second for each: how
 * late the worker's timers come (its own metric, which looks back over 5 to 10 s), and its memory. The first seconds,
 * in which all connections are opened, count. Baseline in the same run: undici alone with as many in flight, and the
 * worker while it has nothing to do.
 *
 *   node hack/bench/in-flight.ts [--runs 3] [--seconds 40] [--in-flight 1000] [--bytes 4000] [--out FOLDER]
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { writeCorpus } from './lib/corpus.ts';
import { metricsOf, sumOf } from './lib/metrics-page.ts';
import { memoryOf } from './lib/process-usage.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { median, rounded } from './lib/stats.ts';
import { bareLoop, startBareEngine, startSystem } from './lib/system.ts';

const TARGET = { eventLoopDelayP99Milliseconds: 50, rssMegabytes: 400 };
const ENGINE_MILLISECONDS = 1_000;
/** The metric's look back. */
const IDLE_MILLISECONDS = 11_000;
const MB = 1e6;

const { values } = parseArgs({
  options: {
    runs: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '40' },
    'in-flight': { type: 'string', default: '1000' },
    bytes: { type: 'string', default: '4000' },
    out: { type: 'string', default: RESULTS },
  },
});
const [runs, inFlight, bytes] = [Number(values.runs), Number(values['in-flight']), Number(values.bytes)];
const lines = Number(values.seconds) * inFlight;

interface Run {
  idleDelayP99Milliseconds: number;
  /** The worst of all looks while the job ran. */
  delayP99Milliseconds: number;
  mostInFlight: number;
  peakRssMegabytes: number;
  bareDelayP99Milliseconds: number;
  bareRssMegabytes: number;
}

const before = machine();
const scratch = mkdtempSync(join(tmpdir(), 'tidegate-bench-'));
try {
  const engine = await startBareEngine(scratch, {
    delayMilliseconds: ENGINE_MILLISECONDS,
    answerBytes: bytes,
  });
  const each: Run[] = [];
  for (let run = 0; run < runs; run++) each.push(await measure(engine.url));
  await engine.stop();
  const of = (pick: (run: Run) => number): number => rounded(median(each.map(pick)));
  const eventLoopDelayP99Milliseconds = of((run) => run.delayP99Milliseconds);
  const rssMegabytes = of((run) => run.peakRssMegabytes);
  const baseline = {
    idleWorkerDelayP99Milliseconds: of((run) => run.idleDelayP99Milliseconds),
    bareLoopDelayP99Milliseconds: of((run) => run.bareDelayP99Milliseconds),
    bareLoopRssMegabytes: of((run) => run.bareRssMegabytes),
  };
  const rows = [
    {
      measure: `Event-loop delay p99, ${shown(inFlight)} in flight, bodies and answers of ${shown(bytes)} bytes`,
      target: `< ${TARGET.eventLoopDelayP99Milliseconds} ms`,
      result: `${shown(eventLoopDelayP99Milliseconds)} ms`,
      met: eventLoopDelayP99Milliseconds < TARGET.eventLoopDelayP99Milliseconds,
      baseline: `bare undici ${shown(baseline.bareLoopDelayP99Milliseconds)} ms, idle worker ${shown(baseline.idleWorkerDelayP99Milliseconds)} ms`,
    },
    {
      measure: 'Peak memory (RSS) of that worker',
      target: `< ${TARGET.rssMegabytes} MB`,
      result: `${shown(rssMegabytes)} MB`,
      met: rssMegabytes < TARGET.rssMegabytes,
      baseline: `bare undici ${shown(baseline.bareLoopRssMegabytes)} MB`,
    },
  ];
  writeResult('in-flight', values.out, before, rows, {
    ...{ runs, lines, bytes, inFlight, mostInFlight: of((run) => run.mostInFlight) },
    ...{ eventLoopDelayP99Milliseconds, rssMegabytes, baseline, each },
  });
} finally {
  rmSync(scratch, { recursive: true, force: true });
}

/** A fresh worker each time: what it once held must not count for the next run. */
async function measure(engineUrl: string): Promise<Run> {
  const system = await startSystem({ engineUrl }, inFlight);
  try {
    const worker = system.stack.roles.find(({ role }) => role === 'worker')!;
    const operator = system.stack.roles.find(({ role }) => role === 'operator')!;
    const delayP99 = async (): Promise<number> =>
      1e3 *
      sumOf(
        await metricsOf(worker.httpUrl),
        'tidegate_event_loop_delay_seconds',
        ({ quantile }) => quantile === '0.99',
      );
    const file = join(system.dir, 'in.jsonl');
    await writeCorpus(file, { lines, lineBytes: bytes });
    await system.putInput('in.jsonl', file);
    await delay(IDLE_MILLISECONDS);
    const idleDelayP99Milliseconds = await delayP99();

    let [worst, mostInFlight] = [0, 0];
    await system.createJob('job', 'in.jsonl');
    await system.untilCompleted('job', lines, async () => {
      worst = Math.max(worst, await delayP99());
      mostInFlight = Math.max(mostInFlight, sumOf(await metricsOf(operator.httpUrl), 'tidegate_in_flight'));
    });
    const peakRssMegabytes = memoryOf(worker.pid).peakRssBytes / MB;
    const bare = await bareLoop(engineUrl, file, { inFlight, requests: lines });
    return {
      idleDelayP99Milliseconds: rounded(idleDelayP99Milliseconds),
      delayP99Milliseconds: rounded(worst),
      mostInFlight,
      peakRssMegabytes: rounded(peakRssMegabytes),
      bareDelayP99Milliseconds: rounded(bare.eventLoopDelayP99Milliseconds),
      bareRssMegabytes: rounded(bare.rssBytes / MB),
    };
  } finally {
    await system.stop();
  }
}
