import { describe, expect, test } from '@jest/globals';
import { findCondition, isConditionTrue, kubeTime, setCondition, type ConditionDraft } from './conditions.ts';
import type { Condition } from './contract.ts';

const noon = Date.UTC(2026, 10, 30, 12, 0, 0, 789);
const later = noon + 60_000;
const draft = (changes: Partial<ConditionDraft> = {}): ConditionDraft => ({
  type: 'Ready',
  status: 'True',
  reason: 'ReplicasReady',
  message: '2 of 2 replicas are ready',
  observedGeneration: 3,
  ...changes,
});

describe('setCondition', () => {
  test('adds a condition with the time in whole seconds', () => {
    expect(setCondition(undefined, draft(), noon)).toEqual([
      { ...draft(), lastTransitionTime: '2026-11-30T12:00:00Z' },
    ]);
  });

  const before = setCondition(
    [{ ...draft({ type: 'Other' }), lastTransitionTime: kubeTime(0) }],
    draft(),
    noon,
  );

  test('returns the very same list when nothing changed, so that nothing is written', () => {
    expect(setCondition(before, draft(), later)).toBe(before);
  });

  test.each([
    ['reason', draft({ reason: 'Other' }), false],
    ['message', draft({ message: '1 of 2' }), false],
    ['observedGeneration', draft({ observedGeneration: 4 }), false],
    ['status', draft({ status: 'False' }), true],
    ['status, to Unknown', draft({ status: 'Unknown' }), true],
  ])('on a change of %s', (_name, changed, moves) => {
    const after = setCondition(before, changed, later);
    expect(after).toHaveLength(2);
    expect(after[1]).toEqual({ ...changed, lastTransitionTime: kubeTime(moves ? later : noon) });
    expect(after[0]).toBe(before[0]);
    expect(before[1]).toEqual({ ...draft(), lastTransitionTime: kubeTime(noon) });
  });

  test('cuts a giant message at 1 KiB, once (kubevirt#17572)', () => {
    const giant = draft({ message: 'x'.repeat(1_000_000) });
    const once = setCondition(undefined, giant, noon);
    expect(Buffer.byteLength(once[0]?.message ?? '')).toBe(1024);
    expect(setCondition(once, giant, later)).toBe(once);
    expect(setCondition(once, draft({ message: once[0]?.message ?? '' }), later)).toBe(once);
  });

  test('finds and tests conditions by type', () => {
    const list: readonly Condition[] = setCondition(undefined, draft(), noon);
    expect(findCondition(list, 'Ready')?.reason).toBe('ReplicasReady');
    expect(isConditionTrue(list, 'Ready')).toBe(true);
    expect(isConditionTrue(list, 'Complete')).toBe(false);
    expect(isConditionTrue(undefined, 'Ready')).toBe(false);
  });
});
