/**
 * coordination.k8s.io/v1 Lease, with its own reading and writing of times: the API server refuses a MicroTime that
 * has not six digits of fraction, and client libraries send three.
 */
import type { KubeObject, Resource } from './contract.ts';

export interface LeaseSpec {
  holderIdentity?: string | null;
  leaseDurationSeconds?: number;
  /** MicroTime. */
  acquireTime?: string;
  /** MicroTime. */
  renewTime?: string;
  leaseTransitions?: number;
}

export interface Lease extends KubeObject {
  spec?: LeaseSpec;
}

export const leases: Resource<Lease> = {
  group: 'coordination.k8s.io',
  version: 'v1',
  plural: 'leases',
  kind: 'Lease',
  namespaced: true,
};

/** Epoch milliseconds, fractions included, as a metav1.MicroTime: UTC, always six digits of fraction. */
export function microTime(epochMilliseconds: number): string {
  const whole = Math.floor(epochMilliseconds);
  const micros = Math.floor((epochMilliseconds - whole) * 1000);
  return new Date(whole).toISOString().replace('Z', `${String(micros).padStart(3, '0')}Z`);
}

const termEpochMilliseconds = Date.UTC(2020, 0, 1);

/**
 * The first leaseTransitions of a lease that has to be created. Not 0: the lease may have been deleted, and what was
 * fenced with its numbers must not be shut out until a new count has caught up. Seconds since 2020 outrun every real
 * count of transitions, and `seen`, the highest one we know of, covers clocks that disagree. What is left is a process
 * that never saw the deleted lease and whose clock is behind that of the leader who created it: its number is too low
 * until its clock has caught up, so that it is refused rather than obeyed. Fits an int32 until 2088.
 */
export function firstTerm(epochMilliseconds: number, seen: number): number {
  return Math.max(Math.floor((epochMilliseconds - termEpochMilliseconds) / 1000), seen + 1, 1);
}
