/** Processes that a fail point has stopped (SIGSTOP to itself). */
import { readFileSync } from 'node:fs';
import type { PartDescription } from '../../hack/stack/description.ts';
import { until } from './until.ts';

/** Stopped by a signal, as the kernel says; false for a process that is gone. */
export function isFrozen(pid: number): boolean {
  try {
    return /^State:\s+T/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

/** Waits until at least one of them has reached its fail point. */
export async function untilFrozen(
  parts: readonly PartDescription[],
  moment: string,
  explain: () => Promise<string>,
): Promise<PartDescription[]> {
  return until(
    `one of ${parts.map(({ name }) => name).join(', ')} reaches ${moment}`,
    async () => parts.filter(({ pid }) => isFrozen(pid)),
    (frozen) => frozen.length > 0,
    { withinSeconds: 60, explain },
  );
}
