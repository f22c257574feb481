import { describe, expect, test } from '@jest/globals';
import { nextState, type ReflectorSignal, type ReflectorState } from './reflector-state.ts';

const states: ReflectorState[] = ['Idle', 'Listing', 'Watching', 'Backoff', 'Stopped'];
const signals: ReflectorSignal[] = [
  ...(['start', 'listed', 'ended', 'relist', 'failed', 'resumeList', 'resumeWatch', 'stop'] as const),
];

/** Written out a second time on purpose: a change of the table has to be meant. */
const expected: Record<string, ReflectorState> = {
  'Idle start': 'Listing',
  'Idle stop': 'Stopped',
  'Listing listed': 'Watching',
  'Listing failed': 'Backoff',
  'Listing stop': 'Stopped',
  'Watching ended': 'Watching',
  'Watching relist': 'Listing',
  'Watching failed': 'Backoff',
  'Watching stop': 'Stopped',
  'Backoff resumeList': 'Listing',
  'Backoff resumeWatch': 'Watching',
  'Backoff stop': 'Stopped',
  'Stopped stop': 'Stopped',
};

describe.each(states)('a reflector that is %s', (state) => {
  test.each(signals)('on "%s"', (signal) => {
    const next = expected[`${state} ${signal}`];
    if (next === undefined) expect(() => nextState(state, signal)).toThrow('has no meaning in state');
    else expect(nextState(state, signal)).toBe(next);
  });
});
