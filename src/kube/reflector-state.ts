/**
 * The life of a reflector as one table. There is one loop and it does what the state says, so that never more than
 * one list or watch of a kind is under way.
 */
export type ReflectorState =
  /** Not started. */
  | 'Idle'
  | 'Listing'
  | 'Watching'
  /** Waiting before the next attempt. */
  | 'Backoff'
  | 'Stopped';

export type ReflectorSignal =
  | 'start'
  /** A full list was taken in. */
  | 'listed'
  /** The stream came to an end that is no failure: its time was up, or it was silent for too long. */
  | 'ended'
  /** The stream cannot go on from where we are (410), or the safety relist is due. */
  | 'relist'
  | 'failed'
  | 'resumeList'
  | 'resumeWatch'
  | 'stop';

export const transitions: Readonly<
  Record<ReflectorState, Readonly<Partial<Record<ReflectorSignal, ReflectorState>>>>
> = {
  Idle: { start: 'Listing', stop: 'Stopped' },
  Listing: { listed: 'Watching', failed: 'Backoff', stop: 'Stopped' },
  Watching: { ended: 'Watching', relist: 'Listing', failed: 'Backoff', stop: 'Stopped' },
  Backoff: { resumeList: 'Listing', resumeWatch: 'Watching', stop: 'Stopped' },
  Stopped: { stop: 'Stopped' },
};

/** Throws where the table has no entry: that is a defect of the caller. */
export function nextState(state: ReflectorState, signal: ReflectorSignal): ReflectorState {
  const next = transitions[state][signal];
  if (next === undefined) throw new Error(`reflector: "${signal}" has no meaning in state ${state}`);
  return next;
}
