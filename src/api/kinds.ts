/** Every kind of the group, for what handles all of them alike: CRDs, reference, validation. */
import { inferenceBatchJobKind } from './inference-batch-job.ts';
import type { KindDefinition } from './kind.ts';
import { modelDeploymentKind } from './model-deployment.ts';

export const KINDS: readonly KindDefinition[] = [inferenceBatchJobKind, modelDeploymentKind];
