/**
 * The API server is the judge: it takes the generated CRDs without complaint, and zod and the server agree on every
 * sample, on every fixture, and on manifests damaged at random.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import path from 'node:path';
import { KINDS } from '../src/api/kinds.ts';
import { manifestProblems } from '../src/api/validate.ts';
import { invalidFixtures, samples, validFixtures, type Manifest } from '../hack/fixtures.ts';
import { kubectl } from '../hack/stack/kubectl.ts';
import { startKube, type Kube } from '../hack/stack/kube.ts';
import { differences, ROOT } from '../hack/verify-generated.ts';

const CRDS = path.join(ROOT, 'crds');
const NAMESPACE = '/apis/tidegate.dev/v1alpha1/namespaces/default';

let kube: Kube;
const run = (...args: string[]): Promise<string> => kubectl(args, { kubeconfig: kube.adminKubeconfig });

beforeAll(async () => {
  kube = await startKube();
  await run('apply', '-k', CRDS);
  await run('wait', '--for=condition=Established', '--timeout=60s', 'crd', '--all');
}, 120_000);
afterAll(() => kube?.stop());

interface Refusal {
  message: string;
  causes: { field: string; message: string }[];
}

const isOurs = ({ manifest }: { manifest: Manifest }): boolean =>
  manifest.apiVersion.startsWith('tidegate.dev/');

const collectionOf = (manifest: Manifest): string => {
  const plural = KINDS.find(({ resource }) => resource.kind === manifest.kind)?.resource.plural;
  return `${NAMESPACE}/${plural}`;
};

/** What the server says to a creation with strict field validation; undefined: accepted. Nothing is stored. */
async function refusal(manifest: Manifest): Promise<Refusal | undefined> {
  const answer = await kube.request(
    'POST',
    `${collectionOf(manifest)}?dryRun=All&fieldValidation=Strict`,
    manifest,
  );
  if (answer.status === 201) return undefined;
  const { message, details } = answer.body as {
    message: string;
    details?: { causes?: Refusal['causes'] };
  };
  if (answer.status !== 400 && answer.status !== 422) throw new Error(`${answer.status} ${message}`);
  return { message, causes: details?.causes ?? [] };
}

describe('the generated files', () => {
  test('are what src/api says now', async () => {
    expect(await differences()).toEqual([]);
  });

  test.each(KINDS)('the server takes $resource.kind as a structural schema', async ({ resource }) => {
    const answer = await kube.request(
      'GET',
      `/apis/apiextensions.k8s.io/v1/customresourcedefinitions/${resource.plural}.${resource.group}`,
    );
    const { conditions } = (answer.body as { status: { conditions: { type: string; status: string }[] } })
      .status;
    const isTrue = (type: string): boolean => conditions.some((c) => c.type === type && c.status === 'True');
    expect(isTrue('Established')).toBe(true);
    expect(isTrue('NamesAccepted')).toBe(true);
    expect(conditions.find(({ type }) => type === 'NonStructuralSchema')).toBeUndefined();
  });
});

describe('zod and the API server agree', () => {
  test.each([...samples(), ...validFixtures()].filter(isOurs))('$name is accepted', async ({ manifest }) => {
    expect(manifestProblems(manifest)).toEqual([]);
    expect(await refusal(manifest)).toBeUndefined();
  });

  test.each(invalidFixtures())('$name is refused for the same reason', async (fixture) => {
    const verdict = await refusal(fixture.manifest);
    expect(verdict).toBeDefined();
    // A field that the schema does not know is named in the message only.
    const named = [...(verdict?.causes ?? []).map(({ field }) => field), verdict?.message];
    expect(named.some((text) => text?.includes(fixture.field))).toBe(true);
    for (const said of fixture.says) expect(verdict?.message).toContain(said);
    expect(manifestProblems(fixture.manifest)).not.toEqual([]);
  });

  const texts = fc.oneof(
    fc.constantFrom(
      '',
      'x',
      'A',
      '..',
      'a/',
      'a/b/',
      'a.b',
      'x'.repeat(64),
      'http://h',
      'https://h:0',
      'http://h/a?b',
    ),
    fc.constantFrom(
      'vLLM',
      'OpenAICompatible',
      'All',
      'Selector',
      'Gzip',
      '/v1/completions',
      'Fail',
      'Exists',
    ),
    fc.string({ unit: 'grapheme', maxLength: 8 }),
    fc.string({
      unit: fc.constantFrom('\u0000', '\u001f', '\u007f', '\u009f', '\u00a0', '.', '/'),
      maxLength: 4,
    }),
  );
  const numbers = fc.oneof(
    fc.constantFrom(-1, 0, 1, 1.5, 59, 60, 100, 101, 600, 601, 65_535, 65_536, 2_592_000, 2_592_001),
    fc.constantFrom(2 ** 31 - 1, 2 ** 31, 2 ** 53, 1e21, -0.5),
  );
  const others = fc.constantFrom<unknown>(
    true,
    false,
    [],
    {},
    ['x'],
    ['x', 'x'],
    [null],
    { name: 'x' },
    { x: 'y' },
  );
  const fields: fc.Arbitrary<[string, unknown]> = fc.constantFrom<[string, unknown]>(
    ['maxInFlight', 1],
    ['completionWindowSeconds', 600],
    ['requestTimeoutSeconds', 60],
    ['ttlSecondsAfterFinished', 0],
    ['prefix', 'in/'],
    ['namespace', 'serving'],
    ['endpoint', 'https://s3.example.com'],
    ['urls', ['http://h']],
    ['namespaceSelector', { matchLabels: { a: 'b' } }],
    ['allowedNamespaces', 'Selector'],
    ['aliases', ['a', 'b']],
    ['values', ['a']],
    ['unknown', 1],
  );
  const damage = fc.record({
    at: fc.nat(),
    text: texts,
    number: numbers,
    other: others,
    field: fields,
    how: fc.nat(9),
  });
  const base = fc.constantFrom(...[...samples(), ...validFixtures()].filter(isOurs));
  test('on manifests damaged at random', async () => {
    const accepted = { true: 0, false: 0 };
    await fc.assert(
      fc.asyncProperty(
        base,
        fc.array(damage, { minLength: 1, maxLength: 2 }),
        async ({ manifest }, damages) => {
          const damaged = structuredClone(manifest);
          for (const each of damages) applyDamage(damaged, structuredClone(each));
          const problems = manifestProblems(damaged);
          const verdict = await refusal(damaged);
          accepted[`${verdict === undefined}`]++;
          if ((problems.length === 0) !== (verdict === undefined)) {
            throw new Error(
              `zod: ${JSON.stringify(problems)}\nserver: ${verdict?.message}\n${JSON.stringify(damaged.spec, null, 2)}`,
            );
          }
        },
      ),
      { numRuns: 400, seed: 20261130 },
    );
    // The generator finds both sides of the border.
    expect(accepted.true).toBeGreaterThan(30);
    expect(accepted.false).toBeGreaterThan(30);
  }, 120_000);
});

interface Damage {
  at: number;
  text: string;
  number: number;
  other: unknown;
  field: [string, unknown];
  how: number;
}

/** One change below spec: mostly another value of the same type, sometimes of another, a field more or a field less. */
function applyDamage(manifest: Manifest, { at, text, number, other, field, how }: Damage): void {
  type Holder = Record<string, unknown>;
  const places: [holder: Holder, key: string][] = [];
  const visit = (holder: Holder): void => {
    for (const [key, child] of Object.entries(holder)) {
      places.push([holder, key]);
      if (typeof child === 'object' && child !== null) visit(child as Holder);
    }
  };
  visit(manifest.spec as Holder);
  const [holder, key] = places[at % places.length] ?? [manifest.spec as Holder, 'model'];
  if (how === 0) holder[key] = other;
  else if (how === 1) holder[key] = at % 2 ? text : number;
  else if (how <= 3 && !Array.isArray(holder)) delete holder[key];
  else if (how <= 5 && !Array.isArray(holder)) holder[field[0]] = field[1];
  else if (typeof holder[key] === 'number') holder[key] = number;
  else if (typeof holder[key] === 'boolean') holder[key] = !holder[key];
  else if (typeof holder[key] === 'string') holder[key] = text;
  else holder[key] = other;
}

/** One object of its own for each row: applied, then changed by the patches one after another. */
async function changed(
  before: Manifest,
  name: string,
  ...patches: { status?: true; patch: object }[]
): Promise<{ status: number; message: string }> {
  const manifest = { ...before, metadata: { ...before.metadata, name } };
  const created = await kube.request('POST', collectionOf(manifest), manifest);
  if (created.status !== 201) throw new Error(JSON.stringify(created.body));
  let last = created;
  for (const { status, patch } of patches) {
    const at = `${collectionOf(manifest)}/${name}${status ? '/status' : ''}?fieldValidation=Strict`;
    last = await kube.request('PATCH', at, patch, 'application/merge-patch+json');
  }
  return { status: last.status, message: (last.body as { message?: string }).message ?? '' };
}

const fixture = (name: string): Manifest => {
  const found = [...samples(), ...validFixtures()].find((each) => each.name === name);
  if (!found) throw new Error(`no fixture ${name}`);
  return found.manifest;
};

const spec = (patch: object): { patch: object } => ({ patch: { spec: patch } });
const status = (patch: object): { status: true; patch: object } => ({
  status: true,
  patch: { status: patch },
});
const ended = status({ state: 'Completed', completionTime: '2026-11-30T20:00:00Z' });
const isTrue = (type: string) => ({
  type,
  status: 'True',
  reason: 'Completed',
  message: '',
  lastTransitionTime: '2026-11-30T20:00:00Z',
});

describe('what may change', () => {
  const frozen = 'the job has ended: only spec.ttlSecondsAfterFinished may still change';
  test.each<[string, { status?: true; patch: object }[], string | undefined]>([
    ['the model', [spec({ modelRef: { name: 'other' } })], 'modelRef is immutable'],
    ['the namespace of the model', [spec({ modelRef: { namespace: 'other' } })], 'modelRef is immutable'],
    ['the endpoint', [spec({ endpoint: '/v1/embeddings' })], 'endpoint is immutable'],
    ['a key of the input', [spec({ input: { s3: { keys: ['in/part-2.jsonl'] } } })], 'input is immutable'],
    ['the treatment of invalid lines', [spec({ input: { invalidLines: 'Fail' } })], 'input is immutable'],
    ['the output', [spec({ output: { s3: { prefix: 'other/' } } })], 'output is immutable'],
    ['a connection that was not there', [spec({ output: { s3: { region: 'r' } } })], 'output is immutable'],
    ['the class', [spec({ priorityClassName: 'night' })], undefined],
    ['the class twice', [spec({ priorityClassName: 'night' }), spec({ priorityClassName: null })], undefined],
    ['maxInFlight', [spec({ maxInFlight: 1 }), spec({ maxInFlight: 2 })], undefined],
    ['the window', [spec({ completionWindowSeconds: 600 })], undefined],
    ['the window, below the timeout', [spec({ completionWindowSeconds: 599 })], 'must not exceed'],
    ['suspend, there and back', [spec({ suspend: true }), spec({ suspend: false })], undefined],
    ['cancel', [spec({ cancel: true })], undefined],
    ['cancel, taken back', [spec({ cancel: true }), spec({ cancel: false })], 'cancel is one way'],
    ['cancel, removed', [spec({ cancel: true }), spec({ cancel: null })], 'cancel is one way'],
    ['ttl of a finished job', [ended, spec({ ttlSecondsAfterFinished: 60 })], undefined],
    ['suspend of a finished job', [ended, spec({ suspend: true })], frozen],
    ['cancel of a finished job', [ended, spec({ cancel: true })], frozen],
    ['the window of a finished job', [ended, spec({ completionWindowSeconds: 90_000 })], frozen],
    ['maxInFlight of a finished job', [ended, spec({ maxInFlight: 1 })], frozen],
    ['the class of a finished job', [ended, spec({ priorityClassName: 'night' })], frozen],
    ['retry of a finished job', [ended, spec({ retry: { maxAttempts: 6 } })], frozen],
    [
      'the failure policy of a finished job',
      [ended, spec({ failurePolicy: { maxFailedPercent: 1 } })],
      frozen,
    ],
    ['the timeout of a finished job', [ended, spec({ requestTimeoutSeconds: 1 })], frozen],
    ['labels of a finished job', [ended, { patch: { metadata: { labels: { a: 'b' } } } }], undefined],
    ['the message of a finished job', [ended, status({ message: 'published' })], undefined],
    ['the state of a finished job', [ended, status({ state: 'Failed' })], 'stays as it ended'],
    ['the end of a finished job', [ended, status({ completionTime: null })], 'stays as it ended'],
    [
      'to Complete and Failed at once',
      [status({ conditions: [isTrue('Complete'), isTrue('Failed')] })],
      'Complete or Failed, never both',
    ],
    [
      'to seventeen conditions',
      [status({ conditions: 'abcdefghijklmnopq'.split('').map((c) => isTrue(c.toUpperCase())) })],
      'at most 16',
    ],
    [
      'to two conditions of one type',
      [status({ conditions: [isTrue('Complete'), isTrue('Complete')] })],
      'Duplicate value',
    ],
  ])('%s', async (name, patches, refused) => {
    const object = `job-${name.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}`;
    const { status: code, message } = await changed(fixture('job-minimal'), object, ...patches);
    if (refused === undefined) expect({ code, message }).toEqual({ code: 200, message: '' });
    else {
      expect(code).toBe(422);
      expect(message).toContain(refused);
    }
  });

  test('a ModelDeployment may change in everything', async () => {
    const { status: code } = await changed(
      fixture('deployment-minimal'),
      'changing',
      spec({ model: 'other', aliases: ['a'], engine: 'OpenAICompatible', allowedNamespaces: 'All' }),
      spec({ target: { urls: null, service: { name: 'vllm', port: 8000 } } }),
      spec({ headroom: { maxAsyncInFlightPerReplica: 1 }, authSecretRef: { name: 'key' } }),
    );
    expect(code).toBe(200);
  });
});

describe('what kubectl shows', () => {
  beforeAll(async () => {
    await changed(fixture('batch-job'), 'shown');
    await changed(fixture('model-deployment'), 'shown');
  });

  test('a new job is Pending, with its defaults and an Unknown condition, before any operator has run', async () => {
    const job = JSON.parse(await run('get', 'ibj', 'shown', '-o', 'json')) as Record<string, unknown>;
    expect(job).toMatchObject({
      spec: {
        completionWindowSeconds: 86_400,
        requestTimeoutSeconds: 600,
        retry: { maxAttempts: 5, initialBackoffSeconds: 1, maxBackoffSeconds: 60 },
        failurePolicy: { maxFailedPercent: 100 },
        input: { compression: 'Auto', invalidLines: 'Record' },
        suspend: false,
        cancel: false,
      },
      status: {
        observedGeneration: 0,
        state: 'Pending',
        conditions: [{ type: 'Accepted', status: 'Unknown', reason: 'Pending' }],
      },
    });
  });

  test('a new model deployment has its defaults and is Ready=Unknown', async () => {
    const deployment = JSON.parse(await run('get', 'mdep', 'shown', '-o', 'json')) as Record<string, unknown>;
    expect(deployment).toMatchObject({
      spec: { engine: 'vLLM', allowedNamespaces: 'Same', headroom: { maxAsyncInFlightPerReplica: 256 } },
      status: { conditions: [{ type: 'Ready', status: 'Unknown', reason: 'Pending' }] },
    });
  });

  const heads = (table: string): string[] => (table.split('\n')[0] ?? '').trim().split(/ {2,}/);

  test('columns of jobs', async () => {
    const short = ['NAME', 'MODEL', 'CLASS', 'STATE', 'PROGRESS', 'FAILED', 'ETA', 'AGE'];
    expect(heads(await run('get', 'ibj'))).toEqual(short);
    expect(heads(await run('get', 'ibj', '-o', 'wide'))).toEqual([
      ...short,
      'PERCENT',
      'TOKENS/S',
      'WINDOW ENDS',
      'MESSAGE',
    ]);
  });

  test('columns of model deployments', async () => {
    expect(heads(await run('get', 'mdep'))).toEqual([
      'NAME',
      'MODEL',
      'REPLICAS',
      'READY',
      'IN FLIGHT',
      'LIMIT',
      'AGE',
    ]);
  });

  test('both kinds under `kubectl get inference`', async () => {
    const names = await run('get', 'inference', '-o', 'name');
    expect(names).toContain('inferencebatchjob.tidegate.dev/shown');
    expect(names).toContain('modeldeployment.tidegate.dev/shown');
  });

  test('`kubectl explain` says meaning, default and mutability', async () => {
    const explained = (await run('explain', 'ibj.spec.requestTimeoutSeconds')).replaceAll(/\s+/g, ' ');
    expect(explained).toContain('Seconds that one attempt of a line may take');
    expect(explained).toContain('Default: 600. May change until the job has finished.');
    expect((await run('explain', 'ibj.spec.input.s3')).replaceAll(/\s+/g, ' ')).toContain(
      'Keys of the objects to read, in this order. Immutable.',
    );
  });
});
