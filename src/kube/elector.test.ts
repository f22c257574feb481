import { describe, expect, test } from '@jest/globals';
import type { KubeClient, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { LeaseElector, type ElectorObservation, type ElectorSettings } from './elector.ts';
import type { Lease } from './lease.ts';
import { ManualTime, manualRuntime, memoryLogger, settle, type LogLine } from './testing/manual-time.ts';

type Calls = Pick<KubeClient, 'get' | 'create' | 'mergePatch'>;

const conflict = (): KubeError => new KubeError(409, 'Conflict', 'the object has been modified');
const unreachable = (): KubeError => new KubeError(0, 'ConnectionRefused', 'connect ECONNREFUSED');

/** Keeps one Lease as an API server does: versions, UIDs and conflicts. */
class LeaseServer {
  lease: Lease | undefined;
  down = false;
  /** Asked before the server acts. */
  refuse: (verb: string) => Error | undefined = () => undefined;
  calls: string[] = [];
  /** Runs after the server has acted and before its answer arrives. */
  beforeAnswer: (verb: string) => Promise<void> | void = () => undefined;
  #version = 0;

  /** From a killed caller nothing arrives any more. */
  client(isKilled: () => boolean = () => false): Calls {
    const answer = async <T>(verb: string, act: () => unknown): Promise<T> => {
      await Promise.resolve();
      if (isKilled()) return new Promise<T>(() => undefined);
      if (this.down) throw unreachable();
      this.calls.push(verb);
      const refusal = this.refuse(verb);
      if (refusal !== undefined) throw refusal;
      const result = structuredClone(act());
      await this.beforeAnswer(verb);
      return result as T;
    };
    return {
      get: <T extends KubeObject>() => answer<T | undefined>('get', () => this.lease),
      create: <T extends KubeObject>(_resource: Resource<T>, object: T) =>
        answer<T>('create', () => {
          if (this.lease !== undefined) throw new KubeError(409, 'AlreadyExists', 'exists');
          this.lease = structuredClone(object);
          this.lease.metadata.uid = `uid-${this.#version}`;
          return this.#stored();
        }),
      mergePatch: <T extends KubeObject>(
        _resource: Resource<T>,
        _namespace: string | undefined,
        _name: string,
        patch: object,
      ) =>
        answer<T>('patch', () => {
          const { metadata, spec } = patch as Lease;
          if (this.lease === undefined) throw new KubeError(404, 'NotFound', 'no lease');
          if (metadata.resourceVersion !== this.lease.metadata.resourceVersion) throw conflict();
          if (metadata.uid !== this.lease.metadata.uid) throw conflict();
          this.lease.spec = { ...this.lease.spec, ...spec };
          if (this.lease.spec.holderIdentity === null) delete this.lease.spec.holderIdentity;
          return this.#stored();
        }),
    };
  }

  /** Someone else writes. */
  write(change: (lease: Lease) => void): void {
    if (this.lease === undefined) throw new Error('there is no lease');
    change(this.lease);
    this.#stored();
  }

  #stored(): Lease {
    if (this.lease === undefined) throw new Error('there is no lease');
    this.#version += 1;
    this.lease.metadata.resourceVersion = String(this.#version);
    return this.lease;
  }
}

function candidate(
  server: LeaseServer,
  time: ManualTime,
  identity: string,
  settings: Partial<ElectorSettings> = {},
) {
  const lines: LogLine[] = [];
  const told: string[] = [];
  const observed: ElectorObservation[] = [];
  let signal: AbortSignal | undefined;
  let killed = false;
  const elector = new LeaseElector({
    client: server.client(() => killed),
    runtime: { ...manualRuntime().runtime, clock: time, timers: time, logger: memoryLogger(lines) },
    namespace: 'tidegate-system',
    name: 'operator',
    identity,
    settings,
    observe: (one) => observed.push(one),
  });
  const start = async (): Promise<void> => {
    elector.start({
      onLeading: (given) => {
        signal = given;
        told.push('leading');
      },
      onLost: (reason) => told.push(`lost: ${reason}`),
    });
    await settle();
  };
  const kill = (): void => {
    killed = true;
  };
  return { elector, start, kill, told, lines, observed, signal: () => signal };
}

function alone(settings: Partial<ElectorSettings> = {}) {
  const server = new LeaseServer();
  const time = new ManualTime();
  return { server, time, ...candidate(server, time, 'a', settings) };
}

async function pair() {
  const server = new LeaseServer();
  const time = new ManualTime();
  const a = candidate(server, time, 'a');
  const b = candidate(server, time, 'b');
  await a.start();
  await b.start();
  expect([a.elector.isLeader, b.elector.isLeader]).toEqual([true, false]);
  return { server, time, a, b };
}

describe('an elector', () => {
  test('creates the lease, leads, and renews it before it is late', async () => {
    const { server, time, elector, told, start, signal } = alone();
    expect([elector.isLeader, elector.healthy()]).toEqual([false, false]);
    await start();
    expect(told).toEqual(['leading']);
    expect([elector.isLeader, elector.healthy(), signal()?.aborted]).toEqual([true, true, false]);
    const { acquireTime, leaseTransitions } = server.lease?.spec ?? {};
    await time.advance(60_000);
    expect(server.lease?.spec).toEqual({
      holderIdentity: 'a',
      leaseDurationSeconds: 15,
      acquireTime,
      leaseTransitions,
      renewTime: '2026-11-30T12:01:00.000000Z',
    });
    expect(elector.fence()).toEqual({ transitions: leaseTransitions, leaderUID: 'a' });
    expect(told).toEqual(['leading']);
  });

  test('lets only one of several lead, and the others are healthy standbys', async () => {
    const { time, a, b } = await pair();
    await time.advance(120_000);
    expect([a.elector.isLeader, b.elector.isLeader]).toEqual([true, false]);
    expect(b.elector.healthy()).toBe(true);
  });

  test('of two that create at once one leads, and the other does not complain', async () => {
    const server = new LeaseServer();
    const time = new ManualTime();
    const [a, b] = [candidate(server, time, 'a'), candidate(server, time, 'b')];
    await Promise.all([a.start(), b.start()]);
    expect([a.elector.isLeader, b.elector.isLeader].filter(Boolean)).toHaveLength(1);
    expect([...a.lines, ...b.lines].filter(({ level }) => level === 'warn')).toEqual([]);
  });

  test('takes over a lease that is not renewed any more, with a higher fencing number', async () => {
    const { time, a, b } = await pair();
    const first = a.elector.fence()?.transitions ?? NaN;
    a.kill();
    await time.advance(14_000);
    expect(b.elector.isLeader).toBe(false);
    await time.advance(6_000);
    expect(b.elector.isLeader).toBe(true);
    expect(b.elector.fence()).toEqual({ transitions: first + 1, leaderUID: 'b' });
  });

  test('hands over at once when it is stopped', async () => {
    const { server, time, a, b } = await pair();
    await a.elector.stop();
    expect(a.signal()?.aborted).toBe(true);
    expect(a.told).toEqual(['leading']);
    expect(server.lease?.spec).not.toHaveProperty('holderIdentity');
    await time.advance(3_000);
    expect(b.elector.isLeader).toBe(true);
    const calls = server.calls.length;
    await time.advance(100);
    expect(server.calls.length - calls).toBeLessThanOrEqual(1);
  });

  test('does not release what another has taken', async () => {
    const { server, a } = await pair();
    server.write((lease) => {
      lease.spec = { ...lease.spec, holderIdentity: 'other' };
    });
    await a.elector.stop();
    expect(server.lease?.spec?.holderIdentity).toBe('other');
  });

  test('refuses settings under which two could lead', () => {
    expect(() => alone({ renewDeadlineMilliseconds: 15_000 })).toThrow('longer than the renew deadline');
    expect(() => alone({ retryMilliseconds: 10_000 })).toThrow('longer than the retry period');
    expect(() => alone({ leaseDurationSeconds: 15.5 })).toThrow('whole leaseDurationSeconds');
  });
});

describe('expiry (fabric8#7160, #7258, client-go#448)', () => {
  const foreign = (changes: object = {}): Lease => ({
    apiVersion: 'coordination.k8s.io/v1',
    kind: 'Lease',
    metadata: { name: 'operator', namespace: 'tidegate-system', uid: 'u', resourceVersion: '0' },
    spec: { holderIdentity: 'x', leaseDurationSeconds: 15, leaseTransitions: 4, ...changes },
  });

  test.each([
    ['an hour behind', '2026-11-30T11:00:00.000000Z'],
    ['an hour ahead', '2026-11-30T13:00:00.000000Z'],
    ['years behind', '1999-01-01T00:00:00.000000Z'],
  ])("is not judged by a holder's clock that is %s", async (_name, renewTime) => {
    const { server, time, elector, start } = alone();
    server.lease = foreign({ renewTime });
    await start();
    await time.advance(14_900);
    expect(elector.isLeader).toBe(false);
    await time.advance(4_000);
    expect(elector.isLeader).toBe(true);
    expect(elector.fence()?.transitions).toBe(5);
  });

  test.each([3_600_000, -3_600_000])('is not judged by our own clock, which jumps by %d ms', async (jump) => {
    const { time, a, b } = await pair();
    await time.advance(5_000);
    time.jumpWallClock(jump);
    await time.advance(60_000);
    expect([a.elector.isLeader, b.elector.isLeader]).toEqual([true, false]);
    expect(a.told).toEqual(['leading']);
  });

  test('is judged by the duration in the lease, not by our own', async () => {
    const { server, time, elector, start } = alone();
    server.lease = foreign({ leaseDurationSeconds: 120 });
    await start();
    await time.advance(119_000);
    expect(elector.isLeader).toBe(false);
    await time.advance(5_000);
    expect(elector.isLeader).toBe(true);
  });

  test('is put off by every renewal, not by other changes of the lease', async () => {
    const { server, time, elector, start } = alone();
    server.lease = foreign();
    await start();
    for (let round = 0; round < 10; round += 1) {
      await time.advance(10_000);
      server.write((lease) => {
        lease.spec = { ...lease.spec, renewTime: `2026-11-30T12:00:0${round}.000000Z` };
      });
    }
    expect(elector.isLeader).toBe(false);
    for (let round = 0; round < 4; round += 1) {
      server.write((lease) => {
        lease.metadata.labels = { round: String(round) };
      });
      await time.advance(5_000);
    }
    expect(elector.isLeader).toBe(true);
  });

  test('is not concluded by a standby that was frozen while the holder renewed', async () => {
    const { server, time, elector, start } = alone();
    server.lease = foreign();
    await start();
    time.freeze(3_600_000);
    server.write((lease) => {
      lease.spec = { ...lease.spec, renewTime: '2026-11-30T13:00:00.000000Z' };
    });
    await time.advance(14_000);
    expect(elector.isLeader).toBe(false);
  });
});

describe('the end of leading', () => {
  test('comes at the renew deadline while the API server is gone, and leading begins again afterwards', async () => {
    const { server, time, elector, told, signal, observed, start } = alone();
    await start();
    await time.advance(1_000);
    const first = elector.fence()?.transitions ?? NaN;
    server.down = true;
    await time.advance(8_900);
    expect(elector.isLeader).toBe(true);
    await time.advance(1_200);
    expect(elector.isLeader).toBe(false);
    expect(signal()?.aborted).toBe(true);
    expect(told).toEqual([
      'leading',
      expect.stringMatching(/^lost: not renewed for \d+ ms, allowed are 10000$/),
    ]);
    expect(observed).toContainEqual({ type: 'callFailed', status: 0, reason: 'ConnectionRefused' });
    await time.advance(60_000);
    expect(elector.healthy()).toBe(false);
    server.down = false;
    await time.advance(3_000);
    expect(elector.fence()?.transitions).toBe(first + 1);
    expect(elector.healthy()).toBe(true);
  });

  test('comes first of all after a freeze, before anything else can be written', async () => {
    const { time, elector, told, signal, start } = alone();
    await start();
    time.freeze(10_000);
    // No timer has run yet: whoever asks for the token first ends the term.
    expect(told).toEqual(['leading']);
    expect(elector.fence()).toBeUndefined();
    expect(signal()?.aborted).toBe(true);
    expect(told).toHaveLength(2);
  });

  test('comes after a freeze in the middle of a renewal, though the renewal succeeds', async () => {
    const { server, time, elector, told, start } = alone();
    await start();
    server.beforeAnswer = (verb) => {
      if (verb === 'patch') {
        server.beforeAnswer = () => undefined;
        time.freeze(20_000);
      }
    };
    await time.advance(3_000);
    expect(told).toHaveLength(2);
    expect(told[1]).toMatch(/^lost: not renewed/);
    // It was ours in the API server all the time, but the new term has a new number.
    await time.advance(3_000);
    expect(told).toEqual(['leading', told[1], 'leading']);
    expect(elector.isLeader).toBe(true);
  });

  test('comes before the beginning when the process was frozen between claiming and hearing of it', async () => {
    const { server, time, elector, told, start } = alone();
    server.beforeAnswer = (verb) => {
      if (verb === 'create') time.freeze(60_000);
    };
    await start();
    expect([told, elector.isLeader]).toEqual([[], false]);
  });

  test.each([
    ['taken by another', 'lost: the lease was taken over by thief'],
    ['deleted', 'lost: the lease was deleted'],
    ['deleted and created anew', 'lost: the lease was deleted'],
  ])('comes with the next renewal when the lease was %s', async (how, reason) => {
    const { server, time, told, elector, start } = alone();
    await start();
    const term = elector.fence()?.transitions ?? NaN;
    if (how === 'taken by another') {
      server.write((lease) => {
        lease.spec = { ...lease.spec, holderIdentity: 'thief', leaseTransitions: term + 7 };
      });
    } else if (how === 'deleted') {
      server.lease = undefined;
    } else {
      server.write((lease) => {
        lease.metadata.uid = 'another';
      });
    }
    await time.advance(2_500);
    expect(told.slice(0, 2)).toEqual(['leading', reason]);
    await time.advance(30_000);
    // Whatever comes next, its number is higher than all that were seen, so that older writes stay shut out.
    expect(elector.fence()?.transitions).toBeGreaterThan(how === 'taken by another' ? term + 7 : term);
  });

  test('does not come from a foreign label or from the lost answer to a renewal', async () => {
    const { server, time, told, elector, start } = alone();
    await start();
    server.write((lease) => {
      lease.metadata.labels = { touched: 'yes' };
    });
    await time.advance(10_000);
    server.beforeAnswer = (verb) => {
      if (verb === 'patch') {
        server.beforeAnswer = () => undefined;
        throw new KubeError(0, 'ConnectionLost', 'socket hang up');
      }
    };
    await time.advance(30_000);
    expect(told).toEqual(['leading']);
    expect(elector.isLeader).toBe(true);
  });

  test('is survived by the loop when a callback throws', async () => {
    const server = new LeaseServer();
    const time = new ManualTime();
    const { elector, lines } = candidate(server, time, 'a');
    elector.start({
      onLeading: () => {
        throw new Error('defect');
      },
      onLost: () => {
        throw new Error('defect');
      },
    });
    await settle();
    server.down = true;
    await time.advance(20_000);
    server.down = false;
    await time.advance(3_000);
    expect(elector.isLeader).toBe(true);
    expect(lines.filter(({ level }) => level === 'error')).toHaveLength(3);
  });
});

describe('health', () => {
  test('is bad while no leader was ever seen (client-node#828, agentconnect#873)', async () => {
    const { server, time, elector, lines, start } = alone();
    server.refuse = (verb) =>
      verb === 'get' ? undefined : new KubeError(400, 'BadRequest', 'parsing time: cannot parse "Z"');
    await start();
    await time.advance(20_000);
    expect([elector.isLeader, elector.healthy()]).toEqual([false, false]);
    const warnings = lines.filter(({ level }) => level === 'warn');
    expect(warnings[0]?.fields).toMatchObject({ status: 400, lease: 'tidegate-system/operator' });
    expect(warnings.length).toBeLessThan(6);
  });

  test('of a standby is bad when nobody renews and it cannot take over', async () => {
    const { server, time, a, b } = await pair();
    server.refuse = (verb) =>
      verb === 'patch' ? new KubeError(403, 'Forbidden', 'may not patch') : undefined;
    server.write((lease) => {
      lease.spec = { ...lease.spec, holderIdentity: 'gone' };
    });
    await time.advance(20_000);
    expect(a.elector.isLeader).toBe(false);
    await time.advance(10_000);
    expect(b.elector.healthy()).toBe(false);
  });
});
