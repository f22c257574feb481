/** `tidegate operator`: wires the operator to its adapters. */
import { randomUUID } from 'node:crypto';
import { defaultElectorSettings } from '../kube/elector.ts';
import { startOperator } from '../operator/operator.ts';
import { defaultOperatorSettings } from '../operator/settings.ts';
import { createOperatorQueue } from '../queue/operator-queue.ts';
import { defaultQueueSettings } from '../queue/settings.ts';
import { withOverrides } from './environment.ts';
import { connectToCluster, type RoleProcess, redisChecks, type RunningRole } from './process.ts';

const LEASE_NAME = 'tidegate-operator';

export async function startOperatorRole(role: RoleProcess): Promise<RunningRole> {
  const { env, clock, random, logger, metrics, failPoint } = role;
  const identity = `${env.podName}-${randomUUID().slice(0, 8)}`;
  const kube = connectToCluster('operator', role);
  const queue = createOperatorQueue({
    redisUrl: env.redisUrl,
    prefix: env.redisPrefix,
    clock,
    logger,
    settings: withOverrides('queue', defaultQueueSettings, env),
  });
  const recorder = kube.recorder({ controller: 'tidegate.dev/operator', instance: identity });
  const elector = kube.elector({
    namespace: env.podNamespace,
    name: LEASE_NAME,
    identity,
    settings: withOverrides('kube', defaultElectorSettings, env),
  });
  const operator = startOperator({
    ...{ kube, queue, elector, recorder, clock, random, logger, metrics, failPoint },
    settings: {
      ...withOverrides('operator', defaultOperatorSettings, env),
      allowLoopback: env.allowLoopback,
    },
  });
  const redis = redisChecks(queue, role);
  return {
    liveness: { ...operator.liveness, ...redis.liveness },
    readiness: { ...operator.readiness, ...redis.readiness },
    failed: operator.broken,
    stop: async () => {
      await operator.stop();
      await recorder.close();
      await queue.close();
      await kube.close();
    },
  };
}
