/** What `kubectl apply -k config/` installs, less the Pods: resource kinds, accounts and their rights. */
import { setTimeout as delay } from 'node:timers/promises';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import type { Kube } from './kube.ts';
import { kubectl } from './kubectl.ts';
import { REPOSITORY } from './paths.ts';
import type { S3 } from './s3.ts';

/** The RoleBinding of the kustomize component that teams use. */
const OPT_IN = join(REPOSITORY, 'config', 'components', 'secret-access', 'role-binding.yaml');

interface KubeManifest {
  apiVersion: string;
  kind: string;
  metadata: { name: string };
  [field: string]: unknown;
}

/** Kinds first: the roles of `config/` name their resources, and clients ask for them at once. */
export async function installTidegate(kube: Kube): Promise<void> {
  // With a cache of its own: kubectl would remember for hours that these kinds do not exist.
  const cache = mkdtempSync(join(tmpdir(), 'tidegate-kubectl-'));
  const run = (...args: string[]): Promise<string> =>
    kubectl([`--cache-dir=${cache}`, ...args], { kubeconfig: kube.adminKubeconfig });
  await run('apply', '--server-side', '-k', join(REPOSITORY, 'config', 'crd'));
  await run('apply', '--server-side', '-k', join(REPOSITORY, 'config', 'rbac'));
  await run('wait', '--for=condition=Established', '--timeout=30s', 'crd', '--all');
  rmSync(cache, { recursive: true, force: true });
}

/**
 * Lets workers read the Secrets of a namespace, as a team that opts in does, and puts the store's credentials there.
 * Creates the namespace unless it exists.
 */
export async function optIn(
  kube: Kube,
  namespace: string,
  credentials: { name: string; s3: Pick<S3, 'accessKeyId' | 'secretAccessKey'> },
): Promise<void> {
  await createNamespace(kube, namespace);
  const binding = parse(readFileSync(OPT_IN, 'utf8')) as KubeManifest;
  await apply(kube, `/apis/rbac.authorization.k8s.io/v1/namespaces/${namespace}/rolebindings`, binding);
  await apply(kube, `/api/v1/namespaces/${namespace}/secrets`, {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: credentials.name },
    stringData: {
      AWS_ACCESS_KEY_ID: credentials.s3.accessKeyId,
      AWS_SECRET_ACCESS_KEY: credentials.s3.secretAccessKey,
    },
  });
}

async function createNamespace(kube: Kube, name: string): Promise<void> {
  await apply(kube, '/api/v1/namespaces', { apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
}

/** Server-side apply of one object. */
async function apply(kube: Kube, collection: string, object: KubeManifest): Promise<void> {
  const path = `${collection}/${object.metadata.name}?fieldManager=local-stack&force=true`;
  // Admission of a namespace that was just created may lag for a moment.
  for (let attempt = 1; ; attempt++) {
    const answer = await kube.request('PATCH', path, object, 'application/apply-patch+yaml');
    if (answer.status < 300) return;
    if (attempt === 20) throw new Error(`PATCH ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    await delay(100);
  }
}
