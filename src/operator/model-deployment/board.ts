/**
 * What is known of every deployment's replicas: targets from Kubernetes, holds and numbers from Redis. Targets are
 * resolved when asked for after a change; live numbers are refreshed by the leader alone.
 */
import type { AddressPolicy } from '../../api/address-rules.ts';
import type { ModelDeployment } from '../../api/model-deployment.ts';
import { keyOf, type Store } from '../../kube/contract.ts';
import { jsonEqual } from '../../kube/merge-patch.ts';
import {
  heldJob,
  queueIdOf,
  type Capacity,
  type DeploymentPlan,
  type Hold,
  type OperatorQueue,
} from '../../queue/contract.ts';
import { capacityPlan } from '../plan/capacity-plan.ts';
import { availabilityOf, type Availability } from './availability.ts';
import { resolveTarget, type EndpointSlice, type ResolvedTarget, type Service } from './replicas.ts';

export interface BoardSources {
  deployments: Store<ModelDeployment>;
  services: Store<Service>;
  /** With index `service`: `namespace/name` of the Service that a slice belongs to. */
  slices: Store<EndpointSlice>;
  queue: Pick<OperatorQueue, 'readHolds' | 'readCapacity' | 'liveWorkers' | 'grantsPaused'>;
  addresses: AddressPolicy;
}

export interface DeploymentBoard {
  target(key: string): ResolvedTarget | undefined;
  availability(key: string): Availability | undefined;
  /** Something that a target is made of has changed. */
  invalidate(key: string): void;
  plan(): DeploymentPlan[];
  /** Reads holds, numbers and workers. Rejects, and keeps what it knew, while Redis does not answer. */
  refresh(): Promise<void>;
  /** What holds this one job, of those that run on the deployment; the deployment's other jobs go on. */
  jobHold(uid: string): Hold | undefined;
  /** UIDs of jobs with a hold of their own. */
  readonly heldJobs: ReadonlySet<string>;
  /** Live numbers of an address; undefined while not known. */
  readonly capacity: (address: string) => Capacity | undefined;
  /** undefined while not known. */
  readonly liveWorkers: number | undefined;
  /** Redis came back empty a moment ago and grants no places yet. */
  readonly grantsPaused: boolean;
}

export const queueOfDeployment = ({ metadata }: ModelDeployment): string =>
  queueIdOf(metadata.namespace ?? '', metadata.name);

export function createDeploymentBoard(sources: BoardSources): DeploymentBoard {
  const targets = new Map<string, { object: ModelDeployment; target: ResolvedTarget }>();
  let holds = new Map<string, readonly Hold[]>();
  let capacity = new Map<string, Capacity>();
  let caps:
    { of: readonly ModelDeployment[]; plan: DeploymentPlan[]; byAddress: Map<string, number> } | undefined;
  let jobHolds = new Map<string, Hold>();
  let workers: number | undefined;
  let paused = false;

  function target(key: string): ResolvedTarget | undefined {
    const deployment = sources.deployments.get(key);
    if (deployment === undefined) {
      if (targets.delete(key)) caps = undefined;
      return undefined;
    }
    const known = targets.get(key);
    if (known?.object === deployment) return known.target;
    if (known !== undefined && jsonEqual(known.object.spec, deployment.spec)) {
      known.object = deployment;
      return known.target;
    }
    const { namespace = '' } = deployment.metadata;
    const service = deployment.spec.target.service;
    const serviceKey = `${namespace}/${service?.name ?? ''}`;
    const resolved = resolveTarget({
      deployment,
      service: service === undefined ? undefined : sources.services.get(serviceKey),
      slices: service === undefined ? [] : sources.slices.byIndex('service', serviceKey),
      addresses: sources.addresses,
    });
    targets.set(key, { object: deployment, target: resolved });
    caps = undefined;
    return resolved;
  }

  function currentCaps() {
    // The store gives the same list until one of its objects changes.
    const all = sources.deployments.list();
    if (caps?.of === all) return caps;
    const plan = capacityPlan(
      all
        .filter((deployment) => deployment.metadata.deletionTimestamp === undefined)
        .map((deployment) => ({
          queue: queueOfDeployment(deployment),
          replicas: target(keyOf(deployment))?.replicas ?? [],
          maxInFlightPerReplica: deployment.spec.headroom.maxAsyncInFlightPerReplica,
        })),
    );
    const byAddress = new Map(
      plan.flatMap(({ replicas }) => replicas.map(({ address, cap }) => [address, cap])),
    );
    caps = { of: all, plan, byAddress };
    return caps;
  }

  return {
    target,
    availability: (key) => {
      const resolved = target(key);
      const deployment = sources.deployments.get(key);
      if (resolved === undefined || deployment === undefined) return undefined;
      const { byAddress } = currentCaps();
      const live = { holds: holds.get(queueOfDeployment(deployment)) ?? [], capacity };
      return availabilityOf(resolved, live, (address) => byAddress.get(address) ?? 0);
    },
    invalidate: (key) => {
      targets.delete(key);
      caps = undefined;
    },
    plan: () => currentCaps().plan,
    refresh: async () => {
      const addresses = [...currentCaps().byAddress.keys()];
      const queues = sources.deployments.list().map(queueOfDeployment);
      const [alive, grantsPaused, numbers, ...held] = await Promise.all([
        sources.queue.liveWorkers(),
        sources.queue.grantsPaused(),
        sources.queue.readCapacity(addresses),
        ...queues.map((queue) => sources.queue.readHolds(queue)),
      ]);
      workers = alive;
      paused = grantsPaused;
      capacity = new Map(numbers.map((each) => [each.address, each]));
      holds = new Map(queues.map((queue, at) => [queue, held[at] ?? []]));
      jobHolds = new Map(
        held.flat().flatMap((hold) => {
          const uid = heldJob(hold);
          return uid === undefined ? [] : [[uid, hold] as const];
        }),
      );
    },
    jobHold: (uid) => jobHolds.get(uid),
    get heldJobs() {
      return new Set(jobHolds.keys());
    },
    capacity: (address) => capacity.get(address),
    get liveWorkers() {
      return workers;
    },
    get grantsPaused() {
      return paused;
    },
  };
}
