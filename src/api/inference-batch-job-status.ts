/** What the operator writes of an InferenceBatchJob: the shape of its status, states, conditions and reasons. */
import { z } from 'zod';
import { ENGINE_REASONS } from './engine-reasons.ts';
import { conditions, count, list, object, percent, text, time } from './fields.ts';
import { withRules } from './rules.ts';

/** One word for people; conditions are for programs. */
export const JOB_STATES = {
  Pending: 'Not seen by the operator yet, or waiting for its ModelDeployment.',
  Validating: 'The input is being read and checked.',
  Queued: 'Waiting for its first line to run.',
  Running: 'Lines are running.',
  Throttled: 'Lines wait: no place on any replica, or the engine is on hold; the message says why.',
  Suspended: 'spec.suspend is true.',
  Finalizing: 'Every line is decided; the last records are being published.',
  Completed: 'Ended: every line that could run has run.',
  Cancelled: 'Ended by spec.cancel.',
  Expired: 'Ended by spec.completionWindowSeconds.',
  Failed: 'Ended by a cause that the Failed condition names.',
} as const satisfies Record<string, string>;
export type JobState = keyof typeof JOB_STATES;

export const status = withRules(
  object({
    observedGeneration: count().optional().describe('metadata.generation that this status was made from.'),
    conditions: conditions()
      .optional()
      .describe(
        'Accepted, Indexed, Suspended, Running, Complete, Failed, and for tools that know them Reconciling and Stalled.',
      ),
    state: z
      .enum(Object.keys(JOB_STATES) as [JobState, ...JobState[]])
      .optional()
      .describe('Where the job is, in one word for people.'),
    message: text(1024).optional().describe('Why it is there, and what it waits for.'),
    counts: object({
      total: count().describe(
        'Lines of the input that are not blank, invalid ones included; 0 until indexed.',
      ),
      completed: count().describe('Lines with a record in results.jsonl.'),
      failed: count().describe(
        'Lines that are invalid, were refused by the engine, or used up their attempts.',
      ),
      expired: count().describe('Lines that the completion window cut off.'),
      cancelled: count().describe('Lines that spec.cancel cut off.'),
    })
      .optional()
      .describe(
        'How the lines ended so far. When the job has ended they add up to the total and equal the lines of the files.',
      ),
    progress: text(64).optional().describe('Ended lines of all lines, such as 812357/1000000.'),
    percent: percent().optional().describe('Ended lines in percent of all, rounded down.'),
    throughput: object({
      recordsPerMinute: count().describe('Lines ended a minute.'),
      tokensPerSecond: count().describe('Tokens a second, in and out.'),
    })
      .optional()
      .describe('How fast the job went lately, rounded; rewritten when it changes by 5 %.'),
    estimatedCompletionTime: time().optional().describe('When the job is done if it goes on like this.'),
    windowEndTime: time().optional().describe('When the completion window ends.'),
    usage: object({
      inputTokens: count().describe('Prompt tokens, cached ones included.'),
      cachedInputTokens: count().describe(
        'Prompt tokens that the engine took from its prefix cache, where it says so.',
      ),
      outputTokens: count().describe('Generated tokens.'),
    })
      .optional()
      .describe('Tokens as the engine reported them, over all answers that were recorded.'),
    outputs: object({
      results: text(2048).optional().describe('URI of results.jsonl; absent while it has no record.'),
      errors: text(2048).optional().describe('URI of errors.jsonl; absent while it has no record.'),
      manifest: text(2048)
        .optional()
        .describe('URI of manifest.json: counts, sizes and checksums; written at the end.'),
    })
      .optional()
      .describe('Where the published files are, as s3:// URIs.'),
    recentErrors: list(
      object({
        line: count().describe('Physical line number in its input object, from 1.'),
        customID: text(512).optional().describe('custom_id of the line; absent where it has none.'),
        code: text(128).describe('What went wrong: a code of docs/reference/errors.md or of the engine.'),
        message: text(512).describe('What went wrong, for people; shortened.'),
      }).describe('One failed line.'),
      10,
    )
      .optional()
      .describe('The last failed lines, at most 10; all of them are in errors.jsonl.'),
    startTime: time().optional().describe('When the operator accepted the job.'),
    indexedTime: time().optional().describe('When the input was read and checked.'),
    completionTime: time()
      .optional()
      .describe('When the job ended, whatever way; written together with the final counts.'),
  }),
  [
    {
      cel: "!has(self.conditions) || !(self.conditions.exists(c, c.type == 'Complete' && c.status == 'True') && self.conditions.exists(c, c.type == 'Failed' && c.status == 'True'))",
      holds: ({ conditions: all = [] }) =>
        !['Complete', 'Failed'].every((type) => all.some((c) => c.type === type && c.status === 'True')),
      message: 'a job is Complete or Failed, never both',
      field: 'conditions',
    },
  ],
  [
    {
      cel: '!has(oldSelf.completionTime) || (has(self.completionTime) && self.completionTime == oldSelf.completionTime && has(self.state) && has(oldSelf.state) && self.state == oldSelf.state)',
      message: 'a job that has ended stays as it ended',
    },
  ],
);

export const JOB_CONDITIONS = {
  Accepted: 'The job is valid and its ModelDeployment exists and takes jobs of this namespace.',
  Indexed: 'The input was read and checked; counts.total is known.',
  Suspended: 'No new line is started because spec.suspend is true.',
  Running: 'Lines are being sent. False says what they wait for.',
  Complete:
    'Every line that could run has run and all records are published. Excludes Failed; never taken back.',
  Failed:
    'The job ended otherwise: expired, cancelled, or by the cause named. What was done is published. Excludes Complete; never taken back.',
  Reconciling: 'The job is on its way (kstatus).',
  Stalled: 'The job cannot go on without a change by a person, or has failed (kstatus).',
} as const satisfies Record<string, string>;
export type JobConditionType = keyof typeof JOB_CONDITIONS;

/** Every reason of every condition of an InferenceBatchJob. */
export const JOB_REASONS = {
  Pending: 'The operator has not seen the object yet.',
  Accepted: 'Nothing stands against the job.',
  ModelDeploymentNotFound: 'modelRef names a ModelDeployment that does not exist. The job waits for it.',
  NamespaceNotAllowed:
    'The ModelDeployment does not take jobs of this namespace (its allowedNamespaces). The job waits.',

  Indexing: 'The input is being read.',
  Indexed: 'The input was read and checked.',
  CredentialsNotFound: 'The credentials Secret, or the CA ConfigMap, does not exist. Retried.',
  CredentialsInvalid:
    'The credentials Secret lacks a key or the store refuses them; or none are named where the worker may not use its own identity. Retried.',
  SecretAccessMissing:
    'Workers may not read Secrets of this namespace; the message names the command that allows it. Retried.',
  AccessDenied: 'The store refuses the operation to these credentials. Retried.',
  AddressRefused:
    'The endpoint is a link-local address, or a loopback address without the flag for local trials.',
  NoSuchBucket: 'The bucket does not exist. Retried.',
  NoSuchKey: 'An input object does not exist, or no object has the prefix. Retried.',
  StorageUnavailable: 'The store does not answer, or answers 5xx. Retried.',
  DiskFull: 'The scratch disk of the worker is too small to check the custom_ids of this input. Retried.',
  OutputExists: 'Another job has published under the output prefix. Nothing is overwritten.',
  InputChanged: 'An input object was replaced or deleted while the job ran. What is done is kept.',
  InvalidInput: 'The input has invalid lines and invalidLines is Fail, or an object cannot be unpacked.',
  EmptyInput: 'The input has no line.',
  LimitExceeded: 'The input is larger, or unpacks to more, than this installation allows.',

  SuspendedByUser: 'spec.suspend is true.',
  NotSuspended: 'spec.suspend is false.',

  Running: 'Lines are in flight.',
  Queued: 'Indexed; the first line has not been sent yet.',
  NotIndexed: 'Nothing can run before the input is indexed.',
  WaitingForPlaces: 'All places of the replicas, or of maxInFlight, are taken by other work.',
  NoReadyReplicas: 'The ModelDeployment has no ready replica.',
  NoWorkers: 'No worker is alive.',
  ...ENGINE_REASONS,
  QueueUnavailable: 'Redis does not answer.',
  Finalizing: 'Every line is decided; the last records are being published.',
  Finished: 'The job has ended.',
  ResultsNotPublished:
    'The job has ended, and its last results could not be published; the message names the working objects that hold them, which stay.',

  Completed: 'Every line that could run has run; failed lines are counted and stand in errors.jsonl.',
  WindowExpired: 'completionWindowSeconds were over before the last line.',
  Cancelled: 'spec.cancel was set.',
  FailureThreshold: 'More lines failed than failurePolicy.maxFailedPercent allows.',

  KubernetesUnavailable: 'A worker cannot reach the API server to read a Secret. Retried.',
  InternalError: 'Something failed that Tidegate does not know; the message says what. Retried.',
  Progressing: 'The job is on its way.',
  Waiting: 'The job waits for something that may come by itself; the other conditions say for what.',
} as const satisfies Record<string, string>;
export type JobReason = keyof typeof JOB_REASONS;
