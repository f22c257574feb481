import { expect, test } from '@jest/globals';
import type { KubeObject, Resource } from './contract.ts';
import { staticCredentials } from './credentials.ts';
import { createKubeRuntime } from './runtime.ts';
import { realRuntime, until } from './testing/real-time.ts';
import { answer, ScriptedServer } from './testing/scripted-server.ts';

const jobs: Resource<KubeObject> = {
  group: 'batch',
  version: 'v1',
  plural: 'jobs',
  kind: 'Job',
  namespaced: true,
};

test('a change seen by a reflector reaches a handler through a queue, an elector leads, an event is written, all observed', async () => {
  const job = {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name: 'a', namespace: 'ns', uid: 'u', resourceVersion: '1' },
  };
  const server = await ScriptedServer.start((request, response) => {
    if (request.url.includes('watch=true')) response.writeHead(200).flushHeaders();
    else if (request.method === 'POST') answer(response, 201, JSON.parse(request.body));
    else if (request.url.includes('/leases/')) answer(response, 404, {});
    else answer(response, 200, { metadata: { resourceVersion: '1' }, items: [job] });
  });
  const seen = new Set<string>();
  const { clock, random, logger } = realRuntime();
  const kube = createKubeRuntime({
    credentials: staticCredentials({ server: server.url, tls: {} }),
    clock,
    random,
    logger,
    onCall: ({ verb, resource, status }) => seen.add(`call ${verb} ${resource} ${status}`),
    onReflector: ({ type }) => seen.add(`reflector ${type}`),
    onQueue: ({ outcome }) => seen.add(`queue ${outcome}`),
    onElector: ({ type }) => seen.add(`elector ${type}`),
    onRecorder: ({ outcome }) => seen.add(`recorder ${outcome}`),
  });
  const reflector = kube.reflector({ resource: jobs });
  const queue = kube.queue({ name: 'jobs' });
  const elector = kube.elector({ namespace: 'ns', name: 'operator', identity: 'me' });
  const recorder = kube.recorder({ controller: 'tidegate.io/operator', instance: 'me' });
  const handled: string[] = [];
  reflector.onChange(({ object }) => {
    queue.add(`${object.metadata.namespace}/${object.metadata.name}`);
  });
  queue.run(async (key) => {
    const found = reflector.store.get(key);
    if (found !== undefined) recorder.event(found, 'Normal', 'Seen', 'seen');
    handled.push(key);
  }, 1);
  elector.start({ onLeading: () => undefined, onLost: () => undefined });
  reflector.start();
  await until(() => handled.length === 1 && elector.isLeader);
  await until(() => seen.has('call watch jobs.batch 200'));
  await queue.drain();
  await recorder.close();
  await reflector.stop();
  await elector.stop();
  await kube.close();
  await server.stop();
  expect(handled).toEqual(['ns/a']);
  expect([...seen].sort()).toEqual(
    expect.arrayContaining([
      'call create events.events.k8s.io 201',
      'call create leases.coordination.k8s.io 201',
      'call list jobs.batch 200',
      'elector leading',
      'queue done',
      'recorder written',
      'reflector relist',
    ]),
  );
});
