/** Whether a job may run on the deployment it names: an ordered list of checks; the first objection counts. Pure. */
import type { InferenceBatchJob, JobReason } from '../../api/inference-batch-job.ts';
import { selects } from '../../api/label-selector.ts';
import type { ModelDeployment } from '../../api/model-deployment.ts';

export interface AcceptInput {
  job: InferenceBatchJob;
  deployment: ModelDeployment | undefined;
  namespaceLabels: Readonly<Record<string, string>> | undefined;
}

export interface Objection {
  reason: JobReason;
  message: string;
}

export function modelRefOf(job: InferenceBatchJob): { namespace: string; name: string } {
  const { name, namespace = job.metadata.namespace ?? '' } = job.spec.modelRef;
  return { namespace, name };
}

type Check = (input: AcceptInput) => Objection | undefined;

const deploymentExists: Check = ({ job, deployment }) => {
  if (deployment !== undefined && deployment.metadata.deletionTimestamp === undefined) return undefined;
  const { namespace, name } = modelRefOf(job);
  return {
    reason: 'ModelDeploymentNotFound',
    message: `there is no ModelDeployment ${name} in namespace ${namespace}; the job waits for it`,
  };
};

const namespaceAllowed: Check = ({ job, deployment, namespaceLabels }) => {
  const { namespace, name } = modelRefOf(job);
  const own = job.metadata.namespace ?? '';
  if (deployment === undefined || own === namespace) return undefined;
  const { allowedNamespaces, namespaceSelector } = deployment.spec;
  const allowed =
    allowedNamespaces === 'All' ||
    (allowedNamespaces === 'Selector' &&
      namespaceSelector !== undefined &&
      namespaceLabels !== undefined &&
      selects(namespaceSelector, namespaceLabels));
  if (allowed) return undefined;
  const rule =
    allowedNamespaces === 'Selector'
      ? 'only from namespaces that its namespaceSelector selects'
      : 'only from its own namespace';
  return {
    reason: 'NamespaceNotAllowed',
    message: `ModelDeployment ${namespace}/${name} takes jobs ${rule} (allowedNamespaces: ${allowedNamespaces}), and this job is in ${own}; the job waits`,
  };
};

const CHECKS: readonly Check[] = [deploymentExists, namespaceAllowed];

/** undefined: nothing stands against the job. */
export function objectionTo(input: AcceptInput): Objection | undefined {
  for (const check of CHECKS) {
    const objection = check(input);
    if (objection !== undefined) return objection;
  }
  return undefined;
}
