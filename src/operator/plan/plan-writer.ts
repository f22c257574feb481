/** Keeps the capacity plan in Redis: on change at once, and again long before it would expire. */
import { jsonEqual } from '../../kube/merge-patch.ts';
import type { Clock } from '../../observability/contract.ts';
import type { Capacity, DeploymentPlan, Fence, OperatorQueue } from '../../queue/contract.ts';

export interface PlanWriterOptions {
  queue: Pick<OperatorQueue, 'putPlan'>;
  /** Throws NotLeading. */
  fence: () => Fence;
  clock: Pick<Clock, 'monotonic'>;
  validMilliseconds: number;
  renewMilliseconds: number;
}

export interface PlanWriter {
  /** Writes the plan if it differs from what was written last, or if that gets old. One write at a time. */
  ensure(plan: DeploymentPlan[]): Promise<void>;
  /** Redis may have lost the plan: the next `ensure` writes it whatever it says. */
  lost(): void;
}

export function createPlanWriter(options: PlanWriterOptions): PlanWriter {
  let written: { plan: DeploymentPlan[]; at: number } | undefined;
  let writing: Promise<void> = Promise.resolve();

  async function write(plan: DeploymentPlan[]): Promise<void> {
    const now = options.clock.monotonic();
    const fresh = written !== undefined && now - written.at < options.renewMilliseconds;
    if (fresh && jsonEqual(written?.plan, plan)) return;
    await options.queue.putPlan(plan, options.validMilliseconds, options.fence());
    written = { plan, at: now };
  }

  return {
    ensure: (plan) => {
      const next = writing.catch(() => undefined).then(() => write(plan));
      writing = next;
      return next;
    },
    lost: () => {
      written = undefined;
    },
  };
}

/** Whether Redis has other caps than the plan says: it came back empty, or with an old state. */
export function differs(
  plan: readonly DeploymentPlan[],
  capacity: (address: string) => Capacity | undefined,
): boolean {
  return plan.some(({ replicas }) =>
    replicas.some(({ address, cap }) => {
      const known = capacity(address);
      return known !== undefined && known.cap !== cap;
    }),
  );
}
