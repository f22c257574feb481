/** `tidegate worker`: wires the worker to its adapters. */
import { randomUUID } from 'node:crypto';
import { createEngineClient, defaultEngineClientSettings } from '../engine/client.ts';
import { createWorkerQueue } from '../queue/worker-queue.ts';
import { defaultQueueSettings } from '../queue/settings.ts';
import { StoreProvider } from '../storage/provider.ts';
import { defaultStoreSettings } from '../storage/settings.ts';
import { claimPrefix } from '../worker/publish/claim.ts';
import { cleanup } from '../worker/publish/cleanup.ts';
import type { PublishContext } from '../worker/publish/context.ts';
import { finalize } from '../worker/publish/finalize.ts';
import { publish } from '../worker/publish/publish.ts';
import { defaultPublishSettings } from '../worker/publish/settings.ts';
import { defaultWorkerSettings } from '../worker/settings.ts';
import type { PublishTasks, TaskJob } from '../worker/tasks.ts';
import { startWorker } from '../worker/worker.ts';
import { withOverrides } from './environment.ts';
import { connectToCluster, redisChecks, type RoleProcess, type RunningRole } from './process.ts';

/** What a deleted job's clean-up may spend on publishing what is finished. */
const PUBLISH_BEFORE_CLEANUP_MILLISECONDS = 10_000;

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
  const publishContext = ({ descriptor, layout, stores: { output }, signal }: TaskJob): PublishContext => ({
    ...{ store: output, layout, signal, failPoint, clock },
    jobUID: descriptor.uid,
    settings: defaultPublishSettings,
    logger: logger.child({ job: descriptor.uid }),
    newId: randomUUID,
  });
  const publishing: PublishTasks = {
    publish: async (job) => ({ published: await publish(publishContext(job)) }),
    finalize: async (job, cause) => {
      const { namespace, name, model, endpoint } = job.descriptor;
      return {
        final: await finalize({
          context: publishContext(job),
          job: { namespace, name, model, endpoint },
          cause,
        }),
      };
    },
    cleanup: (job, publishFirst) =>
      cleanup({
        context: publishContext(job),
        publishForMilliseconds: publishFirst ? PUBLISH_BEFORE_CLEANUP_MILLISECONDS : 0,
      }),
  };
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
