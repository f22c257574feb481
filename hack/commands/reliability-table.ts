/**
 * Writes the table of docs/reliability.md between its markers from the last full fault run (`make faults`).
 * Fails when a row is missing or did not hold: a page that claims more than was seen is worse than none.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FAULTS, fullTable, MOMENTS, type Fault, type Moment } from '../../e2e/harness/fault-table.ts';
import { CACHE, REPOSITORY } from '../stack/paths.ts';

interface PlayedRow {
  moment: Moment;
  fault: Fault;
  seconds: number;
  /** Absent when the row did not come to its end. */
  violations?: string[];
}

const PAGE = join(REPOSITORY, 'docs', 'reliability.md');
const BEGIN = '<!-- faults: written by make faults -->';
const END = '<!-- /faults -->';

const keyOf = (moment: Moment, fault: Fault): string => `${moment.failPoint} ${moment.course} ${fault}`;

/** One line for each moment, one column for each fault; `held` = the invariant held. */
export function faultTable(rows: readonly PlayedRow[]): string {
  const played = new Map(rows.map((row) => [keyOf(row.moment, row.fault), row]));
  const faults = Object.keys(FAULTS) as Fault[];
  const cell = (moment: Moment, fault: Fault): string => {
    const row = played.get(keyOf(moment, fault));
    if (row === undefined) return '–';
    return row.violations?.length === 0 ? 'held' : '**broken**';
  };
  return [
    `| moment | process | ${faults.join(' | ')} |`,
    `|---|---|${faults.map(() => '---|').join('')}`,
    ...MOMENTS.map(
      (moment) =>
        `| ${moment.title} | ${moment.role} | ${faults.map((fault) => cell(moment, fault)).join(' | ')} |`,
    ),
  ].join('\n');
}

function main(): void {
  const rows = readFileSync(join(CACHE, 'faults.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as PlayedRow);
  const held = new Set(
    rows.filter(({ violations }) => violations?.length === 0).map((row) => keyOf(row.moment, row.fault)),
  );
  const missing = fullTable().filter(({ moment, fault }) => !held.has(keyOf(moment, fault)));
  const page = readFileSync(PAGE, 'utf8');
  const [start, end] = [page.indexOf(BEGIN), page.indexOf(END)];
  if (start === -1 || end === -1) throw new Error(`${PAGE} lacks the lines ${BEGIN} and ${END}`);
  const legend = Object.entries(FAULTS).map(([fault, meaning]) => `- *${fault}*: ${meaning}`);
  const text = [BEGIN, '', ...legend, '', faultTable(rows), '', END].join('\n');
  writeFileSync(PAGE, page.slice(0, start) + text + page.slice(end + END.length));
  console.log(`${held.size} of ${fullTable().length} rows held; docs/reliability.md has the table`);
  if (missing.length > 0) process.exitCode = 1;
}

if (import.meta.main) main();
