/**
 * One measurement in a process of its own: `node hack/bench/index-pass.ts <mode> <file> <runs>` prints one JSON object.
 * Modes: `scan` (count 0x0A), `parse` (frame and JSON.parse each line), `index` (the whole index pass, spill and
 * chunks on disk). The first of `runs` + 1 passes warms up and is not counted, unless there is only one.
 */
import { randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Framer } from '../../src/batch/framing.ts';
import { buildIndex } from '../../src/batch/index-builder.ts';
import { DiskSpill } from '../../src/worker/index/disk-spill.ts';
import { BENCH_MODEL } from './lib/corpus.ts';

export interface PassResult {
  /** Per counted run. */
  wallSeconds: number[];
  /** User and system time per counted run. */
  cpuSeconds: number[];
  lines: number;
  bytes: number;
  idleRssBytes: number;
  /** Of all runs. */
  peakRssBytes: number;
}

const READ_BYTES = 256 * 1024;
const MAX_SPILL_BYTES = 1024 * 1024 * 1024;
const read = (file: string): AsyncIterable<Uint8Array> =>
  createReadStream(file, { highWaterMark: READ_BYTES }) as AsyncIterable<Uint8Array>;

interface Pass {
  lines: number;
  bytes: number;
}

async function scan(file: string): Promise<Pass> {
  let lines = 0;
  let bytes = 0;
  for await (const chunk of read(file)) {
    bytes += chunk.length;
    for (let at = chunk.indexOf(0x0a); at >= 0; at = chunk.indexOf(0x0a, at + 1)) lines++;
  }
  return { lines, bytes };
}

async function parse(file: string): Promise<Pass> {
  let lines = 0;
  let bytes = 0;
  const framer = new Framer();
  for await (const chunk of read(file)) {
    bytes += chunk.length;
    framer.feed(chunk, (buffer, start, end) => {
      if (buffer === undefined) return;
      const text = Buffer.from(buffer.buffer as ArrayBuffer, buffer.byteOffset, buffer.length).toString(
        'utf8',
        start,
        end,
      );
      const { custom_id: id } = JSON.parse(text) as { custom_id: string };
      if (id.length > 0) lines++;
    });
  }
  return { lines, bytes };
}

async function index(file: string): Promise<Pass> {
  const folder = await mkdtemp(join(tmpdir(), 'tidegate-bench-'));
  const spill = await DiskSpill.create(folder, MAX_SPILL_BYTES);
  const chunkFile = (chunk: number): string => join(folder, `chunk-${chunk}`);
  try {
    const summary = await buildIndex({
      jobUID: 'bench',
      rules: { endpoint: '/v1/chat/completions', model: BENCH_MODEL, aliases: ['llama'] },
      spill,
      hashKey: randomBytes(8),
      sources: [
        {
          inputKey: file,
          chunks: read(file),
          describe: (bytes) => ({ bucket: '', key: file, etag: '', bytes, inputKey: file, inputEtag: '' }),
        },
      ],
      writeChunk: (chunk, bytes) => writeFile(chunkFile(chunk), bytes),
      readChunk: (chunk) => readFile(chunkFile(chunk)),
    });
    if (summary.invalid > 0) throw new Error(`unexpected: ${JSON.stringify(summary.firstInvalid[0])}`);
    return { lines: summary.total, bytes: summary.bytes };
  } finally {
    await spill.close();
    await rm(folder, { recursive: true, force: true });
  }
}

const [mode, file, runsText] = process.argv.slice(2);
const pass = { scan, parse, index }[mode ?? ''];
if (pass === undefined || file === undefined)
  throw new Error('usage: index-pass.ts scan|parse|index FILE RUNS');
const runs = Number(runsText ?? '1');

const result: PassResult = {
  wallSeconds: [],
  cpuSeconds: [],
  lines: 0,
  bytes: 0,
  idleRssBytes: process.memoryUsage.rss(),
  peakRssBytes: 0,
};
for (let run = runs > 1 ? -1 : 0; run < runs; run++) {
  const started = process.hrtime.bigint();
  const cpuBefore = process.cpuUsage();
  const { lines, bytes } = await pass(file);
  const cpu = process.cpuUsage(cpuBefore);
  if (run < 0) continue;
  result.wallSeconds.push(Number(process.hrtime.bigint() - started) / 1e9);
  result.cpuSeconds.push((cpu.user + cpu.system) / 1e6);
  result.lines = lines;
  result.bytes = bytes;
}
result.peakRssBytes = process.resourceUsage().maxRSS * 1024;
console.log(JSON.stringify(result));
