/** Reflectors on a real API server, through a proxy that can be cut, blocked and made silent. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, jest, test } from '@jest/globals';
import { existsSync, readFileSync } from 'node:fs';
import { startKube, type Kube } from '../../hack/stack/kube.ts';
import { binaryPath } from '../../hack/stack/paths.ts';
import type { Change, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { kubeconfigCredentials, staticCredentials } from './credentials.ts';
import { LineFramer } from './line-framer.ts';
import { KindReflector, type ReflectorObservation, type ReflectorSettings } from './reflector.ts';
import { realRuntime, until } from './testing/real-time.ts';
import { TcpProxy } from './testing/tcp-proxy.ts';
import { KubeTransport } from './transport.ts';
import { parseWatchEvent } from './watch-event.ts';

const present = existsSync(binaryPath('kube-apiserver')) && existsSync(binaryPath('etcd'));
if (!present) console.warn('skipped: kube-apiserver and etcd are not built; "make parts" builds them');

// For a busy machine; nothing here waits for time to pass.
jest.setTimeout(60_000);

interface ConfigMap extends KubeObject {
  data?: Record<string, string>;
}
const configMaps: Resource<ConfigMap> = {
  group: '',
  version: 'v1',
  plural: 'configmaps',
  kind: 'ConfigMap',
  namespaced: true,
};

(present ? describe : describe.skip)('a reflector on a real API server', () => {
  const runtime = realRuntime();
  let kube: Kube;
  /** Straight to the server, whatever happens to the reflector's way. */
  let direct: KubeTransport;
  let proxy: TcpProxy;
  let client: KubeTransport;
  let round = 0;
  let namespace: string;
  let reflector: KindReflector<ConfigMap> | undefined;

  beforeAll(async () => {
    kube = await startKube();
    const credentials = kubeconfigCredentials({ clock: runtime.clock, files: [kube.adminKubeconfig] });
    direct = new KubeTransport({ credentials, runtime });
    proxy = await TcpProxy.start(Number(new URL(kube.url).port));
    const { authorization } = await credentials.access();
    client = new KubeTransport({
      credentials: staticCredentials({
        server: `https://127.0.0.1:${proxy.port}`,
        authorization,
        tls: { ca: readFileSync(kube.caFile, 'utf8') },
      }),
      runtime,
      attemptMilliseconds: 2_000,
      attempts: 2,
    });
  }, 120_000);

  beforeEach(async () => {
    round += 1;
    namespace = `round-${round}`;
    await kube.request('POST', '/api/v1/namespaces', {
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name: namespace },
    });
  });

  afterEach(async () => {
    await reflector?.stop();
    reflector = undefined;
  });

  afterAll(async () => {
    await client.close();
    await direct.close();
    await proxy.stop();
    await kube.stop();
  }, 30_000);

  const create = (name: string): Promise<ConfigMap> =>
    direct.create(configMaps, {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name, namespace },
      data: { text: 'é\u2028' },
    });

  async function watching(settings: Partial<ReflectorSettings> = {}) {
    const changes: Change<ConfigMap>[] = [];
    const observed: ReflectorObservation[] = [];
    reflector = new KindReflector({
      client,
      resource: configMaps,
      runtime,
      namespace,
      settings: { backoff: { initialMilliseconds: 50, ceilingMilliseconds: 500 }, ...settings },
      indexers: { text: ({ data }) => (data?.text === undefined ? [] : [data.text]) },
      observe: (one) => observed.push(one),
    });
    reflector.onChange((change) => changes.push(change));
    reflector.start();
    await reflector.synced();
    const { store } = reflector;
    const told = (): string[] => changes.map(({ type, object }) => `${type} ${object.metadata.name}`);
    return { store, told, changes, observed };
  }

  test('tells what is there, what comes, changes and goes, frozen and indexed', async () => {
    await create('first');
    const { store, told, changes } = await watching();
    expect(told()).toEqual(['Added first']);
    await create('second');
    await direct.mergePatch(configMaps, namespace, 'first', { data: { text: 'new' } });
    await direct.delete(configMaps, namespace, 'second');
    await until(() => changes.length === 4);
    expect(told().slice(1)).toEqual(['Added second', 'Updated first', 'Deleted second']);
    expect(store.byIndex('text', 'new').map(({ metadata }) => metadata.name)).toEqual(['first']);
    expect(store.get(`${namespace}/first`)).not.toHaveProperty('metadata.managedFields');
    expect(Object.isFrozen(store.get(`${namespace}/first`)?.data)).toBe(true);
  });

  test('sees a new object though its connection went silent, within the idle limit', async () => {
    const { store, observed } = await watching({ idleMilliseconds: 400 });
    await create('heard');
    await until(() => store.size > 0);
    proxy.blackHole();
    await create('unheard');
    await until(() => store.get(`${namespace}/unheard`) !== undefined);
    expect(observed).toContainEqual({ resource: 'configmaps', type: 'reconnect', reason: 'idle' });
  });

  test('tells an object deleted and created again while it was cut off as two', async () => {
    const before = await create('twin');
    // So few events fit between: only a list can show what happened.
    const { told, changes } = await watching();
    proxy.mode = 'refuse';
    proxy.cut();
    await direct.delete(configMaps, namespace, 'twin');
    const after = await create('twin');
    proxy.mode = 'forward';
    await until(() => changes.length === 3);
    expect(told()).toEqual(['Added twin', 'Deleted twin', 'Added twin']);
    expect(changes.map(({ object }) => object.metadata.uid)).toEqual([
      before.metadata.uid,
      before.metadata.uid,
      after.metadata.uid,
    ]);
  });

  test('goes on, with one watch, after the API server was killed and started again', async () => {
    const { store, observed } = await watching();
    await create('before');
    await until(() => store.size === 1);
    await kube.apiserver.kill('SIGKILL');
    await until(() => reflector?.state === 'Backoff');
    await kube.apiserver.restart();
    await create('after');
    await until(() => store.get(`${namespace}/after`) !== undefined);
    expect(observed.filter(({ type }) => type === 'watchError').length).toBeGreaterThan(0);
    expect(reflector?.state).toBe('Watching');
  });

  test('goes on after the API server was stopped (SIGSTOP) for longer than the idle limit', async () => {
    const { store } = await watching({ idleMilliseconds: 300 });
    await kube.apiserver.kill('SIGSTOP');
    await until(() => (reflector?.sinceLastActivity ?? 0) > 600);
    await kube.apiserver.kill('SIGCONT');
    await create('thawed');
    await until(() => store.get(`${namespace}/thawed`) !== undefined);
  });

  test('is told 410 for a version that is compacted away, as a KubeError', async () => {
    // The watch cache knows nothing of what was before its start.
    await kube.apiserver.restart();
    const controller = new AbortController();
    const read = async (): Promise<KubeError | undefined> => {
      try {
        const options = { namespace, resourceVersion: '1', timeoutSeconds: 5, signal: controller.signal };
        const framer = new LineFramer();
        for await (const chunk of await client.watch(configMaps, options)) {
          for (const line of framer.push(chunk)) parseWatchEvent(line, 'watch');
        }
      } catch (error) {
        if (error instanceof KubeError) return error;
        throw error;
      } finally {
        controller.abort();
      }
      return undefined;
    };
    const error = await read();
    expect([error?.status, error?.reason]).toEqual([410, 'Expired']);
  });
});
