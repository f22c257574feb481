/** Results of a benchmark as JSON, with what one must know of the machine to judge them. */
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

export const machine = (): Machine => ({
  date: new Date().toISOString().slice(0, 10),
  node: process.version,
  cpu: cpus()[0]?.model,
  cores: cpus().length,
  loadAverageBefore: Math.round((loadavg()[0] ?? 0) * 10) / 10,
});

/** Writes `<folder>/<name>.json` and prints it. A target that was missed makes the exit code 1. */
export function writeResult(
  name: string,
  folder: string,
  before: Machine,
  result: { met: boolean } & Record<string, unknown>,
): void {
  mkdirSync(folder, { recursive: true });
  const loadAverageAfter = Math.round((loadavg()[0] ?? 0) * 10) / 10;
  const text = JSON.stringify({ benchmark: name, ...before, loadAverageAfter, ...result }, undefined, 2);
  writeFileSync(join(folder, `${name}.json`), `${text}\n`);
  console.log(text);
  if (!result.met) process.exitCode = 1;
}
