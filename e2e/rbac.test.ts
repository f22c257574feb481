/**
 * The accounts of config/ as a real API server sees them: everything that operator and workers may do stands in
 * rbac-table.yaml, and the rest of the install passes a server-side dry run under Pod Security `restricted`.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parse, parseAllDocuments } from 'yaml';
import { readEnvironment } from '../src/main/environment.ts';
import { kubectl } from '../hack/stack/kubectl.ts';
import { startKube, type Kube } from '../hack/stack/kube.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const SYSTEM = 'tidegate-system';
const OPTED_IN = 'default';
const STRANGER = 'kube-public';

let kube: Kube;
let accounts: Record<'operator' | 'worker' | 'anyone', string>;
const admin = (...args: string[]): Promise<string> => kubectl(args, { kubeconfig: kube.adminKubeconfig });

beforeAll(async () => {
  kube = await startKube();
  await admin('apply', '-k', path.join(ROOT, 'config/crd'));
  await admin('wait', '--for=condition=Established', '--timeout=60s', 'crd', '--all');
  await admin('apply', '-k', path.join(ROOT, 'config/rbac'));
  await admin('apply', '-k', path.join(ROOT, 'config/redis'));
  await admin('apply', '-k', path.join(ROOT, 'config/examples/opted-in-namespace'));
  await admin('create', 'serviceaccount', 'nobody', '-n', OPTED_IN);
  for (const namespace of [OPTED_IN, STRANGER]) {
    await admin('create', 'secret', 'generic', 's3', '-n', namespace, '--from-literal=AWS_ACCESS_KEY_ID=x');
  }
  accounts = {
    operator: await kube.kubeconfigFor({ namespace: SYSTEM, name: 'tidegate-operator' }),
    worker: await kube.kubeconfigFor({ namespace: SYSTEM, name: 'tidegate-worker' }),
    anyone: await kube.kubeconfigFor({ namespace: OPTED_IN, name: 'nobody' }),
  };
}, 120_000);
afterAll(() => kube?.stop());

interface ResourceRule {
  verbs: string[];
  apiGroups?: string[];
  resources?: string[];
  resourceNames?: string[];
}

/** What an account may do in a namespace, one line for each resource and name: `secrets: get`. */
async function rightsOf(kubeconfig: string, namespace: string): Promise<string[]> {
  const review = {
    apiVersion: 'authorization.k8s.io/v1',
    kind: 'SelfSubjectRulesReview',
    spec: { namespace },
  };
  const answer = await kubectl(
    ['create', '--raw', '/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', '-f', '-'],
    { kubeconfig, input: JSON.stringify(review) },
  );
  const { status } = JSON.parse(answer) as {
    status: { resourceRules: ResourceRule[]; incomplete: boolean };
  };
  expect(status.incomplete).toBe(false);
  const verbsOf = new Map<string, Set<string>>();
  for (const rule of status.resourceRules) {
    for (const group of rule.apiGroups ?? ['']) {
      for (const resource of rule.resources ?? []) {
        for (const name of rule.resourceNames ?? ['']) {
          const key = `${resource}${group && `.${group}`}${name && ` "${name}"`}`;
          const verbs = verbsOf.get(key) ?? new Set();
          rule.verbs.forEach((verb) => verbs.add(verb));
          verbsOf.set(key, verbs);
        }
      }
    }
  }
  return [...verbsOf].map(([key, verbs]) => `${key}: ${[...verbs].sort().join(' ')}`).sort();
}

type Row = 'everywhere' | 'onlyInItsOwnNamespace' | 'onlyWhereOptedIn';
type Table = Record<'operator' | 'worker', Record<Row, string[]>>;
const table = parse(readFileSync(path.join(ROOT, 'e2e/rbac-table.yaml'), 'utf8')) as Table;

describe.each(['operator', 'worker'] as const)('the account of the %s', (account) => {
  test.each<[string, Row | undefined, string]>([
    ['in its own namespace', 'onlyInItsOwnNamespace', SYSTEM],
    ['in a namespace that opted in', 'onlyWhereOptedIn', OPTED_IN],
    ['in any other namespace', undefined, STRANGER],
  ])('may do %s what the table lists, and nothing more', async (_where, row, namespace) => {
    const everybody = new Set(await rightsOf(accounts.anyone, namespace));
    const own = (await rightsOf(accounts[account], namespace)).filter((right) => !everybody.has(right));
    const listed = [...table[account].everywhere, ...(row ? table[account][row] : [])];
    expect(own).toEqual(listed.sort());
  });
});

describe('Secrets', () => {
  const secret = (kubeconfig: string, namespace: string): Promise<string> =>
    kubectl(['get', 'secret', 's3', '-n', namespace, '-o', 'name'], { kubeconfig });

  test('a worker reads one by name where the namespace opted in', async () => {
    expect(await secret(accounts.worker, OPTED_IN)).toBe('secret/s3\n');
  });

  test('a worker reads none elsewhere', async () => {
    await expect(secret(accounts.worker, STRANGER)).rejects.toThrow('Forbidden');
  });

  test('a worker cannot list them, not even where it may read', async () => {
    const list = kubectl(['get', 'secrets', '-n', OPTED_IN], { kubeconfig: accounts.worker });
    await expect(list).rejects.toThrow('Forbidden');
  });

  test.each([SYSTEM, OPTED_IN, STRANGER])('the operator reads none in %s', async (namespace) => {
    await expect(secret(accounts.operator, namespace)).rejects.toThrow('Forbidden');
  });

  test('the one-line command of the docs gives the same right as the component', async () => {
    await admin(
      ...['create', 'rolebinding', 'tidegate-worker', '-n', 'kube-node-lease'],
      ...['--clusterrole=tidegate-secret-reader', `--serviceaccount=${SYSTEM}:tidegate-worker`],
    );
    expect(await rightsOf(accounts.worker, 'kube-node-lease')).toEqual(
      await rightsOf(accounts.worker, OPTED_IN),
    );
  });
});

interface Workload {
  kind: string;
  metadata: { name: string };
  spec: { template: { metadata: object; spec: { containers: Container[]; volumes?: object[] } } };
}
interface Container {
  name: string;
  image: string;
  args?: string[];
  env?: { name: string; value?: string }[];
  volumeMounts?: { name: string; mountPath: string }[];
}

describe('the install', () => {
  const rendered = async (folder: string): Promise<{ kind: string }[]> =>
    parseAllDocuments(await admin('kustomize', path.join(ROOT, folder))).map(
      (document) => document.toJS() as { kind: string },
    );
  const workloads = async (): Promise<Workload[]> =>
    (await rendered('config')).filter(({ kind }) =>
      ['Deployment', 'StatefulSet'].includes(kind),
    ) as Workload[];

  test.each(['config', 'config/base', 'config/redis', 'config/examples/opted-in-namespace', 'manifests'])(
    '%s passes a server-side dry run',
    async (folder) => {
      const flag = folder === 'manifests' ? '-f' : '-k';
      const said = await admin(
        ...['apply', '--server-side', '--dry-run=server', '--validate=strict', '--force-conflicts'],
        ...[flag, path.join(ROOT, folder)],
      );
      expect(said).toMatch(/dry run/);
    },
  );

  test('every Pod is let in under Pod Security `restricted`', async () => {
    const found = await workloads();
    expect(found.map(({ metadata }) => metadata.name).sort()).toEqual([
      'tidegate-operator',
      'tidegate-redis',
      'tidegate-worker',
    ]);
    for (const { kind, metadata, spec } of found) {
      const claims = kind === 'StatefulSet' ? [{ name: 'data', emptyDir: {} }] : [];
      const { spec: pod } = spec.template;
      const answer = await kube.request('POST', `/api/v1/namespaces/${SYSTEM}/pods?dryRun=All`, {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: { name: metadata.name },
        spec: { ...pod, volumes: [...(pod.volumes ?? []), ...claims] },
      });
      expect({ name: metadata.name, ...answer }).toMatchObject({ name: metadata.name, status: 201 });
    }
  });

  test('every image is pinned', async () => {
    for (const { spec } of await workloads()) {
      for (const { image } of spec.template.spec.containers) {
        expect(image).toMatch(/^[a-z]+:\d+\.\d+\.\d+(-[a-z]+)?$/);
      }
    }
  });

  test('operator and workers start from the environment that the Deployments give them', async () => {
    for (const { metadata, spec } of await workloads()) {
      const [container] = spec.template.spec.containers;
      if (!container?.args || metadata.name === 'tidegate-redis') continue;
      expect(`tidegate-${container.args[0]}`).toBe(metadata.name);
      const given = Object.fromEntries((container.env ?? []).map(({ name, value }) => [name, value ?? 'x']));
      const read = readEnvironment({ ...given, REDIS_URL: 'redis://tidegate-redis:6379' });
      expect(read).toMatchObject({
        httpPort: 8080,
        podName: 'x',
        allowLoopback: false,
        identityNamespaces: [],
      });
      if (metadata.name === 'tidegate-worker') {
        expect(container.volumeMounts?.map(({ mountPath }) => mountPath)).toContain(read.spillDirectory);
      }
    }
  });
});
