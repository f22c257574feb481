/**
 * A real Kubernetes control plane on free ports of 127.0.0.1: etcd, kube-apiserver with RBAC, admission, CEL and
 * watch bookmarks, and (optional) kube-controller-manager for owner garbage collection, deletion of namespaces and
 * Deployments. There is no kubelet: Pods stay Pending.
 */
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild, startPart, untilReady, type Part } from './child.ts';
import { binary } from './paths.ts';
import { kubeRequester, type KubeRequest } from './kube-request.ts';
import { freePort } from './ports.ts';

export interface KubeOptions {
  /** Holds etcd's data, certificates, kubeconfigs and logs; a new temporary one by default. */
  dir?: string;
  /** Also run kube-controller-manager. */
  controllerManager?: boolean;
}

export interface Kube {
  /** The API server; `kill` and `restart` on it leave etcd and its data alone. */
  readonly apiserver: Part;
  readonly etcd: Part;
  readonly controllerManager: Part | undefined;
  readonly url: string;
  readonly caFile: string;
  /** kubeconfig of a member of system:masters. */
  readonly adminKubeconfig: string;
  readonly adminToken: string;
  /** A request as the administrator; for set-up and tests, so that they need no client library. */
  readonly request: KubeRequest;
  /** kubeconfig of a ServiceAccount, with a real token from the TokenRequest API, valid for 30 days. */
  kubeconfigFor(account: { namespace: string; name: string }): Promise<string>;
  /** kubeconfig with this bearer token. */
  writeKubeconfig(name: string, token: string, namespace?: string): string;
  stop(): Promise<void>;
}

const TOKEN_SECONDS = 30 * 24 * 3600;

/** What of kube-controller-manager makes sense without nodes. */
const CONTROLLERS = [
  'garbage-collector-controller',
  'namespace-controller',
  'serviceaccount-controller',
  'root-ca-certificate-publisher-controller',
  'deployment-controller',
  'replicaset-controller',
  'clusterrole-aggregation-controller',
];

export async function startKube(options: KubeOptions = {}): Promise<Kube> {
  const dir = options.dir ?? mkdtempSync(join(tmpdir(), 'tidegate-kube-'));
  const certificates = join(dir, 'certificates');
  mkdirSync(certificates, { recursive: true });
  const [etcdPort, peerPort, apiPort, managerPort] = [
    await freePort(),
    await freePort(),
    await freePort(),
    await freePort(),
  ];
  const etcdUrl = `http://127.0.0.1:${etcdPort}`;
  const url = `https://127.0.0.1:${apiPort}`;
  const adminToken = randomUUID();
  writeFileSync(join(dir, 'tokens.csv'), `${adminToken},admin,admin,system:masters\n`, { mode: 0o600 });
  const { publicKey, privateKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  writeFileSync(join(dir, 'service-accounts.pub'), publicKey);
  writeFileSync(join(dir, 'service-accounts.key'), privateKey, { mode: 0o600 });

  const etcd = await startPart(
    async () => {
      const child = startChild({
        name: 'etcd',
        command: binary('etcd'),
        args: [
          ...['--data-dir', join(dir, 'etcd'), '--unsafe-no-fsync', '--log-level', 'warn'],
          ...['--listen-client-urls', etcdUrl, '--advertise-client-urls', etcdUrl],
          ...['--listen-peer-urls', `http://127.0.0.1:${peerPort}`],
        ],
        logFile: join(dir, 'etcd.log'),
      });
      await untilReady(child, async () => {
        const answer = await fetch(`${etcdUrl}/readyz`, { signal: AbortSignal.timeout(1_000) });
        return answer.ok;
      });
      return child;
    },
    { graceMilliseconds: 0 },
  );

  const caFile = join(certificates, 'apiserver.crt');
  const call = kubeRequester({ url, caFile, token: adminToken });

  const apiserver = await startPart(
    async () => {
      const child = startChild({
        name: 'kube-apiserver',
        command: binary('kube-apiserver'),
        args: [
          `--etcd-servers=${etcdUrl}`,
          `--secure-port=${apiPort}`,
          '--bind-address=127.0.0.1',
          // Never used: without nodes nothing reaches the API server through its Service.
          '--advertise-address=192.0.2.1',
          '--endpoint-reconciler-type=none',
          `--cert-dir=${certificates}`,
          '--service-account-issuer=https://kubernetes.default.svc',
          `--service-account-key-file=${join(dir, 'service-accounts.pub')}`,
          `--service-account-signing-key-file=${join(dir, 'service-accounts.key')}`,
          `--token-auth-file=${join(dir, 'tokens.csv')}`,
          '--authorization-mode=RBAC',
          '--service-cluster-ip-range=10.0.0.0/24',
          '--watch-cache=true',
          '--profiling=false',
        ],
        logFile: join(dir, 'kube-apiserver.log'),
      });
      await untilReady(child, async () => (await call('GET', '/readyz')).status === 200, 60_000);
      return child;
    },
    { graceMilliseconds: 0 },
  );

  const writeKubeconfig = (name: string, token: string, namespace?: string): string => {
    const path = join(dir, `${name}.kubeconfig`);
    writeFileSync(path, kubeconfig({ url, caFile, name, token, namespace }), { mode: 0o600 });
    return path;
  };
  const adminKubeconfig = writeKubeconfig('admin', adminToken);

  const controllerManager =
    options.controllerManager === true
      ? await startPart(
          async () => {
            const child = startChild({
              name: 'kube-controller-manager',
              command: binary('kube-controller-manager'),
              args: [
                `--kubeconfig=${adminKubeconfig}`,
                '--bind-address=127.0.0.1',
                `--secure-port=${managerPort}`,
                `--cert-dir=${join(dir, 'controller-manager')}`,
                '--leader-elect=false',
                `--service-account-private-key-file=${join(dir, 'service-accounts.key')}`,
                `--root-ca-file=${caFile}`,
                `--controllers=${CONTROLLERS.join(',')}`,
                '--profiling=false',
              ],
              logFile: join(dir, 'kube-controller-manager.log'),
            });
            await untilReady(
              child,
              async () =>
                (await call('GET', '/api/v1/namespaces/default/serviceaccounts/default')).status === 200,
            );
            return child;
          },
          { graceMilliseconds: 0 },
        )
      : undefined;

  return {
    apiserver,
    etcd,
    controllerManager,
    url,
    caFile,
    adminKubeconfig,
    adminToken,
    request: call,
    writeKubeconfig,
    kubeconfigFor: async ({ namespace, name }) => {
      const answer = await call('POST', `/api/v1/namespaces/${namespace}/serviceaccounts/${name}/token`, {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'TokenRequest',
        spec: { expirationSeconds: TOKEN_SECONDS },
      });
      if (answer.status !== 201) {
        throw new Error(
          `no token for ServiceAccount ${namespace}/${name}: ${answer.status} ${JSON.stringify(answer.body)}`,
        );
      }
      const { status } = answer.body as { status: { token: string } };
      return writeKubeconfig(`${namespace}-${name}`, status.token, namespace);
    },
    stop: async () => {
      await controllerManager?.stop();
      await apiserver.stop();
      await etcd.stop();
    },
  };
}

interface Kubeconfig {
  url: string;
  caFile: string;
  name: string;
  token: string;
  namespace: string | undefined;
}

/** JSON is YAML; kubectl reads both. */
function kubeconfig({ url, caFile, name, token, namespace }: Kubeconfig): string {
  const authority = readFileSync(caFile).toString('base64');
  return JSON.stringify(
    {
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'local', cluster: { server: url, 'certificate-authority-data': authority } }],
      users: [{ name, user: { token } }],
      contexts: [
        { name: 'local', context: { cluster: 'local', user: name, namespace: namespace ?? 'default' } },
      ],
      'current-context': 'local',
    },
    undefined,
    2,
  );
}
