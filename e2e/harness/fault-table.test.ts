import { describe, expect, test } from '@jest/globals';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { MOMENTS } from './fault-table.ts';

const SOURCES = join(import.meta.dirname, '..', '..', 'src');

/** Names of fail points as the sources write them; a `${…}` in a name stands for one word. */
function failPointsInSources(): string[] {
  const names = readdirSync(SOURCES, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
    .flatMap((path) => [
      ...readFileSync(join(SOURCES, path), 'utf8').matchAll(/failPoint\(\s*['`]([^'`]+)['`]/g),
    ])
    .map(([, name = '']) => name);
  return [...new Set(names)];
}

const patternOf = (name: string): RegExp =>
  new RegExp(`^${name.replaceAll('.', '\\.').replaceAll(/\$\{[^}]*\}/g, '[a-z]+')}$`);

/** Moments that have another one right beside them, with no write between the two. */
const BESIDE_ANOTHER = [
  'claim.absent',
  'finalize.checked',
  'operator.deployment.status-writing',
  'operator.job.${report}-cleared',
  'operator.job.finalizer-removed',
  'publish.${file}.begin',
  'publish.${file}.checked',
  'worker.index.claimed',
  'worker.${task.kind}.performed',
];

describe('the table of faults', () => {
  const names = failPointsInSources();

  test.each(MOMENTS.map(({ failPoint }) => failPoint))('%s is a fail point of the sources', (failPoint) => {
    expect(names.filter((name) => patternOf(name).test(failPoint))).not.toEqual([]);
  });

  test('leaves out no fail point but those right beside another', () => {
    const uncovered = names.filter(
      (name) =>
        !BESIDE_ANOTHER.includes(name) && !MOMENTS.some(({ failPoint }) => patternOf(name).test(failPoint)),
    );
    expect(uncovered).toEqual([]);
  });
});
