/** The kinds that the operator watches, as the kube room wants them. */
import { inferenceBatchJobs, modelDeployments } from '../api/group.ts';
import type { InferenceBatchJob } from '../api/inference-batch-job.ts';
import type { ModelDeployment } from '../api/model-deployment.ts';
import type { KubeObject, Resource } from '../kube/contract.ts';
import type { EndpointSlice, Service } from './model-deployment/replicas.ts';

export const jobs: Resource<InferenceBatchJob> = inferenceBatchJobs;
export const deployments: Resource<ModelDeployment> = modelDeployments;

export const services: Resource<Service> = {
  group: '',
  version: 'v1',
  plural: 'services',
  kind: 'Service',
  namespaced: true,
};
export const endpointSlices: Resource<EndpointSlice> = {
  group: 'discovery.k8s.io',
  version: 'v1',
  plural: 'endpointslices',
  kind: 'EndpointSlice',
  namespaced: true,
};
export const namespaces: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  plural: 'namespaces',
  kind: 'Namespace',
  namespaced: false,
};
