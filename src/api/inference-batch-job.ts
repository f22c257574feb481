/** InferenceBatchJob: a file of requests in S3 becomes a file of answers in S3. */
import { z } from 'zod';
import { ENGINE_REASONS } from './engine-reasons.ts';
import {
  baseUrl,
  conditions,
  count,
  int32,
  list,
  namespaceName,
  object,
  objectKey,
  objectName,
  percent,
  seconds,
  secretRef,
  set,
  text,
  time,
  type Condition,
} from './fields.ts';
import { inferenceBatchJobs } from './group.ts';
import type { KindDefinition } from './kind.ts';
import type { ObjectMeta } from './object.ts';
import { immutable, withRules } from './rules.ts';

export const BATCH_ENDPOINTS = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/embeddings',
  '/v1/responses',
] as const;
export type BatchEndpoint = (typeof BATCH_ENDPOINTS)[number];

/** Keys of a Secret with S3 credentials; the session token is optional. */
export const CREDENTIAL_KEYS = {
  accessKeyId: 'AWS_ACCESS_KEY_ID',
  secretAccessKey: 'AWS_SECRET_ACCESS_KEY',
  sessionToken: 'AWS_SESSION_TOKEN',
} as const;

const bucket = () =>
  text(63, { min: 3, pattern: /^[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]$/ }).describe('Name of the bucket.');

/** How to reach a store; everything but the bucket counts as connection. */
const connection = {
  region: text(64, { min: 1, pattern: /^[A-Za-z0-9_-]+$/ })
    .optional()
    .describe('Region of the bucket. Without it, us-east-1 is signed for.'),
  endpoint: baseUrl()
    .optional()
    .describe(
      "Address of an S3-compatible store, such as https://s3.example.com. Without it, Amazon's own of the region.",
    ),
  forcePathStyle: z
    .boolean()
    .optional()
    .describe(
      'Whether the bucket stands in the path (https://host/bucket/key) and not in the host name. Without it: true with an endpoint, false without.',
    ),
  caBundleRef: object({
    name: objectName().describe('Name of the ConfigMap.'),
    key: text(253, { min: 1, pattern: /^[-._a-zA-Z0-9]+$/ })
      .default('ca.crt')
      .describe('Its key.'),
  })
    .optional()
    .describe(
      'A ConfigMap of this namespace that holds PEM certificates of the authorities to trust for the endpoint.',
    ),
  credentialsSecretRef: secretRef()
    .optional()
    .describe(
      `A Secret of this namespace with the keys ${CREDENTIAL_KEYS.accessKeyId}, ${CREDENTIAL_KEYS.secretAccessKey} and, optionally, ${CREDENTIAL_KEYS.sessionToken}. Read again when it changes. Without it, the worker's own identity, where the installation allows that for this namespace; never with an endpoint.`,
    ),
};
export const CONNECTION_FIELDS = Object.keys(connection) as (keyof typeof connection)[];

const inputS3 = withRules(
  object({
    bucket: bucket(),
    keys: set(objectKey(1024).describe('Key of one object.'), 1000, 1)
      .optional()
      .describe('Keys of the objects to read, in this order.'),
    prefix: objectKey(1024)
      .optional()
      .describe('Reads every object whose key begins with this, ordered by key.'),
    ...connection,
  }),
  [
    {
      cel: 'has(self.keys) != has(self.prefix)',
      holds: (self) => (self.keys !== undefined) !== (self.prefix !== undefined),
      message: 'exactly one of keys and prefix must be set',
    },
  ],
);

const input = object({
  s3: inputS3.describe('Where the input lies in S3.'),
  compression: z
    .enum(['Auto', 'None', 'Gzip', 'Zstd'])
    .default('Auto')
    .describe(
      'How the objects are packed. Auto recognises gzip and zstd by content, whatever the name; the others insist.',
    ),
  invalidLines: z
    .enum(['Record', 'Fail'])
    .default('Record')
    .describe(
      'What an invalid line means. Record: it gets an error record and the others run. Fail: the job fails before anything runs, naming the first such lines.',
    ),
});

const output = object({
  s3: object({
    bucket: bucket(),
    prefix: objectKey(512, [
      {
        cel: "self.endsWith('/')",
        holds: (self) => self.endsWith('/'),
        message: "must end in '/'",
      },
    ]).describe(
      "Folder for results.jsonl, errors.jsonl and manifest.json; ends in '/'. One job owns it: a job that finds another's results there fails with OutputExists. Working objects lie below it in _tidegate/ until the job has ended.",
    ),
    ...connection,
  }).describe(
    'Where the output goes in S3. Without any of region, endpoint, forcePathStyle, caBundleRef and credentialsSecretRef it takes all of them from the input; with any, only its own count.',
  ),
});

const retry = withRules(
  object({
    maxAttempts: int32(1, 100)
      .default(5)
      .describe(
        'How often one line is sent at most. Only attempts count that reached the engine and failed there (connection lost, 5xx, timeout, unreadable answer).',
      ),
    initialBackoffSeconds: seconds(0, 3600)
      .default(1)
      .describe('Seconds before the second attempt; doubled for each further one, with jitter.'),
    maxBackoffSeconds: seconds(0, 3600)
      .default(60)
      .describe('The longest wait between two attempts, in seconds.'),
  }),
  [
    {
      cel: 'self.initialBackoffSeconds <= self.maxBackoffSeconds',
      holds: (self) => self.initialBackoffSeconds <= self.maxBackoffSeconds,
      message: 'initialBackoffSeconds must not exceed maxBackoffSeconds',
      field: 'initialBackoffSeconds',
    },
  ],
);

type S3Location = { bucket: string } & { [F in (typeof CONNECTION_FIELDS)[number]]?: unknown };

/** Whether both locations name one bucket of one store, as far as the job itself can tell. */
function sameBucket(from: S3Location, to: S3Location): boolean {
  const own = CONNECTION_FIELDS.some((field) => to[field] !== undefined);
  return from.bucket === to.bucket && (!own || from.endpoint === to.endpoint);
}

const anyOwn = CONNECTION_FIELDS.map((field) => `has(self.output.s3.${field})`).join(' || ');
const sameEndpoint =
  "(has(self.input.s3.endpoint) ? self.input.s3.endpoint : '') == (has(self.output.s3.endpoint) ? self.output.s3.endpoint : '')";
const sameBucketCel = `self.input.s3.bucket == self.output.s3.bucket && (!(${anyOwn}) || ${sameEndpoint})`;

const spec = withRules(
  object({
    modelRef: withRules(
      object({
        name: objectName().describe('Name of the ModelDeployment.'),
        namespace: namespaceName()
          .optional()
          .describe("Its namespace; without it, the job's own. It must allow jobs of this namespace."),
      }),
      [],
      [immutable('modelRef')],
    )
      .meta({ mutability: 'Immutable' })
      .describe('The ModelDeployment that runs the lines. It may not exist yet: the job waits for it.'),
    endpoint: withRules(z.enum(BATCH_ENDPOINTS), [], [immutable('endpoint')])
      .meta({ mutability: 'Immutable' })
      .describe(
        'The route of the engine that every line is for; a line whose url differs gets an error record.',
      ),
    input: withRules(input, [], [immutable('input')])
      .meta({ mutability: 'Immutable' })
      .describe('The requests: JSON lines in the format of the OpenAI Batch API.'),
    output: withRules(output, [], [immutable('output')])
      .meta({ mutability: 'Immutable' })
      .describe(
        'The answers, growing in input order while the job runs: each line of the input has exactly one record, in results.jsonl or in errors.jsonl.',
      ),
    priorityClassName: objectName()
      .optional()
      .meta({ mutability: 'MutableUntilFinished' })
      .describe('Name of the class of this job. Any name is accepted, and for now only shown.'),
    completionWindowSeconds: seconds(60, 2_592_000)
      .default(86_400)
      .meta({ mutability: 'MutableUntilFinished' })
      .describe(
        'Seconds from creation, suspended or not, until the job ends with what is done; lines not finished by then get a batch_expired record.',
      ),
    maxInFlight: int32(1, 100_000)
      .optional()
      .meta({ mutability: 'MutableUntilFinished' })
      .describe(
        'The most requests of this job in flight at any time, over all workers. Without it only the limits of the ModelDeployment count.',
      ),
    retry: retry
      .prefault({})
      .meta({ mutability: 'MutableUntilFinished' })
      .describe(
        'How failed attempts of a line are repeated. Busy answers (429, 503) and an engine that cannot be reached cost no attempt.',
      ),
    failurePolicy: object({
      maxFailedPercent: percent()
        .default(100)
        .describe(
          'When more than this share of all lines (invalid ones included) has failed, the job stops with reason FailureThreshold. 100: never.',
        ),
    })
      .prefault({})
      .meta({ mutability: 'MutableUntilFinished' })
      .describe('When the whole job is given up.'),
    requestTimeoutSeconds: seconds(1, 86_400)
      .default(600)
      .meta({ mutability: 'MutableUntilFinished' })
      .describe(
        'Seconds that one attempt of a line may take; a longer one is aborted and counts as failed attempt. At most completionWindowSeconds.',
      ),
    suspend: z
      .boolean()
      .default(false)
      .meta({ mutability: 'MutableUntilFinished' })
      .describe(
        'true: start no new line, finish those in flight, keep what is done. false: go on. A job suspended at birth does not read its input.',
      ),
    cancel: withRules(
      z.boolean(),
      [],
      [{ cel: '!oldSelf || self', message: 'cancel is one way: it cannot be taken back' }],
    )
      .default(false)
      .meta({ mutability: 'MutableOnce' })
      .describe(
        'true: end the job and keep it with what is done; every other line gets a batch_cancelled record.',
      ),
    ttlSecondsAfterFinished: seconds(0, 315_360_000)
      .optional()
      .meta({ mutability: 'Mutable' })
      .describe(
        'Seconds after which the finished job is deleted (0: at once). Without it the job stays. Published files are never deleted.',
      ),
  }),
  [
    {
      cel: 'self.requestTimeoutSeconds <= self.completionWindowSeconds',
      holds: (self) => self.requestTimeoutSeconds <= self.completionWindowSeconds,
      message: 'requestTimeoutSeconds (600 unless set) must not exceed completionWindowSeconds',
      field: 'requestTimeoutSeconds',
    },
    {
      cel: `!has(self.input.s3.prefix) || !(${sameBucketCel}) || !self.output.s3.prefix.startsWith(self.input.s3.prefix)`,
      holds: ({ input: { s3: from }, output: { s3: to } }) =>
        from.prefix === undefined || !sameBucket(from, to) || !to.prefix.startsWith(from.prefix),
      message:
        'output.s3.prefix must not lie inside input.s3.prefix of the same bucket: the job would read its own output',
      field: 'output',
    },
  ],
);

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

const status = withRules(
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

export type InferenceBatchJobSpec = z.output<typeof spec>;
export type InferenceBatchJobStatus = z.output<typeof status>;
export interface InferenceBatchJob {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
  spec: InferenceBatchJobSpec;
  status?: InferenceBatchJobStatus;
}

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
