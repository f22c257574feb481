import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { defaultCredentials, inClusterCredentials, kubeconfigCredentials } from './credentials.ts';
import { ManualTime } from './testing/manual-time.ts';

let directory: string;
let time: ManualTime;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tidegate-credentials-'));
  time = new ManualTime();
});
afterEach(() => {
  rmSync(directory, { recursive: true });
});

const file = (name: string, text: string): string => {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
};

describe('in a cluster', () => {
  const environment = { KUBERNETES_SERVICE_HOST: '10.0.0.1', KUBERNETES_SERVICE_PORT: '443' };
  const inCluster = (variables: Record<string, string> = environment) =>
    inClusterCredentials({ clock: time, environment: variables, directory });

  test('token and CA come from the files of the ServiceAccount, and again after a minute', async () => {
    file('ca.crt', 'CA');
    file('token', 'first\n');
    const credentials = inCluster();
    expect(await credentials.access()).toEqual({
      server: 'https://10.0.0.1:443',
      authorization: 'Bearer first',
      tls: { ca: 'CA' },
    });
    file('token', 'second');
    file('ca.crt', 'another CA');
    time.freeze(59_999);
    expect((await credentials.access()).authorization).toBe('Bearer first');
    time.freeze(1);
    expect(await credentials.access()).toMatchObject({
      authorization: 'Bearer second',
      tls: { ca: 'another CA' },
    });
  });

  test('a refused token is read again at once', async () => {
    file('ca.crt', 'CA');
    file('token', 'first');
    const credentials = inCluster();
    await credentials.access();
    file('token', 'second');
    credentials.refresh();
    expect((await credentials.access()).authorization).toBe('Bearer second');
  });

  test('a file that is missing for a moment is no reason to give up', async () => {
    file('ca.crt', 'CA');
    const credentials = inCluster();
    await expect(credentials.access()).rejects.toThrow('ENOENT');
    file('token', 'late');
    expect((await credentials.access()).authorization).toBe('Bearer late');
  });

  test('an IPv6 address gets its brackets', async () => {
    file('ca.crt', 'CA');
    file('token', 't');
    const access = await inCluster({ ...environment, KUBERNETES_SERVICE_HOST: 'fd00::1' }).access();
    expect(access.server).toBe('https://[fd00::1]:443');
  });

  test('outside of one that is said', () => {
    expect(() => inCluster({})).toThrow('not in a cluster: KUBERNETES_SERVICE_HOST');
  });
});

describe('by kubeconfig', () => {
  const kubeconfig = (token: string, changes: object = {}): string =>
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'local', cluster: { server: 'https://127.0.0.1:6443/', ...changes } }],
      users: [{ name: 'someone', user: { token } }],
      contexts: [{ name: 'here', context: { cluster: 'local', user: 'someone' } }],
      'current-context': 'here',
    });

  test('server, CA and token are those of the current context', async () => {
    const ca = Buffer.from('CA').toString('base64');
    const path = file('config', kubeconfig('t', { 'certificate-authority-data': ca }));
    expect(await kubeconfigCredentials({ clock: time, files: [path] }).access()).toEqual({
      server: 'https://127.0.0.1:6443',
      authorization: 'Bearer t',
      tls: { ca: 'CA' },
    });
  });

  test('a changed file is read again after a minute', async () => {
    const path = file('config', kubeconfig('first'));
    const credentials = kubeconfigCredentials({ clock: time, files: [path] });
    await credentials.access();
    file('config', kubeconfig('second'));
    utimesSync(path, 1, 1);
    expect((await credentials.access()).authorization).toBe('Bearer first');
    time.freeze(60_000);
    expect((await credentials.access()).authorization).toBe('Bearer second');
  });

  test.each([['a proxy', { 'proxy-url': 'http://proxy:3128' }, 'has a proxy-url, which is not supported']])(
    '%s is refused in words',
    async (_name, cluster, message) => {
      const path = file('config', kubeconfig('t', cluster));
      await expect(kubeconfigCredentials({ clock: time, files: [path] }).access()).rejects.toThrow(message);
    },
  );

  test('a context that does not exist is named', async () => {
    const text = kubeconfig('t').replace('"current-context":"here"', '"current-context":"elsewhere"');
    const credentials = kubeconfigCredentials({ clock: time, files: [file('config', text)] });
    await expect(credentials.access()).rejects.toThrow('"elsewhere"');
  });

  test('KUBECONFIG is looked at first', async () => {
    const path = file('config', kubeconfig('named'));
    const credentials = defaultCredentials({ clock: time, environment: { KUBECONFIG: path } });
    expect((await credentials.access()).authorization).toBe('Bearer named');
  });
});
