import type { Condition } from './contract.ts';
import { truncateUtf8 } from './text.ts';

/** A condition as a reconciler decides it; when it last changed is worked out by `setCondition`. */
export type ConditionDraft = Omit<Condition, 'lastTransitionTime'>;

/** Epoch milliseconds as Kubernetes writes a metav1.Time: UTC, whole seconds. */
export function kubeTime(epochMilliseconds: number): string {
  return new Date(epochMilliseconds).toISOString().replace(/\.\d{3}Z$/, 'Z');
}

export function findCondition(
  conditions: readonly Condition[] | undefined,
  type: string,
): Condition | undefined {
  return conditions?.find((condition) => condition.type === type);
}

export function isConditionTrue(conditions: readonly Condition[] | undefined, type: string): boolean {
  return findCondition(conditions, type)?.status === 'True';
}

/**
 * The list with `draft` in it, in the place of an earlier condition of its type or at the end.
 * `lastTransitionTime` moves to `now` (epoch milliseconds) only when the status changes. A list that
 * already says the same is returned as it is, so that nothing is written for it. Messages are cut at 1 KiB.
 */
export function setCondition(
  conditions: readonly Condition[] | undefined,
  draft: ConditionDraft,
  now: number,
): readonly Condition[] {
  const list = conditions ?? [];
  const index = list.findIndex((condition) => condition.type === draft.type);
  const old = list[index];
  const next: Condition = {
    ...draft,
    message: truncateUtf8(draft.message),
    lastTransitionTime: old?.status === draft.status ? old.lastTransitionTime : kubeTime(now),
  };
  if (old === undefined) return [...list, next];
  if (sameCondition(old, next)) return list;
  return list.with(index, next);
}

function sameCondition(a: Condition, b: Condition): boolean {
  return (
    a.status === b.status &&
    a.reason === b.reason &&
    a.message === b.message &&
    a.observedGeneration === b.observedGeneration
  );
}
