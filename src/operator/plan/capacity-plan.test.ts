import { describe, expect, test } from '@jest/globals';
import { capacityPlan } from './capacity-plan.ts';

const replica = (address: string, ready = true) => ({ address, ready });

describe('the capacity plan', () => {
  test('gives each ready replica the cap of its deployment', () => {
    expect(
      capacityPlan([
        { queue: 'b.m', replicas: [replica('http://2'), replica('http://1')], maxInFlightPerReplica: 64 },
        { queue: 'a.m', replicas: [], maxInFlightPerReplica: 8 },
      ]),
    ).toEqual([
      { queue: 'a.m', replicas: [] },
      {
        queue: 'b.m',
        replicas: [
          { address: 'http://1', cap: 64 },
          { address: 'http://2', cap: 64 },
        ],
      },
    ]);
  });

  test('gives an address that two deployments name the smaller cap, in both and whatever their order', () => {
    const a = { queue: 'a.m', replicas: [replica('http://1')], maxInFlightPerReplica: 64 };
    const b = { queue: 'b.m', replicas: [replica('http://1')], maxInFlightPerReplica: 8 };
    const expected = [
      { queue: 'a.m', replicas: [{ address: 'http://1', cap: 8 }] },
      { queue: 'b.m', replicas: [{ address: 'http://1', cap: 8 }] },
    ];
    expect(capacityPlan([a, b])).toEqual(expected);
    expect(capacityPlan([b, a])).toEqual(expected);
  });

  test('keeps a replica that is not ready with no place, so that what runs there may finish', () => {
    expect(
      capacityPlan([{ queue: 'a.m', replicas: [replica('http://1', false)], maxInFlightPerReplica: 8 }]),
    ).toEqual([{ queue: 'a.m', replicas: [{ address: 'http://1', cap: 0 }] }]);
  });
});
