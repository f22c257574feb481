/** InferenceBatchJob: a file of requests in S3 becomes a file of answers in S3. */
import type { z } from 'zod';
import type { Condition } from './fields.ts';
import { inferenceBatchJobs } from './group.ts';
import { spec } from './inference-batch-job-spec.ts';
import { JOB_CONDITIONS, JOB_REASONS, JOB_STATES, status } from './inference-batch-job-status.ts';
import type { KindDefinition } from './kind.ts';
import type { ObjectMeta } from './object.ts';

export {
  BATCH_ENDPOINTS,
  CONNECTION_FIELDS,
  CREDENTIAL_KEYS,
  type BatchEndpoint,
} from './inference-batch-job-spec.ts';
export {
  JOB_CONDITIONS,
  JOB_REASONS,
  JOB_STATES,
  type JobConditionType,
  type JobReason,
  type JobState,
} from './inference-batch-job-status.ts';

export type InferenceBatchJobSpec = z.output<typeof spec>;
export type InferenceBatchJobStatus = z.output<typeof status>;
export interface InferenceBatchJob {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
  spec: InferenceBatchJobSpec;
  status?: InferenceBatchJobStatus;
}

const unknownAccepted: Condition = {
  type: 'Accepted',
  status: 'Unknown',
  reason: 'Pending',
  message: 'Waiting for the operator',
  lastTransitionTime: '1970-01-01T00:00:00Z',
};

/** Everything of the spec that may still change while a job runs, but not after. */
const FROZEN_WHEN_FINISHED = {
  required: [
    'completionWindowSeconds',
    'retry',
    'failurePolicy',
    'requestTimeoutSeconds',
    'suspend',
    'cancel',
  ],
  optional: ['priorityClassName', 'maxInFlight'],
} as const satisfies Record<string, readonly (keyof InferenceBatchJobSpec)[]>;

const unchanged = [
  ...FROZEN_WHEN_FINISHED.required.map((field) => `self.spec.${field} == oldSelf.spec.${field}`),
  ...FROZEN_WHEN_FINISHED.optional.map(
    (field) =>
      `has(self.spec.${field}) == has(oldSelf.spec.${field}) && (!has(self.spec.${field}) || self.spec.${field} == oldSelf.spec.${field})`,
  ),
].join(' && ');

export const inferenceBatchJobKind = {
  resource: inferenceBatchJobs,
  singular: 'inferencebatchjob',
  shortName: 'ibj',
  description:
    'InferenceBatchJob runs the requests of JSON lines files in S3 on a ModelDeployment, when that has room for them, and writes one record for each line back to S3.',
  spec,
  status,
  statusDefault: {
    observedGeneration: 0,
    state: 'Pending',
    message: 'Waiting for the operator',
    conditions: [unknownAccepted],
  },
  columns: [
    { name: 'Model', type: 'string', jsonPath: '.spec.modelRef.name', description: 'The ModelDeployment' },
    {
      name: 'Class',
      type: 'string',
      jsonPath: '.spec.priorityClassName',
      description: 'The class of the job',
    },
    { name: 'State', type: 'string', jsonPath: '.status.state', description: 'Where the job is' },
    {
      name: 'Progress',
      type: 'string',
      jsonPath: '.status.progress',
      description: 'Ended lines of all lines',
    },
    { name: 'Failed', type: 'integer', jsonPath: '.status.counts.failed', description: 'Failed lines' },
    {
      name: 'ETA',
      // A `date` column prints a time in the future as invalid.
      type: 'string',
      jsonPath: '.status.estimatedCompletionTime',
      description: 'When it is done if it goes on like this',
    },
    {
      name: 'Age',
      type: 'date',
      jsonPath: '.metadata.creationTimestamp',
      description: 'Time since creation',
    },
    { name: 'Percent', type: 'integer', jsonPath: '.status.percent', description: 'Ended lines', wide: true },
    {
      name: 'Tokens/s',
      type: 'integer',
      jsonPath: '.status.throughput.tokensPerSecond',
      description: 'Tokens a second, in and out',
      wide: true,
    },
    {
      name: 'Window ends',
      type: 'string',
      jsonPath: '.status.windowEndTime',
      description: 'When the completion window ends',
      wide: true,
    },
    {
      name: 'Message',
      type: 'string',
      jsonPath: '.status.message',
      description: 'Why it is where it is',
      wide: true,
    },
  ],
  conditions: JOB_CONDITIONS,
  reasons: JOB_REASONS,
  states: JOB_STATES,
  transitions: [
    {
      cel: `!has(oldSelf.status) || !has(oldSelf.status.completionTime) || (${unchanged})`,
      message: 'the job has ended: only spec.ttlSecondsAfterFinished may still change',
    },
  ],
} satisfies KindDefinition<typeof spec, typeof status>;
