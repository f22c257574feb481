import type { Elector } from '../kube/contract.ts';
import type { Fence } from '../queue/contract.ts';

/** Thrown by whatever wants to write while we do not lead; the next leader does it instead. */
export class NotLeading extends Error {
  constructor() {
    super('this process does not lead: nothing is written');
    this.name = 'NotLeading';
  }
}

/** The token for one write, looked up anew each time: after a freeze, leading may have ended a line ago. */
export function fenceOf(elector: Pick<Elector, 'fence'>): Fence {
  const fence = elector.fence();
  if (fence === undefined) throw new NotLeading();
  return fence;
}
