/** What users write of an InferenceBatchJob: the shape of its spec and the rules on it. */
import { z } from 'zod';
import {
  baseUrl,
  int32,
  namespaceName,
  object,
  objectKey,
  objectName,
  percent,
  seconds,
  secretRef,
  set,
  text,
} from './fields.ts';
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

export const spec = withRules(
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
