/** Keeps a worker's shares in global pools alive: renewals, negotiation when a want is unmet, expiry on time. */
import { randomUUID } from 'node:crypto';
import type { Clock, Logger } from '../observability/contract.ts';
import { messageOf, type RedisLink } from './connection.ts';
import type { Place, Places, PoolId } from './contract.ts';
import type { Keys } from './keys.ts';
import { negotiate } from './place-scripts.ts';
import type { QueueSettings } from './settings.ts';
import { type PoolAnswer, type PoolRequest, ShareLedger } from './share-ledger.ts';

export interface PlacesOptions {
  link: RedisLink;
  keys: Keys;
  workerId: string;
  clock: Clock;
  logger: Logger;
  settings: QueueSettings;
}

export class NegotiatedPlaces implements Places {
  readonly #options: PlacesOptions;
  readonly #ledger: ShareLedger;
  /** A restarted worker under the same name must not be taken for the old one, whose requests may still run. */
  readonly #holder: string;
  readonly #listeners = new Set<() => void>();
  readonly #timers: NodeJS.Timeout[];
  #soon: NodeJS.Timeout | undefined;
  #soonAt = Infinity;
  #running: Promise<void> | undefined;
  #again = false;
  #sequence = 0;
  #announcing = false;
  #closed = false;

  constructor(options: PlacesOptions) {
    const { settings, clock } = options;
    this.#options = options;
    this.#holder = `${options.workerId}/${randomUUID()}`;
    this.#ledger = new ShareLedger({
      clock,
      leaseMilliseconds: settings.leaseMilliseconds,
      marginMilliseconds: settings.leaseMarginMilliseconds,
      onFree: () => this.#announce(),
      onUnmet: () => this.#negotiateWithin(settings.negotiationDelayMilliseconds),
      onSurplus: () => this.#negotiateWithin(settings.renewMilliseconds / 10),
    });
    // A quarter of the margin: expiry is noticed well before Redis gives the place away.
    const check = Math.max(5, settings.leaseMarginMilliseconds / 4);
    this.#timers = [
      setInterval(() => this.#ledger.expire(clock.monotonic()), check),
      setInterval(() => void this.#negotiate(), settings.renewMilliseconds),
    ];
    for (const timer of this.#timers) timer.unref();
  }

  take(pools: readonly PoolId[]): Place | undefined {
    return this.#closed ? undefined : this.#ledger.take(pools);
  }

  free(pool: PoolId): number {
    return this.#ledger.free(pool);
  }

  setWant(pool: PoolId, want: number): void {
    if (!this.#closed) this.#ledger.setWant(pool, want);
  }

  onFree(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The plan or the cap of this job changed: asks at once instead of at the next renewal. */
  reconsider(pool?: PoolId): void {
    if (pool === undefined ? this.#ledger.hungry() : this.#ledger.has(pool)) {
      this.#negotiateWithin(this.#options.settings.negotiationDelayMilliseconds);
    }
  }

  inFlight(): number {
    return this.#ledger.inFlight();
  }

  /** Gives back every place not in use, so that others need not wait for the lease to run out. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#soon);
    await this.#running;
    this.#ledger.loseAll();
    this.#ledger.retire();
    await this.#once();
  }

  #announce(): void {
    if (this.#announcing) return;
    this.#announcing = true;
    // Many places come free in one turn of the event loop; listeners look once.
    queueMicrotask(() => {
      this.#announcing = false;
      for (const listener of this.#listeners) {
        try {
          listener();
        } catch (error) {
          this.#options.logger.error('listener of free places failed', { error: messageOf(error) });
        }
      }
    });
  }

  #negotiateWithin(milliseconds: number): void {
    if (this.#closed) return;
    const at = this.#options.clock.monotonic() + milliseconds;
    if (this.#soon !== undefined && this.#soonAt <= at) return;
    clearTimeout(this.#soon);
    this.#soonAt = at;
    this.#soon = setTimeout(() => {
      this.#soon = undefined;
      this.#soonAt = Infinity;
      void this.#negotiate();
    }, milliseconds);
    this.#soon.unref();
  }

  async #negotiate(): Promise<void> {
    if (this.#running !== undefined) {
      this.#again = true;
      return;
    }
    if (this.#closed) return;
    this.#running = this.#once();
    await this.#running;
    this.#running = undefined;
    if (this.#again) {
      this.#again = false;
      this.#negotiateWithin(this.#options.settings.negotiationDelayMilliseconds);
    }
  }

  /** Never rejects: without an answer the leases run out by themselves. */
  async #once(): Promise<void> {
    const { link, clock, logger } = this.#options;
    if (link.runId === undefined) return;
    let requests: PoolRequest[] = [];
    let sentAt = 0;
    try {
      const reply = await link.runOnServer(negotiate, (runId) => {
        requests = this.#ledger.request();
        sentAt = clock.monotonic();
        return this.#call(requests, runId);
      });
      this.#ledger.settle(requests, answersOf(reply), sentAt);
    } catch (error) {
      logger.debug('places not renewed', { error: messageOf(error) });
    }
  }

  #call(requests: readonly PoolRequest[], runId: string): { keys: string[]; args: (string | number)[] } {
    const { keys, settings } = this.#options;
    this.#sequence += 1;
    const names = [keys.plan, keys.caps];
    const args: (string | number)[] = [
      this.#holder,
      settings.leaseMilliseconds,
      runId,
      this.#sequence,
      settings.rotationMilliseconds,
    ];
    for (const { pool, want, keep, inUse } of requests) {
      if ('address' in pool) {
        names.push(keys.addressPool(pool.address), keys.caps);
        args.push(pool.address, want, keep, inUse);
      } else {
        names.push(keys.jobPool(pool.job), keys.job(pool.job));
        args.push('', want, keep, inUse);
      }
    }
    return { keys: names, args };
  }
}

/** Granted, target, cap for each pool in turn. */
export function answersOf(reply: unknown): PoolAnswer[] {
  const numbers = reply as number[];
  const answers: PoolAnswer[] = [];
  for (let at = 0; at + 2 < numbers.length; at += 3) {
    answers.push({
      granted: Number(numbers[at]),
      target: Number(numbers[at + 1]),
      cap: Number(numbers[at + 2]),
    });
  }
  return answers;
}
