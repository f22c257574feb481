/** What workers are told of a job. Pure. */
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import type { ModelDeployment } from '../../api/model-deployment.ts';
import { queueIdOf, type ConnectionRef, type JobDescriptor, type QueueId } from '../../queue/contract.ts';
import { modelRefOf } from './accept.ts';

export type RunMode = JobDescriptor['run'];

const CONNECTION_FIELDS = [
  'region',
  'endpoint',
  'forcePathStyle',
  'caBundleRef',
  'credentialsSecretRef',
] as const;
type Location = InferenceBatchJob['spec']['output']['s3'] | InferenceBatchJob['spec']['input']['s3'];

/** Epoch milliseconds at which the completion window ends. It runs from creation, suspended or not. */
export function windowEnd(job: InferenceBatchJob): number {
  const created = Date.parse(job.metadata.creationTimestamp ?? '');
  return created + job.spec.completionWindowSeconds * 1_000;
}

export function queueOf(job: InferenceBatchJob): QueueId {
  const { namespace, name } = modelRefOf(job);
  return queueIdOf(namespace, name);
}

/** Where the job keeps its working objects, for people. */
export function workPrefixOf(job: InferenceBatchJob): string {
  const { bucket, prefix } = job.spec.output.s3;
  return `s3://${bucket}/${prefix}_tidegate/${job.metadata.uid ?? ''}/`;
}

function connectionOf(location: Location, from: Location = location): ConnectionRef {
  const fields = CONNECTION_FIELDS.flatMap((field) =>
    from[field] === undefined ? [] : [[field, from[field]] as const],
  );
  return { bucket: location.bucket, ...Object.fromEntries(fields) };
}

/** The output takes the input's connection whole, unless it names any part of its own. */
function outputConnection({ input, output }: InferenceBatchJob['spec']): ConnectionRef {
  const own = CONNECTION_FIELDS.some((field) => output.s3[field] !== undefined);
  return connectionOf(output.s3, own ? output.s3 : input.s3);
}

/**
 * Made of the resources alone, so that it can be written again whenever Redis lost it. Where the deployment is gone,
 * what `last` said of it stays: tasks that end or clean up a job do not need it.
 */
export function descriptorOf(
  job: InferenceBatchJob,
  deployment: ModelDeployment | undefined,
  last: JobDescriptor | undefined,
  run: RunMode,
  priority: number,
): JobDescriptor {
  const { metadata, spec } = job;
  const { keys, prefix } = spec.input.s3;
  const { namespace, name } = modelRefOf(job);
  const model =
    deployment === undefined
      ? {
          model: last?.model ?? name,
          aliases: last?.aliases ?? [],
          engine: last?.engine ?? ('OpenAICompatible' as const),
          ...(last?.authSecretRef === undefined ? {} : { authSecretRef: last.authSecretRef }),
        }
      : {
          model: deployment.spec.model,
          aliases: deployment.spec.aliases ?? [],
          engine: deployment.spec.engine,
          ...(deployment.spec.authSecretRef === undefined
            ? {}
            : { authSecretRef: { namespace, name: deployment.spec.authSecretRef.name } }),
        };
  return {
    uid: metadata.uid ?? '',
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    generation: metadata.generation ?? 0,
    queue: queueOf(job),
    endpoint: spec.endpoint,
    input: {
      connection: connectionOf(spec.input.s3),
      ...(keys === undefined ? {} : { keys }),
      ...(prefix === undefined ? {} : { prefix }),
      compression: spec.input.compression,
      invalidLines: spec.input.invalidLines,
    },
    output: { connection: outputConnection(spec), prefix: spec.output.s3.prefix },
    ...model,
    retry: { ...spec.retry },
    requestTimeoutSeconds: spec.requestTimeoutSeconds,
    ...(spec.maxInFlight === undefined ? {} : { maxInFlight: spec.maxInFlight }),
    priority,
    deadline: windowEnd(job),
    run,
  };
}
