/** Where the API server is and how to identify to it. The only file that knows @kubernetes/client-node. */
import { existsSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import type { RequestOptions } from 'node:https';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { Clock } from '../observability/contract.ts';
import type { KubeConfig } from '@kubernetes/client-node';

export interface Tls {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
  servername?: string | undefined;
  rejectUnauthorized?: boolean | undefined;
}

export interface Access {
  /** Without a slash at the end. */
  server: string;
  /** Value of the Authorization header. */
  authorization?: string | undefined;
  tls: Tls;
}

export interface Credentials {
  /** As of at most a minute ago: tokens and certificates are rotated while we run. */
  access(): Promise<Access>;
  /** Forgets what is remembered, after the server or its certificate refused it. */
  refresh(): void;
}

/** Age at which files are read again. */
const rereadMilliseconds = 60_000;

export function staticCredentials(access: Access): Credentials {
  return { access: () => Promise.resolve(access), refresh: () => undefined };
}

const accountDirectory = '/var/run/secrets/kubernetes.io/serviceaccount';

/**
 * The ServiceAccount of the Pod we run in. Read by hand: loading @kubernetes/client-node for two files would cost
 * every Pod 80 MB.
 */
export function inClusterCredentials(options: {
  clock: Clock;
  environment: Readonly<Record<string, string | undefined>>;
  directory?: string;
}): Credentials {
  const { clock, environment, directory = accountDirectory } = options;
  const host = environment.KUBERNETES_SERVICE_HOST;
  const port = environment.KUBERNETES_SERVICE_PORT;
  if (!host || !port) {
    throw new Error('not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set');
  }
  const server = `https://${host.includes(':') ? `[${host}]` : host}:${port}`;
  return rereading(clock, async () => {
    const [token, ca] = await Promise.all([
      readFile(join(directory, 'token'), 'utf8'),
      readFile(join(directory, 'ca.crt'), 'utf8'),
    ]);
    return { server, authorization: `Bearer ${token.trim()}`, tls: { ca } };
  });
}

/** The current context of a kubeconfig: token, client certificate, exec plug-in or whatever else it names. */
export function kubeconfigCredentials(options: {
  clock: Clock;
  /** Several are merged, as kubectl does; the first says which context is current. */
  files: readonly string[];
}): Credentials {
  const { clock, files } = options;
  let loaded: { config: KubeConfig; version: string } | undefined;
  const rereader = rereading(clock, async () => {
    const version = await versionOf(files);
    // Plug-ins keep their tokens inside the loaded configuration, so it is replaced only when a file changed.
    if (loaded?.version !== version) loaded = { config: await loadKubeconfig(files), version };
    return accessOf(loaded.config);
  });
  return {
    access: () => rereader.access(),
    refresh: () => {
      loaded = undefined;
      rereader.refresh();
    },
  };
}

/** As kubectl looks for it: KUBECONFIG, then ~/.kube/config; inside a Pod its ServiceAccount. */
export function defaultCredentials(options: {
  clock: Clock;
  environment: Readonly<Record<string, string | undefined>>;
}): Credentials {
  const { clock, environment } = options;
  const named = (environment.KUBECONFIG ?? '').split(delimiter).filter((file) => file !== '');
  if (named.length > 0) return kubeconfigCredentials({ clock, files: named });
  if (environment.KUBERNETES_SERVICE_HOST && existsSync(join(accountDirectory, 'token'))) {
    return inClusterCredentials({ clock, environment });
  }
  const ofUser = join(homedir(), '.kube', 'config');
  if (existsSync(ofUser)) return kubeconfigCredentials({ clock, files: [ofUser] });
  throw new Error(
    `no cluster configured: KUBECONFIG is not set, ${ofUser} does not exist, and this is not a Pod with a ServiceAccount`,
  );
}

function rereading(clock: Clock, read: () => Promise<Access>): Credentials {
  let current: { at: number; access: Promise<Access> } | undefined;
  return {
    access: () => {
      if (current === undefined || clock.monotonic() - current.at >= rereadMilliseconds) {
        const attempt = { at: clock.monotonic(), access: read() };
        current = attempt;
        attempt.access.catch(() => {
          if (current === attempt) current = undefined;
        });
      }
      return current.access;
    },
    refresh: () => {
      current = undefined;
    },
  };
}

async function versionOf(files: readonly string[]): Promise<string> {
  const versions = await Promise.all(
    files.map(async (file) => {
      const { mtimeMs, size, ino } = await stat(file);
      return `${file}:${mtimeMs}:${size}:${ino}`;
    }),
  );
  return versions.join('\n');
}

async function loadKubeconfig(files: readonly string[]): Promise<KubeConfig> {
  const { KubeConfig: Config } = await import('@kubernetes/client-node');
  const config = new Config();
  files.forEach((file, index) => {
    if (index === 0) {
      config.loadFromFile(file);
      return;
    }
    const more = new Config();
    more.loadFromFile(file);
    config.mergeConfig(more, true);
  });
  return config;
}

async function accessOf(config: KubeConfig): Promise<Access> {
  const cluster = config.getCurrentCluster();
  if (cluster === null) {
    throw new Error(`kubeconfig has no cluster for its current context "${config.getCurrentContext()}"`);
  }
  if (cluster.proxyUrl) {
    throw new Error(`kubeconfig cluster "${cluster.name}" has a proxy-url, which is not supported`);
  }
  const options: RequestOptions & { headers: Record<string, string> } = { headers: {} };
  await config.applyToHTTPSOptions(options);
  const basic = options.auth ? `Basic ${Buffer.from(options.auth).toString('base64')}` : undefined;
  return {
    server: cluster.server.replace(/\/+$/, ''),
    authorization: options.headers.Authorization ?? basic,
    tls: {
      ca: pem(options.ca),
      cert: pem(options.cert),
      key: pem(options.key),
      servername: cluster.tlsServerName,
      rejectUnauthorized: cluster.skipTLSVerify ? false : undefined,
    },
  };
}

const pem = (value: unknown): string | undefined =>
  typeof value === 'string' ? value : Buffer.isBuffer(value) ? value.toString('utf8') : undefined;
