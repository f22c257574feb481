/** `tidegate worker`: wires the worker to its adapters. */
import { randomUUID } from 'node:crypto';
import { createEngineClient, defaultEngineClientSettings } from '../engine/client.ts';
import { createWorkerQueue } from '../queue/worker-queue.ts';
import { defaultQueueSettings } from '../queue/settings.ts';
import { StoreProvider } from '../storage/provider.ts';
import { defaultStoreSettings } from '../storage/settings.ts';
import { claimPrefix } from '../worker/publish/claim.ts';
import { defaultPublishSettings } from '../worker/publish/settings.ts';
import { createPublishTasks } from '../worker/publish/tasks.ts';
import { defaultWorkerSettings } from '../worker/settings.ts';
import { startWorker } from '../worker/worker.ts';
import { withOverrides } from './environment.ts';
import { connectToCluster, redisChecks, type RoleProcess, type RunningRole } from './process.ts';

export async function startWorkerRole(role: RoleProcess): Promise<RunningRole> {
  const { env, clock, random, logger, metrics, failPoint } = role;
  const { allowLoopback, redisUrl, redisPrefix } = env;
  const kube = connectToCluster('worker', role);
  const queue = createWorkerQueue({
    redisUrl,
    prefix: redisPrefix,
    workerId: `${env.podName}-${randomUUID().slice(0, 8)}`,
    clock,
    logger,
    settings: withOverrides('queue', defaultQueueSettings, env),
  });
  const stores = new StoreProvider({
    logger,
    settings: { ...withOverrides('storage', defaultStoreSettings, env), allowLoopback },
    onCall: (operation, code, seconds) => {
      metrics.s3Requests.inc({ operation, code });
      metrics.s3Duration.observe({ operation }, seconds);
    },
  });
  const engine = createEngineClient({
    settings: withOverrides('engine', defaultEngineClientSettings, env),
    clock,
    allowLoopback,
    onCall: ({ outcome, durationMilliseconds }) =>
      metrics.engineRequests.observe({ outcome }, durationMilliseconds / 1000),
  });
  const publishing = createPublishTasks({
    settings: defaultPublishSettings,
    ...{ failPoint, clock, logger },
    newId: randomUUID,
    random,
  });
  const worker = await startWorker({
    ...{ queue, engine, publishing, clock, random, logger, metrics, failPoint, allowLoopback },
    kube: kube.client,
    openStore: (connection) => stores.open(connection),
    claim: (store, layout, { uid, namespace, name }, signal) =>
      claimPrefix({ store, layout, jobUID: uid, signal, failPoint }, { namespace, name }),
    settings: {
      ...withOverrides('worker', defaultWorkerSettings(env.spillDirectory), env),
      identityNamespaces: env.identityNamespaces,
    },
  });
  return {
    ...redisChecks(queue, role),
    stop: async () => {
      await worker.stop();
      await engine.close();
      stores.close();
      await kube.close();
    },
  };
}
