import { describe, expect, test } from '@jest/globals';
import { availabilityOf } from './availability.ts';
import type { ResolvedTarget } from './replicas.ts';

const target = (...replicas: [string, boolean][]): ResolvedTarget => ({
  replicas: replicas.map(([address, ready]) => ({ address, ready })),
  problem: undefined,
});
const hold = (scope: string, reason = 'ConnectionRefused') => ({
  scope,
  reason,
  message: `${scope} is held`,
  since: 0,
});
const cap = () => 64;
const of = (resolved: ResolvedTarget, ...holds: ReturnType<typeof hold>[]) =>
  availabilityOf(resolved, { holds, capacity: new Map() }, cap);

describe('availability', () => {
  test('counts replicas that are ready and not on hold', () => {
    expect(of(target(['a', true], ['b', true], ['c', false]), hold('b'))).toMatchObject({
      replicas: 3,
      readyReplicas: 1,
      limit: 64,
      blocked: undefined,
    });
  });

  test.each<[string, ReturnType<typeof of>, { reason: string; message: string }]>([
    ['no replica at all', of(target()), { reason: 'NoReadyReplicas', message: 'the target has no replica' }],
    [
      'no ready replica',
      of(target(['a', false], ['b', false])),
      { reason: 'NoReadyReplicas', message: 'none of 2 replicas is ready' },
    ],
    [
      'the whole deployment on hold',
      of(target(['a', true], ['b', true]), hold('*', 'Unauthorized')),
      { reason: 'Unauthorized', message: '* is held' },
    ],
    [
      'every ready replica on hold',
      of(target(['a', true], ['b', true], ['c', false]), hold('a'), hold('b')),
      { reason: 'ConnectionRefused', message: 'all 2 ready replicas are on hold: a is held' },
    ],
    [
      'a target that cannot be resolved',
      of({ replicas: [], problem: { reason: 'ServiceNotFound', message: 'no such Service' } }),
      { reason: 'ServiceNotFound', message: 'no such Service' },
    ],
  ])('is none with %s, and says why', (_name, availability, blocked) => {
    expect(availability.readyReplicas).toBe(0);
    expect(availability.blocked).toEqual(blocked);
  });

  test('adds up what is in flight, also on replicas that get nothing new', () => {
    const capacity = new Map(
      ['a', 'b'].map((address) => [address, { address, cap: 64, granted: 9, inFlight: 7 }] as const),
    );
    expect(
      availabilityOf(target(['a', true], ['b', false], ['c', true]), { holds: [], capacity }, cap).inFlight,
    ).toBe(14);
  });
});
