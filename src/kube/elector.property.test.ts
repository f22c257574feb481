import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { KubeError, type KubeObject } from './contract.ts';
import { LeaseElector } from './elector.ts';
import type { Lease } from './lease.ts';
import { ManualTime, memoryLogger, settle } from './testing/manual-time.ts';
import type { Timers } from './timers.ts';

/** The API server's side of a Lease, in few words. */
class LeaseServer {
  lease: Lease | undefined;
  down = false;
  #version = 0;

  act<T>(write: (current: Lease | undefined) => Lease | undefined): T | undefined {
    if (this.down) throw new KubeError(0, 'ConnectionRefused', 'down');
    const next = write(this.lease);
    if (next !== this.lease && next !== undefined) {
      this.#version += 1;
      next.metadata.resourceVersion = String(this.#version);
      next.metadata.uid ??= `uid-${this.#version}`;
      this.lease = next;
    }
    return structuredClone(next) as T | undefined;
  }
}

/** A process: while it is frozen neither its timers run nor do answers arrive. */
class Process implements Timers {
  readonly elector: LeaseElector;
  readonly #time: ManualTime;
  readonly #server: LeaseServer;
  #thawed: PromiseWithResolvers<void> | undefined;

  constructor(server: LeaseServer, time: ManualTime, identity: string) {
    this.#server = server;
    this.#time = time;
    this.elector = new LeaseElector({
      client: {
        get: () => this.#call((current) => current),
        create: <T extends KubeObject>(_resource: unknown, object: T) =>
          this.#call<T>((current) => {
            if (current !== undefined) throw new KubeError(409, 'AlreadyExists', 'exists');
            return structuredClone(object);
          }) as Promise<T>,
        mergePatch: <T extends KubeObject>(
          _resource: unknown,
          _space: unknown,
          _name: unknown,
          patch: object,
        ) =>
          this.#call<T>((current) => {
            const { metadata, spec } = patch as Lease;
            if (current === undefined) throw new KubeError(404, 'NotFound', 'gone');
            const { uid, resourceVersion } = current.metadata;
            if (metadata.resourceVersion !== resourceVersion || metadata.uid !== uid) {
              throw new KubeError(409, 'Conflict', 'modified');
            }
            return { ...current, metadata: { ...current.metadata }, spec: { ...current.spec, ...spec } };
          }) as Promise<T>,
      },
      runtime: { clock: time, timers: this, random: () => 0.5, logger: memoryLogger() },
      namespace: 'n',
      name: 'l',
      identity,
    });
  }

  get isFrozen(): boolean {
    return this.#thawed !== undefined;
  }

  after(milliseconds: number, run: () => void): () => void {
    let cancelled = false;
    const cancel = this.#time.after(milliseconds, () => {
      void this.#awake().then(() => {
        if (!cancelled) run();
      });
    });
    return () => {
      cancelled = true;
      cancel();
    };
  }

  freeze(): void {
    this.#thawed ??= Promise.withResolvers<void>();
  }

  thaw(): void {
    const thawed = this.#thawed;
    this.#thawed = undefined;
    thawed?.resolve();
  }

  async #awake(): Promise<void> {
    while (this.#thawed !== undefined) await this.#thawed.promise;
  }

  async #call<T>(write: (current: Lease | undefined) => Lease | undefined): Promise<T | undefined> {
    try {
      const answer = this.#server.act<T>(write);
      await this.#awake();
      return answer;
    } catch (error) {
      await this.#awake();
      throw error;
    }
  }
}

/**
 * The two are told apart because together they are more than any number can cover: a lease that was deleted, and a
 * process that never saw it and whose clock is behind (see firstTerm).
 */
test.each([
  ['cut off or set to another time', { jumps: [-3_600_000, 3_600_000], deletions: false }],
  ['cut off or robbed of its lease', { jumps: [0, 3_600_000], deletions: true }],
])(
  'whatever is frozen, %s: never two tokens at once, never a lower one',
  async (_name, faults) => {
    const [earliest, latest] = faults.jumps;
    const who = fc.nat(2);
    const step = fc.oneof(
      {
        weight: 4,
        arbitrary: fc.record({ do: fc.constant('pass' as const), by: fc.integer({ min: 100, max: 25_000 }) }),
      },
      fc.record({ do: fc.constantFrom('freeze' as const, 'thaw' as const), who }),
      fc.record({ do: fc.constantFrom('down' as const, 'up' as const, 'delete' as const) }),
      fc.record({
        do: fc.constant('jump' as const),
        by: fc.integer({ min: earliest ?? 0, max: latest ?? 0 }),
      }),
    );
    let led = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (steps) => {
        const server = new LeaseServer();
        const time = new ManualTime();
        const processes = ['a', 'b', 'c'].map((identity) => new Process(server, time, identity));
        for (const { elector } of processes) {
          elector.start({ onLeading: () => (led += 1), onLost: () => undefined });
        }
        let highest = { transitions: -1, leaderUID: '' };
        let deletedAt = -Infinity;
        const check = (): void => {
          const tokens = processes
            .filter(({ isFrozen }) => !isFrozen)
            .map(({ elector }) => elector.fence())
            .filter((token) => token !== undefined);
          // Who deletes a lease ends its protection until the old leader's next renewal.
          if (time.monotonic() - deletedAt > 15_000) expect(tokens.length).toBeLessThanOrEqual(1);
          for (const token of tokens.sort((a, b) => a.transitions - b.transitions)) {
            if (token.transitions > highest.transitions) highest = token;
            else if (time.monotonic() - deletedAt > 15_000) expect(token).toEqual(highest);
          }
        };
        for (const move of steps) {
          switch (move.do) {
            case 'pass':
              for (let left = move.by; left > 0; left -= 1_000) {
                await time.advance(Math.min(left, 1_000));
                check();
              }
              break;
            case 'freeze':
              processes[move.who]?.freeze();
              break;
            case 'thaw':
              processes[move.who]?.thaw();
              // Asked before anything that waited has run.
              check();
              break;
            case 'down':
            case 'up':
              server.down = move.do === 'down';
              break;
            case 'delete':
              if (!faults.deletions) break;
              // Terms begin in different seconds.
              await time.advance(1_000);
              server.lease = undefined;
              deletedAt = time.monotonic();
              break;
            case 'jump':
              time.jumpWallClock(move.by);
              break;
          }
          await settle();
          check();
        }
        // With everything well again there is a leader before long.
        server.down = false;
        for (const one of processes) one.thaw();
        await time.advance(40_000);
        check();
        expect(processes.filter(({ elector }) => elector.isLeader)).toHaveLength(1);
        await Promise.all(processes.map(({ elector }) => elector.stop()));
      }),
      { numRuns: 60 },
    );
    expect(led).toBeGreaterThan(60);
  },
  60_000,
);
