import { describe, expect, test } from '@jest/globals';
import { MODEL_DEPLOYMENT_REASONS } from '../../api/model-deployment.ts';
import { findCondition } from '../../kube/conditions.ts';
import { deploymentOf, NOW } from '../testing/builders.ts';
import type { Availability } from './availability.ts';
import { decide, type DeploymentSnapshot } from './decide.ts';

const settings = { deploymentNumbersMilliseconds: 10_000 };
const at = (seconds = 0) => ({ now: NOW + seconds * 1_000, monotonic: 1_000_000 + seconds * 1_000 });
const open: Availability = { replicas: 2, readyReplicas: 2, limit: 128, inFlight: 0, blocked: undefined };
const blocked = (reason: string): Availability => ({
  ...open,
  readyReplicas: 0,
  limit: 0,
  blocked: { reason, message: 'why' },
});
const snapshot = (change: Partial<DeploymentSnapshot> = {}): DeploymentSnapshot => ({
  deployment: deploymentOf(),
  availability: open,
  problem: undefined,
  numbersWrittenAt: undefined,
  ...change,
});
const after = (before: DeploymentSnapshot, seconds = 0): DeploymentSnapshot => {
  const { status } = decide(before, at(seconds), settings);
  return status === undefined
    ? before
    : { ...before, deployment: { ...before.deployment, status }, numbersWrittenAt: at(seconds).monotonic };
};
const conditions = (of: DeploymentSnapshot) =>
  Object.fromEntries(
    (decide(of, at(), settings).status?.conditions ?? []).map(({ type, status, reason }) => [
      type,
      `${status} ${reason}`,
    ]),
  );

describe('the status of a ModelDeployment', () => {
  test.each<[string, Availability, object]>([
    [
      'that takes work',
      open,
      { Ready: 'True Ready', Reconciling: 'False Settled', Stalled: 'False Settled' },
    ],
    [
      'without ready replicas',
      blocked('NoReadyReplicas'),
      { Ready: 'False NoReadyReplicas', Reconciling: 'True Progressing', Stalled: 'False Settled' },
    ],
    [
      'without its Service',
      blocked('ServiceNotFound'),
      { Ready: 'False ServiceNotFound', Reconciling: 'False Settled', Stalled: 'True ServiceNotFound' },
    ],
    [
      'whose key is refused',
      blocked('Unauthorized'),
      { Ready: 'False Unauthorized', Reconciling: 'False Settled', Stalled: 'True Unauthorized' },
    ],
    [
      'held for a reason that Kubernetes would refuse',
      blocked('what is this?'),
      { Ready: 'False NoReadyReplicas', Reconciling: 'True Progressing', Stalled: 'False Settled' },
    ],
  ])('%s', (_name, availability, expected) => {
    expect(conditions(snapshot({ availability }))).toEqual(expected);
    for (const { reason } of decide(snapshot({ availability }), at(), settings).status?.conditions ?? []) {
      expect(Object.keys(MODEL_DEPLOYMENT_REASONS)).toContain(reason);
    }
  });

  test('is written once, with one event, and then left alone', () => {
    const first = decide(snapshot(), at(), settings);
    expect(first.events).toEqual([{ type: 'Normal', reason: 'Ready', message: '2 of 2 replicas take work' }]);
    const second = decide(after(snapshot()), at(60), settings);
    expect(second).toEqual({ events: [] });
  });

  test('names a url that was refused beside replicas that work', () => {
    const problem = { reason: 'AddressRefused' as const, message: 'http://169.254.169.254: link-local' };
    const { status } = decide(snapshot({ problem }), at(), settings);
    expect(findCondition(status?.conditions, 'Ready')?.message).toContain('169.254.169.254');
  });

  test.each<[string, number, number, number, boolean]>([
    ['not for a few requests more', 100, 105, 60, false],
    ['for many more', 100, 107, 60, true],
    ['when work begins', 0, 1, 60, true],
    ['when it ends', 1, 0, 60, true],
    ['not before ten seconds are over', 100, 20, 5, false],
  ])('moves its numbers %s', (_name, shown, inFlight, seconds, written) => {
    const settled = after(snapshot({ availability: { ...open, inFlight: shown } }));
    const plan = decide({ ...settled, availability: { ...open, inFlight } }, at(seconds), settings);
    expect(plan.status !== undefined).toBe(written);
    if (seconds < 10) expect(plan.requeueAfterMilliseconds).toBe((10 - seconds) * 1_000);
  });

  test('shows a lost replica at once, whatever the numbers', () => {
    const settled = after(snapshot());
    const plan = decide(
      { ...settled, availability: { ...open, readyReplicas: 1, limit: 64 } },
      at(1),
      settings,
    );
    expect(plan.status).toMatchObject({ readyReplicas: 1, headroom: { inFlight: 0, limit: 64 } });
  });

  test('is not touched while it is being deleted', () => {
    const deployment = deploymentOf();
    const metadata = { ...deployment.metadata, deletionTimestamp: '2026-11-30T12:00:00Z' };
    expect(decide(snapshot({ deployment: { ...deployment, metadata } }), at(), settings)).toEqual({
      events: [],
    });
  });
});
