/** The API group and its kinds by name; `docs/reference/` is generated from what stands in this folder. */

export const GROUP = 'tidegate.dev';
export const VERSION = 'v1alpha1';
export const API_VERSION = `${GROUP}/${VERSION}`;

/** `kubectl get inference` lists every kind of this category. */
export const CATEGORY = 'inference';

/** Set by the operator on every job before it touches S3 or Redis for it; removed after clean-up. */
export const FINALIZER = `${GROUP}/cleanup`;

/** Where a kind lives on the wire. Give it its object type with `Resource<InferenceBatchJob>` of the kube room. */
export interface ResourceData {
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  readonly kind: string;
  readonly namespaced: boolean;
}

export const inferenceBatchJobs = {
  group: GROUP,
  version: VERSION,
  plural: 'inferencebatchjobs',
  kind: 'InferenceBatchJob',
  namespaced: true,
} as const satisfies ResourceData;

export const modelDeployments = {
  group: GROUP,
  version: VERSION,
  plural: 'modeldeployments',
  kind: 'ModelDeployment',
  namespaced: true,
} as const satisfies ResourceData;
