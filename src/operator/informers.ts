/** The watches of the operator, with the indexes that lead from one object to those that depend on it. */
import type { InferenceBatchJob } from '../api/inference-batch-job.ts';
import type { ModelDeployment } from '../api/model-deployment.ts';
import type { KubeObject, Reflector } from '../kube/contract.ts';
import type { KubeRuntime } from '../kube/runtime.ts';
import { modelRefOf } from './inference-batch-job/accept.ts';
import { SERVICE_NAME_LABEL, type EndpointSlice, type Service } from './model-deployment/replicas.ts';
import { deployments, endpointSlices, jobs, namespaces, services } from './resources.ts';

export interface Informers {
  /** Indexes: `uid`, `deployment` (the key of the one named), `namespace`. */
  jobs: Reflector<InferenceBatchJob>;
  /** Index: `service` (the key of the one named). */
  deployments: Reflector<ModelDeployment>;
  services: Reflector<Service>;
  /** Index: `service`. */
  slices: Reflector<EndpointSlice>;
  namespaces: Reflector<KubeObject>;
}

export function createInformers(kube: Pick<KubeRuntime, 'reflector'>): Informers {
  return {
    jobs: kube.reflector({
      resource: jobs,
      indexers: {
        uid: ({ metadata }) => [metadata.uid ?? ''],
        namespace: ({ metadata }) => [metadata.namespace ?? ''],
        deployment: (job) => {
          const { namespace, name } = modelRefOf(job);
          return [`${namespace}/${name}`];
        },
      },
    }),
    deployments: kube.reflector({
      resource: deployments,
      indexers: {
        service: ({ metadata, spec }) =>
          spec.target.service === undefined ? [] : [`${metadata.namespace}/${spec.target.service.name}`],
      },
    }),
    services: kube.reflector({ resource: services }),
    slices: kube.reflector({
      resource: endpointSlices,
      indexers: {
        service: ({ metadata }) => {
          const service = metadata.labels?.[SERVICE_NAME_LABEL];
          return service === undefined ? [] : [`${metadata.namespace}/${service}`];
        },
      },
    }),
    namespaces: kube.reflector({ resource: namespaces }),
  };
}

export const allOf = (informers: Informers): Reflector<KubeObject>[] =>
  Object.values(informers) as Reflector<KubeObject>[];
