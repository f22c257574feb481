import { describe, expect, test } from '@jest/globals';
import { invalidFixtures, samples, validFixtures } from '../../hack/fixtures.ts';
import { manifestProblems } from './validate.ts';

describe('a manifest judged without a cluster', () => {
  const own = [...samples(), ...validFixtures()].filter(({ manifest }) =>
    manifest.apiVersion.startsWith('tidegate.dev/'),
  );
  test.each(own)('$name is accepted', ({ manifest }) => {
    expect(manifestProblems(manifest)).toEqual([]);
  });

  test.each(invalidFixtures())('$name is refused, naming field and what is allowed', (fixture) => {
    const problems = manifestProblems(fixture.manifest);
    expect(problems.map(({ field }) => field)).toContain(fixture.field);
    const said = problems.map(({ message }) => message).join('\n');
    for (const expected of fixture.says) expect(said).toContain(expected);
  });

  test.each([
    ['nothing', undefined],
    ['a list', []],
    ['a kind of another group', { apiVersion: 'batch/v1', kind: 'Job' }],
    ['a version that does not exist', { apiVersion: 'tidegate.dev/v2', kind: 'InferenceBatchJob' }],
  ])('%s is refused', (_name, manifest) => {
    expect(manifestProblems(manifest)).toHaveLength(1);
  });

  test('names the kinds it knows', () => {
    expect(manifestProblems({ apiVersion: 'batch/v1', kind: 'Job' })[0]?.message).toBe(
      'found batch/v1 Job; known: tidegate.dev/v1alpha1 InferenceBatchJob, tidegate.dev/v1alpha1 ModelDeployment',
    );
  });
});
