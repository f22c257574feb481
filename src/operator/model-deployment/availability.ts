/** What a deployment's replicas can take right now, and if nothing, why. Pure. */
import type { Capacity, Hold } from '../../queue/contract.ts';
import type { ResolvedTarget } from './replicas.ts';

export interface Availability {
  replicas: number;
  /** Ready and not on hold. */
  readyReplicas: number;
  /** Places on those, and requests in flight on all. */
  limit: number;
  inFlight: number;
  /** Why no replica can take work, when none can. `reason` is a condition reason. */
  blocked: { reason: string; message: string } | undefined;
}

/** Live numbers from Redis; unknown ones are left out, never taken for zero or for idle. */
export interface LiveNumbers {
  holds: readonly Hold[];
  capacity: ReadonlyMap<string, Capacity>;
}

export function availabilityOf(
  target: ResolvedTarget,
  live: LiveNumbers,
  capOf: (address: string) => number,
): Availability {
  const whole = live.holds.find((hold) => hold.scope === '*');
  const heldBy = (address: string): Hold | undefined =>
    whole ?? live.holds.find((hold) => hold.scope === address);
  const ready = target.replicas.filter((replica) => replica.ready);
  const open = ready.filter((replica) => heldBy(replica.address) === undefined);
  return {
    replicas: target.replicas.length,
    readyReplicas: open.length,
    limit: open.reduce((sum, replica) => sum + capOf(replica.address), 0),
    inFlight: target.replicas.reduce(
      (sum, replica) => sum + (live.capacity.get(replica.address)?.inFlight ?? 0),
      0,
    ),
    blocked: open.length > 0 ? undefined : whyBlocked(target, ready.length, whole, live.holds),
  };
}

function whyBlocked(
  target: ResolvedTarget,
  ready: number,
  whole: Hold | undefined,
  holds: readonly Hold[],
): { reason: string; message: string } {
  if (target.problem !== undefined) return target.problem;
  if (ready === 0) {
    const known = target.replicas.length;
    return {
      reason: 'NoReadyReplicas',
      message: known === 0 ? 'the target has no replica' : `none of ${known} replicas is ready`,
    };
  }
  if (whole !== undefined) return { reason: whole.reason, message: whole.message };
  const first = holds.find((hold) => target.replicas.some((replica) => replica.address === hold.scope));
  const which = ready === 1 ? 'the only ready replica is' : `all ${ready} ready replicas are`;
  return {
    reason: first?.reason ?? 'NoReadyReplicas',
    message: `${which} on hold: ${first?.message ?? 'unknown reason'}`,
  };
}
