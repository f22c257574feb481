/**
 * `make bench`: every benchmark once, small, one after the other, and the table of what came out. For the figures of
 * docs/benchmarks.md each is run by itself, larger and several times.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, openSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { logTail } from '../stack/child.ts';
import { CACHE, nodeBinary } from '../stack/paths.ts';

const OUT = join(CACHE, 'bench');

const SHORT: Readonly<Record<string, readonly string[]>> = {
  index: ['--runs', '3', '--megabytes', '100', '--memory-lines', '500000', '--memory-gigabytes', '0.2'],
  dispatch: ['--runs', '1'],
  'in-flight': ['--runs', '1', '--seconds', '15'],
  'end-to-end': ['--runs', '1', '--lines', '10000,30000'],
  'redis-memory': ['4000'],
  publish: ['--mib', '64'],
  'operator-scale': ['--live', '100', '--finished', '1000', '--seconds', '20', '--samples', '30'],
};

/** Resolves when it has ended; with a missed target it ends with 1, as with an error, but leaves a result. */
function run(name: string, args: readonly string[]): Promise<void> {
  const log = openSync(join(OUT, `${name}.log`), 'w');
  const child = spawn(
    nodeBinary(),
    ['--disable-warning=ExperimentalWarning', join(import.meta.dirname, `${name}.ts`), '--out', OUT, ...args],
    { stdio: ['ignore', log, log] },
  );
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', () => resolve());
  });
}

rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT, { recursive: true });
console.log('Benchmarks, in short: about eight minutes on two cores');
for (const [name, args] of Object.entries(SHORT)) {
  const started = performance.now();
  await run(name, args);
  const seconds = Math.round((performance.now() - started) / 1000);
  if (existsSync(join(OUT, `${name}.json`))) console.log(`  ${name}: ${seconds} s`);
  else {
    console.error(`  ${name} did not come to a result:\n${logTail(join(OUT, `${name}.log`))}`);
    process.exitCode = 1;
  }
}
process.argv.splice(2, Infinity, OUT);
await import('./table.ts');
