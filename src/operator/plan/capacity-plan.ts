/** From the replicas of every deployment to the caps that workers share. Pure. */
import type { DeploymentPlan, QueueId } from '../../queue/contract.ts';
import type { Replica } from '../model-deployment/replicas.ts';

export interface DeploymentReplicas {
  queue: QueueId;
  replicas: readonly Replica[];
  maxInFlightPerReplica: number;
}

/**
 * Caps belong to engine addresses, not to deployments: an address that two deployments name gets the smaller of
 * their caps in both. A replica that is not ready, or is going away, keeps a cap of 0: what runs there may finish,
 * nothing new is sent; only a replica that is gone drops out. Ordered, so that equal plans compare equal.
 */
export function capacityPlan(deployments: readonly DeploymentReplicas[]): DeploymentPlan[] {
  const capOf = new Map<string, number>();
  for (const { replicas, maxInFlightPerReplica } of deployments) {
    for (const { address, ready } of replicas) {
      const cap = ready ? maxInFlightPerReplica : 0;
      capOf.set(address, Math.min(cap, capOf.get(address) ?? Number.POSITIVE_INFINITY));
    }
  }
  return deployments
    .map(({ queue, replicas }) => ({
      queue,
      replicas: replicas
        .map(({ address }) => ({ address, cap: capOf.get(address) ?? 0 }))
        .sort((a, b) => (a.address < b.address ? -1 : 1)),
    }))
    .sort((a, b) => (a.queue < b.queue ? -1 : 1));
}
