/**
 * The results as one table, for docs/benchmarks.md.
 *
 *   node hack/bench/table.ts [FOLDER]      prints the table of these results
 *   node hack/bench/table.ts --write       puts that of hack/bench/results into docs/benchmarks.md
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { format, resolveConfig } from 'prettier';
import { REPOSITORY } from '../stack/paths.ts';
import { RESULTS, type Result } from './lib/result.ts';

const PAGE = join(REPOSITORY, 'docs', 'benchmarks.md');
const [BEGIN, END] = ['<!-- table: written by node hack/bench/table.ts --write -->', '<!-- /table -->'];

const BENCHMARKS = [
  ...['index', 'dispatch', 'in-flight', 'end-to-end'],
  ...['redis-memory', 'publish', 'operator-scale'],
];

function table(folder: string): string {
  const lines = [
    '| Measure | Target | Result | | Baseline in the same run | Benchmark, load before |',
    '| --- | --- | --- | --- | --- | --- |',
  ];
  for (const name of BENCHMARKS) {
    const file = join(folder, `${name}.json`);
    if (!existsSync(file)) continue;
    const { rows, date, loadAverageBefore } = JSON.parse(readFileSync(file, 'utf8')) as Result;
    for (const { measure, target, result, met, baseline } of rows) {
      const cells = [measure, target, result, met ? '' : '**missed**', baseline];
      lines.push(`| ${[...cells, `${name}, ${date}, ${loadAverageBefore}`].join(' | ')} |`);
    }
  }
  return lines.join('\n');
}

const { values, positionals } = parseArgs({
  options: { write: { type: 'boolean', default: false } },
  allowPositionals: true,
});
const text = table(positionals[0] ?? RESULTS);
if (values.write) {
  const page = readFileSync(PAGE, 'utf8');
  const [head, tail] = [page.indexOf(BEGIN), page.indexOf(END)];
  if (head < 0 || tail < head) throw new Error(`${PAGE} has no "${BEGIN}" before a "${END}"`);
  const filled = `${page.slice(0, head)}${BEGIN}\n\n${text}\n\n${page.slice(tail)}`;
  writeFileSync(PAGE, await format(filled, { ...(await resolveConfig(PAGE)), parser: 'markdown' }));
} else {
  console.log(text);
}
