/** Where a live job stands and what it waits for: state, message and conditions. Pure. */
import type { JobState } from '../../api/inference-batch-job.ts';
import { findCondition } from '../../kube/conditions.ts';
import type { IndexReport } from '../../queue/contract.ts';
import type { Objection } from './accept.ts';
import { modelRefOf } from './accept.ts';
import { everIndexed, neverStarted, type Context } from './context.ts';
import { conditionReason } from './ending.ts';
import { stateOf } from './life.ts';
import type { ConditionValue, ConditionValues } from './status.ts';

export interface Standing {
  /** undefined: as it was. */
  state: JobState | undefined;
  message: string;
  /** undefined: as it was. */
  running: ConditionValue | undefined;
}

/** Waiting does not help here: a person has to change something (kstatus shows the job as failed until then). */
const NEEDS_A_PERSON: ReadonlySet<string> = new Set([
  'ModelDeploymentNotFound',
  'NamespaceNotAllowed',
  'CredentialsNotFound',
  'CredentialsInvalid',
  'SecretAccessMissing',
  'AccessDenied',
  'AddressRefused',
  'NoSuchBucket',
  'NoSuchKey',
  'DiskFull',
  'Unauthorized',
  'RouteNotFound',
  'ModelNotFound',
]);

const waiting = (state: JobState | undefined, reason: string, message: string): Standing => ({
  state,
  message,
  running: { status: 'False', reason: conditionReason(reason), message },
});

type Place = (context: Context, objection: Objection | undefined) => Standing | undefined;

const suspended: Place = ({ snapshot: { job } }) =>
  job.spec.suspend
    ? waiting('Suspended', 'SuspendedByUser', 'suspended: no new line is started while spec.suspend is true')
    : undefined;

const notAccepted: Place = ({ snapshot }, objection) =>
  objection === undefined
    ? undefined
    : waiting(everIndexed(snapshot) ? 'Throttled' : 'Pending', objection.reason, objection.message);

/** A short outage is nobody's business; a longer one is told, once. */
const withoutRedis: Place = ({ snapshot, at, settings }) => {
  if (snapshot.queue !== undefined) return undefined;
  const since = snapshot.memory.unavailableSince ?? at.monotonic;
  const { job } = snapshot;
  if (at.monotonic - since < settings.unavailableShownMilliseconds) {
    return { state: undefined, message: job.status?.message ?? '', running: undefined };
  }
  return waiting(
    everIndexed(snapshot) ? 'Throttled' : 'Pending',
    'QueueUnavailable',
    'Redis does not answer; work goes on when it does',
  );
};

const notIndexed: Place = ({ snapshot }) => {
  if (everIndexed(snapshot)) return undefined;
  const problem = snapshot.memory.problem?.problem;
  return waiting(
    'Validating',
    'NotIndexed',
    problem?.task === 'index' ? problem.message : 'the input is being read and checked',
  );
};

/** Redis lost the index: a worker looks up in S3 what is done. States of before stay true meanwhile. */
const surveyed: Place = (context) => {
  const { queue, job, memory } = context.snapshot;
  if (queue?.index !== undefined) return undefined;
  const state = stateOf(job.status);
  const stays = state === 'Running' || state === 'Queued' || state === 'Throttled';
  const message = memory.problem?.problem.message ?? 'looking up what is already done';
  return stays
    ? { state: undefined, message, running: undefined }
    : waiting(hasStarted(context) ? 'Throttled' : 'Queued', 'Waiting', message);
};

/** Reasons of a ModelDeployment's target that mean, for a job, just this. */
const TARGET_REASONS: readonly string[] = ['ServiceNotFound', 'PortNotFound', 'AddressRefused'];

const blocked: Place = ({ snapshot: { availability, job } }) => {
  const { name } = modelRefOf(job);
  if (availability === undefined) {
    return waiting('Throttled', 'NoReadyReplicas', `waiting for the replicas of ${name} to be looked up`);
  }
  const why = availability.blocked;
  if (why === undefined) return undefined;
  const reason = TARGET_REASONS.includes(why.reason) ? 'NoReadyReplicas' : why.reason;
  return waiting('Throttled', reason, `waiting for ModelDeployment ${name}: ${why.message}`);
};

const withoutWorkers: Place = ({ snapshot }) =>
  snapshot.liveWorkers === 0
    ? waiting('Throttled', 'NoWorkers', 'waiting for a worker: none is alive')
    : undefined;

const replicas = (n: number): string => (n === 1 ? '1 replica' : `${n} replicas`);

/** Invalid lines have their records by then; that is not running. */
const placesPaused: Place = (context) =>
  context.snapshot.grantsPaused && stateOf(context.snapshot.job.status) !== 'Running'
    ? waiting(
        'Queued',
        'Queued',
        'Redis has just come up empty: places are given out after one lease time, when workers have said what they still hold',
      )
    : undefined;

const notStarted: Place = (context) => {
  if (hasStarted(context) || hasLinesInFlight(context)) return undefined;
  const { availability } = context.snapshot;
  const message = isFull(context)
    ? `waiting for a free place on ${replicas(availability?.readyReplicas ?? 0)}`
    : 'waiting for its first lines to run';
  return waiting('Queued', 'Queued', message);
};

const outOfPlaces: Place = (context) => {
  const { snapshot, at, settings } = context;
  const since = snapshot.memory.ended?.since ?? at.monotonic;
  if (!isFull(context) || hasPlaces(context) || at.monotonic - since < settings.throttledAfterMilliseconds)
    return undefined;
  const ready = snapshot.availability?.readyReplicas ?? 0;
  return waiting('Throttled', 'WaitingForPlaces', `waiting for a free place on ${replicas(ready)}`);
};

const running: Place = ({ snapshot }) => {
  const problem = snapshot.memory.problem?.problem;
  const message =
    problem?.message ?? `lines are running on ${replicas(snapshot.availability?.readyReplicas ?? 0)}`;
  return {
    state: 'Running',
    message,
    running: { status: 'True', reason: 'Running', message: 'lines are running' },
  };
};

/** Asked in this order; the first that has something to say counts. */
const PLACES: readonly Place[] = [
  suspended,
  notAccepted,
  withoutRedis,
  notIndexed,
  surveyed,
  blocked,
  withoutWorkers,
  placesPaused,
  notStarted,
  outOfPlaces,
  running,
];

export function standingOf(context: Context, objection: Objection | undefined): Standing {
  for (const place of PLACES) {
    const standing = place(context, objection);
    if (standing !== undefined) return standing;
  }
  return { state: undefined, message: '', running: undefined };
}

function isFull({ snapshot: { availability } }: Context): boolean {
  return availability !== undefined && availability.inFlight >= availability.limit;
}

/** A shard that gets no place is given back; one that is held for longer has lines in flight. */
function hasPlaces({ snapshot: { queue }, settings }: Context): boolean {
  return (queue?.openForMilliseconds ?? 0) >= settings.provenPlacesMilliseconds;
}

/** Long lines may run for minutes before the first of them ends. */
function hasLinesInFlight(context: Context): boolean {
  return hasPlaces(context) || ((context.snapshot.queue?.openShards ?? 0) > 0 && !isFull(context));
}

/** Whether a line of this job is known to have run, now or before something was lost. */
function hasStarted({ snapshot: { job, memory } }: Context): boolean {
  const shown = job.status?.counts;
  return (
    (memory.ended?.lines ?? 0) > 0 ||
    (shown !== undefined && shown.completed + shown.failed + shown.expired + shown.cancelled > 0) ||
    job.status?.state === 'Running'
  );
}

export function liveConditions(
  context: Context,
  objection: Objection | undefined,
  standing: Standing,
): ConditionValues {
  const { snapshot } = context;
  const { job } = snapshot;
  const { namespace, name } = modelRefOf(job);
  const stalled = whatStalls(context, objection, standing);
  return {
    Accepted:
      objection === undefined
        ? { status: 'True', reason: 'Accepted', message: `runs on ModelDeployment ${namespace}/${name}` }
        : { status: 'False', ...objection },
    ...indexedCondition(context, objection),
    Suspended: job.spec.suspend
      ? { status: 'True', reason: 'SuspendedByUser', message: 'spec.suspend is true' }
      : { status: 'False', reason: 'NotSuspended', message: 'spec.suspend is false' },
    ...(standing.running === undefined ? {} : { Running: standing.running }),
    Reconciling:
      stalled !== undefined || job.spec.suspend
        ? { status: 'False', reason: stalled?.reason ?? 'SuspendedByUser', message: standing.message }
        : standing.running?.status === 'False'
          ? { status: 'True', reason: 'Waiting', message: standing.running.message }
          : { status: 'True', reason: 'Progressing', message: 'the job is on its way' },
    Stalled:
      stalled === undefined
        ? { status: 'False', reason: 'Progressing', message: 'nothing needs a person' }
        : { status: 'True', ...stalled },
  };
}

function whatStalls(
  { snapshot }: Context,
  objection: Objection | undefined,
  standing: Standing,
): { reason: string; message: string } | undefined {
  if (snapshot.job.spec.suspend) return undefined;
  const problem = snapshot.memory.problem?.problem;
  const candidates = [objection, standing.running, problem];
  const found = candidates.find((each) => each !== undefined && NEEDS_A_PERSON.has(each.reason));
  return found === undefined ? undefined : { reason: found.reason, message: found.message };
}

export function indexedValue({ total, shards, invalid }: IndexReport): ConditionValue {
  const message = `${total} lines in ${shards} shards, ${invalid} of them invalid`;
  return { status: 'True', reason: 'Indexed', message };
}

function indexedCondition(context: Context, objection: Objection | undefined): ConditionValues {
  const { snapshot } = context;
  const { job, queue, memory } = snapshot;
  const old = findCondition(job.status?.conditions, 'Indexed');
  if (queue?.index !== undefined) return { Indexed: indexedValue(queue.index) };
  if (old?.status === 'True') return {};
  const problem = memory.problem?.problem;
  if (problem?.task === 'index') {
    return {
      Indexed: { status: 'False', reason: conditionReason(problem.reason), message: problem.message },
    };
  }
  if (objection === undefined && !job.spec.suspend && queue !== undefined) {
    return { Indexed: { status: 'False', reason: 'Indexing', message: 'the input is being read' } };
  }
  if (!neverStarted(snapshot)) return {};
  const reason = job.spec.suspend ? 'SuspendedByUser' : 'Waiting';
  return { Indexed: { status: 'False', reason, message: 'the input has not been read yet' } };
}
