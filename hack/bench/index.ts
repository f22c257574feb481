/**
 * Speed and memory of the index pass, with baselines in the same run; writes hack/bench/results/index.json.
 *
 *   node hack/bench/index.ts                               short: 200 MB each, 1 M lines for memory
 *   node hack/bench/index.ts --memory-lines 10000000       the figure of 10 M lines of 200 bytes
 *   node hack/bench/index.ts --memory-gigabytes 10         the figure of 10 GB, in lines of --memory-line-bytes (1 MiB)
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import type { PassResult } from './index-pass.ts';
import { writeCorpus, type Corpus } from './lib/corpus.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { median } from './lib/stats.ts';

const TARGET = {
  megabytesPerSecondAt1kB: 300,
  linesPerSecondAt200Bytes: 400_000,
  peakAboveIdleMegabytes: 150,
};

const { values } = parseArgs({
  options: {
    runs: { type: 'string', default: '5' },
    megabytes: { type: 'string', default: '200' },
    'memory-lines': { type: 'string', default: '1000000' },
    'memory-gigabytes': { type: 'string', default: '0.5' },
    'memory-line-bytes': { type: 'string', default: String(1024 * 1024) },
    out: { type: 'string', default: RESULTS },
  },
});
const runs = Number(values.runs);
const folder = await mkdtemp(join(tmpdir(), 'tidegate-corpus-'));

async function measure(mode: 'scan' | 'parse' | 'index', file: string, times: number): Promise<PassResult> {
  const child = await promisify(execFile)(process.execPath, [
    join(import.meta.dirname, 'index-pass.ts'),
    mode,
    file,
    String(times),
  ]);
  return JSON.parse(child.stdout) as PassResult;
}

async function withCorpus<T>(corpus: Corpus, use: (file: string) => Promise<T>): Promise<T> {
  const file = join(folder, `${corpus.lines}x${corpus.lineBytes}.jsonl`);
  await writeCorpus(file, corpus);
  try {
    return await use(file);
  } finally {
    await rm(file);
  }
}

interface Rate {
  megabytesPerSecond: number;
  linesPerSecond: number;
  /** By user and system time instead of the wall: what a machine that others use, too, would give when idle. */
  linesPerCpuSecond: number;
}

const rate = (r: PassResult): Rate => ({
  megabytesPerSecond: Math.round(r.bytes / 1e6 / median(r.wallSeconds)),
  linesPerSecond: Math.round(r.lines / median(r.wallSeconds)),
  linesPerCpuSecond: Math.round(r.lines / median(r.cpuSeconds)),
});

async function speed(lineBytes: number) {
  const lines = Math.round((Number(values.megabytes) * 1e6) / lineBytes);
  return withCorpus({ lines, lineBytes }, async (file) => ({
    lineBytes,
    lines,
    rawScan: rate(await measure('scan', file, runs)),
    jsonParse: rate(await measure('parse', file, runs)),
    indexPass: rate(await measure('index', file, runs)),
  }));
}

async function memory(corpus: Corpus) {
  return withCorpus(corpus, async (file) => {
    const r = await measure('index', file, 1);
    return {
      ...corpus,
      bytes: r.bytes,
      seconds: Math.round(r.wallSeconds[0]! * 10) / 10,
      idleRssMegabytes: Math.round(r.idleRssBytes / 1e6),
      peakAboveIdleMegabytes: Math.round((r.peakRssBytes - r.idleRssBytes) / 1e6),
    };
  });
}

const before = machine();
try {
  const longLineBytes = Number(values['memory-line-bytes']);
  const [kilobyteLines, shortLines] = [await speed(1000), await speed(200)];
  const memories = [
    await memory({ lines: Number(values['memory-lines']), lineBytes: 200 }),
    await memory({
      lines: Math.ceil((Number(values['memory-gigabytes']) * 1e9) / longLineBytes),
      lineBytes: longLineBytes,
    }),
  ];
  const passRow = (
    of: typeof kilobyteLines,
    unit: string,
    per: 'megabytesPerSecond' | 'linesPerSecond',
    target: number,
  ) => ({
    measure: `Index pass with all checks, lines of ${shown(of.lineBytes)} bytes`,
    target: `≥ ${shown(target)} ${unit}`,
    result: `${shown(of.indexPass[per])} ${unit}; ${shown(of.indexPass.linesPerCpuSecond)} lines per CPU second`,
    met: of.indexPass[per] >= target,
    baseline: `counting line breaks ${shown(of.rawScan[per])}, JSON.parse per line ${shown(of.jsonParse[per])} ${unit}`,
  });
  const rows = [
    passRow(kilobyteLines, 'MB/s', 'megabytesPerSecond', TARGET.megabytesPerSecondAt1kB),
    passRow(shortLines, 'lines/s', 'linesPerSecond', TARGET.linesPerSecondAt200Bytes),
    ...memories.map(({ lines, lineBytes, bytes, peakAboveIdleMegabytes, idleRssMegabytes }) => ({
      measure: `Its memory, ${lines.toLocaleString('en-US')} lines of ${lineBytes.toLocaleString('en-US')} bytes (${shown(bytes / 1e9)} GB)`,
      target: `≤ ${TARGET.peakAboveIdleMegabytes} MB above idle`,
      result: `${shown(peakAboveIdleMegabytes)} MB`,
      met: peakAboveIdleMegabytes <= TARGET.peakAboveIdleMegabytes,
      baseline: `idle ${shown(idleRssMegabytes)} MB`,
    })),
  ];
  writeResult('index', values.out, before, rows, {
    ...{ runs, speed: [kilobyteLines, shortLines], memory: memories },
  });
} finally {
  await rm(folder, { recursive: true, force: true });
}
