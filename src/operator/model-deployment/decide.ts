/** The status of a ModelDeployment, from what its replicas can do now. Pure. */
import type { ModelDeployment, ModelDeploymentStatus } from '../../api/model-deployment.ts';
import { findCondition, setCondition, type ConditionDraft } from '../../kube/conditions.ts';
import { jsonEqual } from '../../kube/merge-patch.ts';
import type { EventDraft } from '../inference-batch-job/snapshot.ts';
import type { Availability } from './availability.ts';
import type { TargetProblem } from './replicas.ts';

export interface DeploymentSnapshot {
  deployment: ModelDeployment;
  availability: Availability;
  /** Also where other replicas of the target are fine. */
  problem: TargetProblem | undefined;
  /** Monotonic time of the last write that moved numbers. */
  numbersWrittenAt: number | undefined;
}

export interface DeploymentPlanned {
  status?: ModelDeploymentStatus;
  events: readonly EventDraft[];
  requeueAfterMilliseconds?: number;
}

/** What no waiting will mend. */
const NEEDS_A_PERSON: ReadonlySet<string> = new Set([
  'ServiceNotFound',
  'PortNotFound',
  'AddressRefused',
  'Unauthorized',
  'RouteNotFound',
  'ModelNotFound',
  'SecretAccessMissing',
  'CredentialsNotFound',
  'CredentialsInvalid',
]);

/** A change of the number in flight below this share of the limit is not worth a write. */
const NOTICEABLE_PERCENT = 5;

export function decide(
  snapshot: DeploymentSnapshot,
  at: { now: number; monotonic: number },
  settings: { deploymentNumbersMilliseconds: number },
): DeploymentPlanned {
  const { deployment } = snapshot;
  if (deployment.metadata.deletionTimestamp !== undefined) return { events: [] };
  const shown = deployment.status?.headroom?.inFlight;
  const moved = isNoticeable(shown, snapshot.availability);
  const mayMove =
    (snapshot.numbersWrittenAt ?? Number.NEGATIVE_INFINITY) + settings.deploymentNumbersMilliseconds;
  const wait = Math.max(0, mayMove - at.monotonic);
  const inFlight = moved && wait === 0 ? snapshot.availability.inFlight : (shown ?? 0);
  const status = draft(snapshot, inFlight, at.now);
  return {
    ...(jsonEqual(deployment.status ?? {}, status) ? {} : { status }),
    events: eventsOf(deployment.status, status),
    ...(moved && wait > 0 ? { requeueAfterMilliseconds: wait } : {}),
  };
}

function isNoticeable(shown: number | undefined, { inFlight, limit }: Availability): boolean {
  if (shown === undefined || (shown === 0) !== (inFlight === 0)) return true;
  return Math.abs(inFlight - shown) * 100 > NOTICEABLE_PERCENT * Math.max(1, limit);
}

function draft(
  { deployment, availability, problem }: DeploymentSnapshot,
  inFlight: number,
  now: number,
): ModelDeploymentStatus {
  const observedGeneration = deployment.metadata.generation ?? 0;
  const { blocked, readyReplicas, replicas, limit } = availability;
  const reason = conditionReason(blocked?.reason ?? 'Ready');
  const partly = problem === undefined || blocked !== undefined ? '' : `; ${problem.message}`;
  const message = blocked?.message ?? `${readyReplicas} of ${replicas} replicas take work${partly}`;
  const stalled = NEEDS_A_PERSON.has(reason);
  const ready = blocked === undefined;
  const wanted: ConditionDraft[] = [
    { type: 'Ready', status: ready ? 'True' : 'False', reason, message },
    ready || stalled
      ? { type: 'Reconciling', status: 'False', reason: 'Settled', message: 'nothing is left to do' }
      : { type: 'Reconciling', status: 'True', reason: 'Progressing', message },
    stalled
      ? { type: 'Stalled', status: 'True', reason, message }
      : { type: 'Stalled', status: 'False', reason: 'Settled', message: 'nothing needs a person' },
  ];
  let conditions = deployment.status?.conditions ?? [];
  for (const condition of wanted) {
    conditions = [...setCondition(conditions, { ...condition, observedGeneration }, now)];
  }
  return {
    ...deployment.status,
    observedGeneration,
    conditions,
    replicas,
    readyReplicas,
    headroom: { inFlight, limit },
  };
}

/** Holds carry reasons of workers; one that Kubernetes would refuse must not keep the status from being written. */
const conditionReason = (reason: string): string =>
  /^[A-Z][A-Za-z0-9]{0,127}$/.test(reason) ? reason : 'NoReadyReplicas';

function eventsOf(
  before: ModelDeploymentStatus | undefined,
  after: ModelDeploymentStatus,
): readonly EventDraft[] {
  const old = findCondition(before?.conditions, 'Ready');
  const now = findCondition(after.conditions, 'Ready');
  if (now === undefined || (old?.status === now.status && old.reason === now.reason)) return [];
  const type = now.status === 'True' ? 'Normal' : 'Warning';
  return [{ type, reason: now.reason, message: now.message }];
}
