/** The status as it shall be, from the status as it is and what is known now. Pure. */
import type {
  InferenceBatchJob,
  InferenceBatchJobStatus,
  JobConditionType,
  JobState,
} from '../../api/inference-batch-job.ts';
import type { RecentError, Usage } from '../../batch/model.ts';
import { kubeTime, setCondition } from '../../kube/conditions.ts';
import { jsonEqual } from '../../kube/merge-patch.ts';
import { truncateUtf8 } from '../../kube/text.ts';
import { windowEnd } from './descriptor.ts';

export type Status = InferenceBatchJobStatus;

/** Far below etcd's limits, and readable: per-request detail goes to S3. */
export const MAX_STATUS_BYTES = 32 * 1024;
const MAX_RECENT_ERRORS = 10;
const MAX_ERROR_MESSAGE_BYTES = 256;
const MAX_ERROR_CODE_BYTES = 128;
const MAX_CUSTOM_ID_BYTES = 512;

export interface ConditionValue {
  status: 'True' | 'False' | 'Unknown';
  reason: string;
  message: string;
}
export type ConditionValues = Partial<Record<JobConditionType, ConditionValue>>;

/** The status with these fields and conditions in it and everything else as it was. */
export function statusWith(
  job: InferenceBatchJob,
  now: number,
  values: {
    state: JobState;
    message: string;
    conditions: ConditionValues;
    fields?: Omit<Partial<Status>, 'state' | 'message' | 'conditions' | 'observedGeneration'>;
  },
): Status {
  const generation = job.metadata.generation ?? 0;
  let conditions = job.status?.conditions ?? [];
  for (const [type, value] of Object.entries(values.conditions)) {
    const draft = { type, ...value, message: clean(value.message), observedGeneration: generation };
    conditions = [...setCondition(conditions, draft, now)];
  }
  const status: Status = {
    ...job.status,
    ...values.fields,
    windowEndTime: kubeTime(windowEnd(job)),
    observedGeneration: generation,
    state: values.state,
    message: truncateUtf8(clean(values.message)),
    conditions,
  };
  return bounded(status);
}

/** Control characters take six bytes each in JSON and say nothing to people. */
function clean(text: string): string {
  return text.replace(/\p{Cc}+/gu, ' ');
}

export function usageOf(usage: Usage): NonNullable<Status['usage']> {
  return {
    inputTokens: usage.inputTokens,
    cachedInputTokens: usage.cachedInputTokens,
    outputTokens: usage.outputTokens,
  };
}

/** The last failed lines as status shows them: few and short, whatever the engine wrote. */
export function recentErrorsOf(errors: readonly RecentError[]): NonNullable<Status['recentErrors']> {
  return errors.slice(-MAX_RECENT_ERRORS).map((error) => ({
    line: error.line,
    ...(error.customID === null
      ? {}
      : { customID: truncateUtf8(clean(error.customID), MAX_CUSTOM_ID_BYTES) }),
    code: truncateUtf8(clean(error.code), MAX_ERROR_CODE_BYTES),
    message: truncateUtf8(clean(error.message), MAX_ERROR_MESSAGE_BYTES),
  }));
}

function bounded(status: Status): Status {
  let { recentErrors = [] } = status;
  if (Buffer.byteLength(JSON.stringify(status)) <= MAX_STATUS_BYTES) return status;
  let smaller = status;
  while (recentErrors.length > 0) {
    recentErrors = recentErrors.slice(1);
    smaller = { ...status, recentErrors };
    if (Buffer.byteLength(JSON.stringify(smaller)) <= MAX_STATUS_BYTES) break;
  }
  return smaller;
}

/**
 * - `none`: nothing to write.
 * - `progress`: numbers or wording moved; may wait for its turn.
 * - `transition`: state, a condition, the observed generation or a milestone moved; written at once.
 */
export type StatusChange = 'none' | 'progress' | 'transition';

export function changeOf(before: Status | undefined, after: Status): StatusChange {
  if (jsonEqual(before ?? {}, after)) return 'none';
  return jsonEqual(milestones(before), milestones(after)) ? 'progress' : 'transition';
}

function milestones(status: Status | undefined): object {
  return {
    state: status?.state,
    observedGeneration: status?.observedGeneration,
    windowEndTime: status?.windowEndTime,
    startTime: status?.startTime,
    indexedTime: status?.indexedTime,
    completionTime: status?.completionTime,
    conditions: (status?.conditions ?? []).map(({ type, status, reason }) => [type, status, reason]),
  };
}
