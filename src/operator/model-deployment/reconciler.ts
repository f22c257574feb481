/** gather → decide → apply for one ModelDeployment. */
import type { ModelDeployment } from '../../api/model-deployment.ts';
import { KubeError, type KubeClient, type Recorder, type Store } from '../../kube/contract.ts';
import { applyStatusIfChanged } from '../../kube/patches.ts';
import type { Clock, FailPoint } from '../../observability/contract.ts';
import type { Metrics } from '../../observability/metrics.ts';
import type { Fence } from '../../queue/contract.ts';
import type { OwnWrites } from '../own-writes.ts';
import { deployments } from '../resources.ts';
import type { DeploymentBoard } from './board.ts';
import { decide, type DeploymentPlanned, type DeploymentSnapshot } from './decide.ts';

export interface DeploymentReconcilerOptions {
  store: Store<ModelDeployment>;
  board: DeploymentBoard;
  client: KubeClient;
  recorder: Recorder;
  metrics: Metrics;
  failPoint: FailPoint;
  own: OwnWrites<ModelDeployment>;
  fence: () => Fence;
  clock: Clock;
  settings: { deploymentNumbersMilliseconds: number };
}

export interface DeploymentReconciler {
  /** @returns milliseconds after which to look again, if at all. */
  reconcile(key: string): Promise<number | undefined>;
  gone(deployment: ModelDeployment): void;
}

export function createDeploymentReconciler(options: DeploymentReconcilerOptions): DeploymentReconciler {
  const { store, board, clock, own } = options;
  const numbersWrittenAt = new Map<string, number>();

  function gather(key: string): DeploymentSnapshot | undefined {
    const cached = store.get(key);
    const availability = board.availability(key);
    if (cached === undefined || availability === undefined) return undefined;
    return {
      deployment: own.latest(cached),
      availability,
      problem: board.target(key)?.problem,
      numbersWrittenAt: numbersWrittenAt.get(cached.metadata.uid ?? ''),
    };
  }

  async function apply(
    deployment: ModelDeployment,
    plan: DeploymentPlanned,
    monotonic: number,
  ): Promise<void> {
    if (plan.status === undefined) return;
    options.fence();
    await options.failPoint('operator.deployment.status-writing');
    const { written, object } = await applyStatusIfChanged(
      options.client,
      deployments,
      deployment,
      plan.status,
    );
    if (!written) return;
    own.wrote(deployment, object);
    options.metrics.statusWrites.inc({ kind: 'ModelDeployment' });
    if (deployment.status?.headroom?.inFlight !== plan.status.headroom?.inFlight) {
      numbersWrittenAt.set(deployment.metadata.uid ?? '', monotonic);
    }
    for (const { type, reason, message } of plan.events)
      options.recorder.event(object, type, reason, message);
  }

  return {
    reconcile: async (key) => {
      const snapshot = gather(key);
      if (snapshot === undefined) return undefined;
      const at = { now: clock.now(), monotonic: clock.monotonic() };
      const plan = decide(snapshot, at, options.settings);
      try {
        await apply(snapshot.deployment, plan, at.monotonic);
      } catch (error) {
        if (error instanceof KubeError && error.status === 404) return undefined;
        throw error;
      }
      return plan.requeueAfterMilliseconds;
    },
    gone: (deployment) => {
      numbersWrittenAt.delete(deployment.metadata.uid ?? '');
      own.forget(deployment.metadata.uid);
    },
  };
}
