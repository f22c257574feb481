import { describe, expect, test } from '@jest/globals';
import { deploymentOf, jobOf } from '../testing/builders.ts';
import { objectionTo } from './accept.ts';
import { descriptorOf, windowEnd, workPrefixOf } from './descriptor.ts';

const minio = { endpoint: 'https://s3.example.com', region: 'eu', credentialsSecretRef: { name: 's3' } };
const withLocations = (input: object, output: object) => {
  const { spec } = jobOf();
  return jobOf({
    spec: {
      input: { ...spec.input, s3: { ...spec.input.s3, ...input } },
      output: { s3: { ...spec.output.s3, ...output } },
    },
  });
};
const described = (job = jobOf(), deployment = deploymentOf()) =>
  descriptorOf(job, deployment, undefined, 'Run', 1_000);

describe('what workers are told of a job', () => {
  test('is all that they need, with the deadline counted from creation', () => {
    expect(described(jobOf({ spec: { maxInFlight: 9 } }))).toEqual({
      uid: 'uid-1',
      namespace: 'team',
      name: 'claims',
      generation: 1,
      queue: 'team.llama',
      endpoint: '/v1/chat/completions',
      input: {
        connection: { bucket: 'in' },
        keys: ['a.jsonl'],
        compression: 'Auto',
        invalidLines: 'Record',
      },
      output: { connection: { bucket: 'out' }, prefix: 'x/' },
      model: 'meta/llama',
      aliases: [],
      engine: 'vLLM',
      retry: { maxAttempts: 5, initialBackoffSeconds: 1, maxBackoffSeconds: 60 },
      requestTimeoutSeconds: 600,
      maxInFlight: 9,
      priority: 1_000,
      deadline: Date.parse('2026-12-01T12:00:00Z'),
      run: 'Run',
    });
  });

  test('names the key of the deployment in the namespace of the deployment', () => {
    const job = jobOf({ spec: { modelRef: { name: 'llama', namespace: 'serving' } } });
    const descriptor = described(job, deploymentOf({ authSecretRef: { name: 'key' } }, 'serving'));
    expect(descriptor).toMatchObject({
      queue: 'serving.llama',
      authSecretRef: { namespace: 'serving', name: 'key' },
    });
  });

  test.each<[string, object, object, object]>([
    ['takes the connection of the input whole where it names none', minio, {}, { ...minio, bucket: 'out' }],
    [
      'has only its own where it names any part of one',
      minio,
      { region: 'us' },
      { bucket: 'out', region: 'us' },
    ],
  ])('the output %s', (_name, input, output, expected) => {
    expect(described(withLocations(input, output)).output.connection).toEqual(expected);
  });

  test('keeps what was known of a deployment that is gone', () => {
    const last = described(jobOf(), deploymentOf({ authSecretRef: { name: 'key' } }));
    expect(descriptorOf(jobOf(), undefined, last, 'Stop', 1_000)).toEqual({ ...last, run: 'Stop' });
    expect(descriptorOf(jobOf(), undefined, undefined, 'Gone', 1_000)).toMatchObject({
      queue: 'team.llama',
      run: 'Gone',
    });
  });

  test('names the working objects for people', () => {
    expect(workPrefixOf(jobOf())).toBe('s3://out/x/_tidegate/uid-1/');
  });

  test('ends its window as many seconds after creation as the spec says', () => {
    expect(windowEnd(jobOf({ spec: { completionWindowSeconds: 60 } }))).toBe(
      Date.parse('2026-11-30T12:01:00Z'),
    );
  });
});

describe('a job is accepted', () => {
  const other = jobOf({ spec: { modelRef: { name: 'llama', namespace: 'serving' } } });
  const shared = (allowedNamespaces: 'Same' | 'All' | 'Selector') =>
    deploymentOf(
      {
        allowedNamespaces,
        ...(allowedNamespaces === 'Selector' ? { namespaceSelector: { matchLabels: { batch: 'yes' } } } : {}),
      },
      'serving',
    );
  test.each<[string, Parameters<typeof objectionTo>[0], string | undefined]>([
    [
      'in the namespace of its deployment',
      { job: jobOf(), deployment: deploymentOf(), namespaceLabels: {} },
      undefined,
    ],
    [
      'not without the deployment',
      { job: jobOf(), deployment: undefined, namespaceLabels: {} },
      'ModelDeploymentNotFound',
    ],
    [
      'not by a deployment that is being deleted',
      {
        job: jobOf(),
        deployment: {
          ...deploymentOf(),
          metadata: { ...deploymentOf().metadata, deletionTimestamp: '2026-11-30T12:00:00Z' },
        },
        namespaceLabels: {},
      },
      'ModelDeploymentNotFound',
    ],
    [
      'not elsewhere with Same',
      { job: other, deployment: shared('Same'), namespaceLabels: {} },
      'NamespaceNotAllowed',
    ],
    ['anywhere with All', { job: other, deployment: shared('All'), namespaceLabels: undefined }, undefined],
    [
      'with Selector where the labels match',
      { job: other, deployment: shared('Selector'), namespaceLabels: { batch: 'yes' } },
      undefined,
    ],
    [
      'not with Selector where they do not',
      { job: other, deployment: shared('Selector'), namespaceLabels: { batch: 'no' } },
      'NamespaceNotAllowed',
    ],
    [
      'not with Selector where they are not known',
      { job: other, deployment: shared('Selector'), namespaceLabels: undefined },
      'NamespaceNotAllowed',
    ],
    [
      "with Selector in the deployment's own namespace whatever its labels",
      {
        job: jobOf(),
        deployment: deploymentOf({
          allowedNamespaces: 'Selector',
          namespaceSelector: { matchLabels: { a: 'b' } },
        }),
        namespaceLabels: {},
      },
      undefined,
    ],
  ])('%s', (_name, input, reason) => {
    expect(objectionTo(input)?.reason).toBe(reason);
  });
});
