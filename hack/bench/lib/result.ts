/** Results of a benchmark as JSON: rows for people, and all that was measured, with what one must know to judge it. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';

export const RESULTS = join(import.meta.dirname, '..', 'results');

export interface Machine {
  date: string;
  node: string;
  cpu: string | undefined;
  cores: number;
  /** Of one minute, before the benchmark: who else used the machine. */
  loadAverageBefore: number;
}

/** One line of the table in docs/benchmarks.md. */
export interface Row {
  measure: string;
  target: string;
  result: string;
  /** A measure without a target is met. */
  met: boolean;
  /** What else was measured in the same run, to compare with. */
  baseline: string;
}

export interface Result extends Machine {
  benchmark: string;
  loadAverageAfter: number;
  rows: Row[];
}

const load = (): number => Math.round((loadavg()[0] ?? 0) * 10) / 10;

export const machine = (): Machine => ({
  date: new Date().toISOString().slice(0, 10),
  node: process.version,
  cpu: cpus()[0]?.model,
  cores: cpus().length,
  loadAverageBefore: load(),
});

/** Three digits: what a measurement on a shared machine is worth. */
export const shown = (value: number): string =>
  value.toLocaleString('en-US', { maximumSignificantDigits: 3 });

/** Writes `<folder>/<benchmark>.json` and prints it. A target that was missed makes the exit code 1. */
export function writeResult(
  benchmark: string,
  folder: string,
  before: Machine,
  rows: Row[],
  measured: Record<string, unknown>,
): void {
  mkdirSync(folder, { recursive: true });
  const result: Result = { benchmark, ...before, loadAverageAfter: load(), rows };
  const text = JSON.stringify({ ...result, measured }, undefined, 2);
  writeFileSync(join(folder, `${benchmark}.json`), `${text}\n`);
  console.log(text);
  if (rows.some(({ met }) => !met)) process.exitCode = 1;
}
