/** Calls, statuses, leases and events against a real API server. */
import { afterAll, beforeAll, describe, expect, jest, test } from '@jest/globals';
import { existsSync } from 'node:fs';
import { startKube, type Kube } from '../../hack/stack/kube.ts';
import { binaryPath } from '../../hack/stack/paths.ts';
import { setCondition } from './conditions.ts';
import type { Condition, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { kubeconfigCredentials, type Credentials } from './credentials.ts';
import { LeaseElector } from './elector.ts';
import { isNamespaceTerminating } from './failures.ts';
import { leases, microTime, type Lease } from './lease.ts';
import { applyStatusIfChanged, convergeStatus } from './patches.ts';
import { EventRecorder, events, type RecorderObservation } from './recorder.ts';
import { realRuntime, until } from './testing/real-time.ts';
import { KubeTransport } from './transport.ts';

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
const namespaces: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  plural: 'namespaces',
  kind: 'Namespace',
  namespaced: false,
};
interface Boat extends KubeObject {
  spec: { length: number };
  status?: { afloat?: boolean; crew?: number; conditions?: Condition[] };
}
const boats: Resource<Boat> = {
  group: 'harbour.example',
  version: 'v1',
  plural: 'boats',
  kind: 'Boat',
  namespaced: true,
};
const boatDefinition = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'boats.harbour.example' },
  spec: {
    group: 'harbour.example',
    scope: 'Namespaced',
    names: { plural: 'boats', singular: 'boat', kind: 'Boat' },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        subresources: { status: {} },
        schema: {
          openAPIV3Schema: {
            type: 'object',
            properties: {
              spec: { type: 'object', properties: { length: { type: 'integer', minimum: 1 } } },
              status: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
            },
          },
        },
      },
    ],
  },
};

const configMap = (name: string, data: Record<string, string> = {}): ConfigMap => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name, namespace: 'default' },
  data,
});
const boat = (name: string): Boat => ({
  apiVersion: 'harbour.example/v1',
  kind: 'Boat',
  metadata: { name, namespace: 'default' },
  spec: { length: 12 },
});

(present ? describe : describe.skip)('against a real API server', () => {
  const runtime = realRuntime();
  let kube: Kube;
  let credentials: Credentials;
  let client: KubeTransport;

  beforeAll(async () => {
    kube = await startKube();
    credentials = kubeconfigCredentials({ clock: runtime.clock, files: [kube.adminKubeconfig] });
    client = new KubeTransport({ credentials, runtime });
    await kube.request('POST', '/apis/apiextensions.k8s.io/v1/customresourcedefinitions', boatDefinition);
    await until(async () => (await kube.request('GET', '/apis/harbour.example/v1/boats')).status === 200);
  }, 120_000);

  afterAll(async () => {
    await client.close();
    await kube.stop();
  }, 30_000);

  async function errorOf(promise: Promise<unknown>): Promise<KubeError> {
    try {
      await promise;
    } catch (error) {
      if (error instanceof KubeError) return error;
      throw error;
    }
    throw new Error('the call succeeded');
  }

  describe('calls', () => {
    test('create, read, patch and delete an object', async () => {
      const created = await client.create(configMaps, configMap('life', { a: '1' }));
      expect((await errorOf(client.create(configMaps, configMap('life')))).reason).toBe('AlreadyExists');
      await client.mergePatch(configMaps, 'default', 'life', { data: { a: null, b: '2' } });
      await client.jsonPatch(configMaps, 'default', 'life', [{ op: 'add', path: '/data/c', value: '3' }]);
      expect((await client.get(configMaps, 'default', 'life'))?.data).toEqual({ b: '2', c: '3' });

      const { resourceVersion } = created.metadata;
      const stale = { metadata: { resourceVersion }, data: { d: '4' } };
      expect((await errorOf(client.mergePatch(configMaps, 'default', 'life', stale))).status).toBe(409);

      await client.delete(configMaps, 'default', 'life', { uid: '11111111-2222-3333-4444-555555555555' });
      expect(await client.get(configMaps, 'default', 'life')).toBeDefined();
      await client.delete(configMaps, 'default', 'life', { uid: created.metadata.uid ?? '' });
      expect(await client.get(configMaps, 'default', 'life')).toBeUndefined();
      await client.delete(configMaps, 'default', 'life');
    });

    test('list all pages, with the kind in each item', async () => {
      const small = new KubeTransport({ credentials, runtime, pageSize: 3 });
      const labels = { set: 'pages' };
      for (let index = 0; index < 10; index += 1) {
        const one = configMap(`page-${index}`);
        await client.create(configMaps, { ...one, metadata: { ...one.metadata, labels } });
      }
      const { items, resourceVersion } = await small.list(configMaps, { labelSelector: 'set=pages' });
      expect(items.map(({ metadata }) => metadata.name)).toEqual(
        Array.from({ length: 10 }, (_, i) => `page-${i}`),
      );
      expect(items[0]).toMatchObject({ apiVersion: 'v1', kind: 'ConfigMap' });
      expect(resourceVersion).toMatch(/^\d+$/);
      await small.close();
    });

    test('apply from the server side, and name who owns a field', async () => {
      await client.apply(configMaps, configMap('owned', { x: 'ours' }), { fieldManager: 'tidegate' });
      const theirs = configMap('owned', { x: 'theirs' });
      const error = await errorOf(client.apply(configMaps, theirs, { fieldManager: 'someone' }));
      expect([error.status, error.causes[0]?.reason, error.causes[0]?.field]).toEqual([
        409,
        'FieldManagerConflict',
        '.data.x',
      ]);
      const forced = await client.apply(configMaps, theirs, { fieldManager: 'someone', force: true });
      expect(forced.data).toEqual({ x: 'theirs' });
    });

    test('say what is wrong with an object, field by field', async () => {
      const error = await errorOf(client.create(boats, { ...boat('short'), spec: { length: 0 } }));
      expect([error.status, error.reason]).toEqual([422, 'Invalid']);
      expect(error.causes).toEqual([
        expect.objectContaining({ field: 'spec.length', reason: 'FieldValueInvalid' }),
      ]);
    });

    test('are refused without a right, or without a valid token', async () => {
      const as = (token: string): KubeTransport =>
        new KubeTransport({
          credentials: kubeconfigCredentials({
            clock: runtime.clock,
            files: [kube.writeKubeconfig(`token-${token.length}`, token)],
          }),
          runtime,
        });
      const stranger = as('no-such-token');
      const error = await errorOf(stranger.list(configMaps));
      expect([error.status, error.reason]).toEqual([401, 'Unauthorized']);
      expect(error.message).not.toContain('no-such-token');
      await stranger.close();

      const review = await client.post<{ status: { authenticated?: boolean } }>(
        '/apis/authentication.k8s.io/v1/tokenreviews',
        {
          apiVersion: 'authentication.k8s.io/v1',
          kind: 'TokenReview',
          spec: { token: 'no-such-token' },
        },
      );
      expect(review.status.authenticated ?? false).toBe(false);
    });
  });

  describe('statuses', () => {
    const now = Date.UTC(2026, 10, 30, 12);
    const condition = { type: 'Ready', status: 'True', reason: 'Moored', message: 'at the quay' } as const;

    test('are written once, and not again while nothing changed', async () => {
      const created = await client.create(boats, boat('once'));
      const status = { afloat: true, crew: 3, conditions: [...setCondition([], condition, now)] };
      const first = await applyStatusIfChanged(client, boats, created, status);
      expect([first.written, first.object.status]).toEqual([true, status]);
      const again = { ...status, conditions: [...setCondition(status.conditions, condition, now + 60_000)] };
      const second = await applyStatusIfChanged(client, boats, first.object, again);
      expect([second.written, second.object.metadata.resourceVersion]).toEqual([
        false,
        first.object.metadata.resourceVersion,
      ]);
      const third = await applyStatusIfChanged(client, boats, first.object, { afloat: false });
      expect(third.object.status).toEqual({ afloat: false });
    });

    test('of an outdated object or of a successor of its name are conflicts', async () => {
      const created = await client.create(boats, boat('stale'));
      await client.mergePatch(boats, 'default', 'stale', { spec: { length: 13 } });
      expect((await errorOf(applyStatusIfChanged(client, boats, created, { crew: 1 }))).status).toBe(409);
      await client.delete(boats, 'default', 'stale');
      await client.create(boats, boat('stale'));
      expect((await errorOf(applyStatusIfChanged(client, boats, created, { crew: 1 }))).status).toBe(409);
      expect(await convergeStatus(client, boats, created, () => ({ crew: 1 }))).toBeUndefined();
    });

    test('arrive while someone else writes all the time, by few calls (client-go#639, kubernetes#16134)', async () => {
      const created = await client.create(boats, boat('busy'));
      let reads = 0;
      const disturb = (round: number): Promise<Boat> =>
        client.mergePatch(boats, 'default', 'busy', { metadata: { labels: { round: `${round}` } } });
      class Disturbed extends KubeTransport {
        override async get<T extends KubeObject>(
          ...args: Parameters<KubeTransport['get']>
        ): Promise<T | undefined> {
          reads += 1;
          const live = await super.get(...args);
          // Between our read and our write, twice.
          if (reads < 3) await disturb(reads);
          return live as T | undefined;
        }
      }
      const disturbed = new Disturbed({ credentials, runtime });
      await disturb(0);
      const seen: (string | undefined)[] = [];
      const result = await convergeStatus(disturbed, boats, created, (live) => {
        seen.push(live.metadata.labels?.round);
        return { crew: 7 };
      });
      expect([result?.written, result?.object.status]).toEqual([true, { crew: 7 }]);
      expect(seen).toEqual([undefined, '0', '1', '2']);
      await disturbed.close();
    });
  });

  describe('leases', () => {
    const lease = (name: string, spec: Lease['spec'] = {}): Lease => ({
      apiVersion: 'coordination.k8s.io/v1',
      kind: 'Lease',
      metadata: { name, namespace: 'default' },
      spec,
    });

    test('keep their microseconds, and a time with three digits is refused (client-node#828)', async () => {
      const renewTime = microTime(Date.now() + 0.123);
      const created = await client.create(leases, lease('micro', { renewTime, holderIdentity: 'a' }));
      expect(created.spec?.renewTime).toBe(renewTime);
      const error = await errorOf(
        client.create(leases, lease('milli', { renewTime: new Date().toISOString() })),
      );
      expect(error.status).toBe(400);
    });

    const electorOf = (name: string, identity: string): LeaseElector =>
      new LeaseElector({
        client,
        runtime,
        namespace: 'default',
        name,
        identity,
        settings: { leaseDurationSeconds: 2, renewDeadlineMilliseconds: 1_500, retryMilliseconds: 100 },
      });

    test('are handed over between two electors, each term with a higher number', async () => {
      const [a, b] = [electorOf('handover', 'a'), electorOf('handover', 'b')];
      const lost: string[] = [];
      const start = (elector: LeaseElector): void => {
        elector.start({ onLeading: () => undefined, onLost: (reason) => lost.push(reason) });
      };
      start(a);
      await until(() => a.isLeader);
      start(b);
      await until(() => b.healthy());
      const first = a.fence()?.transitions ?? NaN;
      const renewed = (await client.get(leases, 'default', 'handover'))?.spec?.renewTime;
      await until(async () => (await client.get(leases, 'default', 'handover'))?.spec?.renewTime !== renewed);
      expect([a.isLeader, b.isLeader]).toEqual([true, false]);

      await a.stop();
      await until(() => b.isLeader);
      expect(b.fence()).toEqual({ transitions: first + 1, leaderUID: 'b' });
      expect((await client.get(leases, 'default', 'handover'))?.spec).toMatchObject({
        holderIdentity: 'b',
        leaseDurationSeconds: 2,
        leaseTransitions: first + 1,
      });
      await b.stop();
      expect((await client.get(leases, 'default', 'handover'))?.spec).not.toHaveProperty('holderIdentity');
      expect(lost).toEqual([]);
    });

    test('that were deleted are created anew with a higher number, and the old term ends', async () => {
      const elector = electorOf('deleted', 'a');
      const lost: string[] = [];
      elector.start({ onLeading: () => undefined, onLost: (reason) => lost.push(reason) });
      await until(() => elector.isLeader);
      const first = elector.fence()?.transitions ?? NaN;
      await client.delete(leases, 'default', 'deleted');
      await until(() => lost.length === 1);
      expect(lost).toEqual(['the lease was deleted']);
      await until(() => elector.isLeader);
      expect(elector.fence()?.transitions).toBeGreaterThan(first);
      await elector.stop();
    });
  });

  describe('events', () => {
    const recorderOf = (observed: RecorderObservation[]): EventRecorder =>
      new EventRecorder({
        client,
        runtime,
        controller: 'tidegate.io/operator',
        instance: 'operator-0',
        settings: { flushMilliseconds: 50 },
        observe: (one) => observed.push(one),
      });

    test('are accepted, counted up, and found by their object', async () => {
      const observed: RecorderObservation[] = [];
      const recorder = recorderOf(observed);
      const about = await client.create(boats, boat('eventful'));
      recorder.event(about, 'Warning', 'Leaking', 'é'.repeat(2_000));
      await until(() => observed.length === 1);
      recorder.event(about, 'Warning', 'Leaking', 'é'.repeat(2_000));
      recorder.event(about, 'Warning', 'Leaking', 'é'.repeat(2_000));
      await recorder.close();
      expect(observed.filter(({ outcome }) => outcome === 'dropped')).toEqual([]);
      const { items } = await client.list(events, {
        namespace: 'default',
        fieldSelector: 'regarding.name=eventful',
      });
      expect(items).toHaveLength(1);
      expect(items[0]).toMatchObject({
        type: 'Warning',
        reason: 'Leaking',
        series: { count: 3 },
        regarding: { kind: 'Boat', uid: about.metadata.uid },
      });
    });

    test('in a namespace that is being deleted are dropped quietly (tigera#3791)', async () => {
      await client.create(namespaces, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'sinking' } });
      const about = await client.create(boats, {
        ...boat('last'),
        metadata: { name: 'last', namespace: 'sinking' },
      });
      await client.delete(namespaces, undefined, 'sinking');
      const refused = await errorOf(
        client.create(boats, { ...boat('late'), metadata: { name: 'late', namespace: 'sinking' } }),
      );
      expect(isNamespaceTerminating(refused)).toBe(true);
      const observed: RecorderObservation[] = [];
      const recorder = recorderOf(observed);
      recorder.event(about, 'Normal', 'Sailed', 'x');
      await recorder.close();
      expect(observed).toEqual([{ type: 'Normal', outcome: 'dropped', why: 'namespaceGone' }]);
    });
  });
});
