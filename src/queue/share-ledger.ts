/**
 * One worker's own account of its share in global pools. No I/O and no timers: places.ts carries its requests to
 * Redis and tells it the time. What it promises, whatever happens to messages and to the process:
 *
 * - never more places in use than Redis granted and has not given away;
 * - a place that outlived its lease is aborted before anything new is taken.
 */
import type { Clock } from '../observability/contract.ts';
import type { Place, PoolId } from './contract.ts';
import { UNLIMITED } from './place-scripts.ts';

/** Why a Place's signal aborted. */
export class PlaceLost extends Error {
  constructor(pool: string) {
    super(`the place at ${pool} is no longer ours: it was not renewed in time`);
    this.name = 'PlaceLost';
  }
}

export interface PoolRequest {
  pool: PoolId;
  want: number;
  /** What we keep at most; the rest was given up before this was said. */
  keep: number;
  inUse: number;
}

export interface PoolAnswer {
  granted: number;
  /** The fair share: where it is below `granted`, others wait for the difference. */
  target: number;
  cap: number;
}

interface Pool {
  readonly id: PoolId;
  readonly name: string;
  readonly held: Set<HeldPlace>;
  want: number;
  /** More than `want`, where a take failed although nobody announced a want. */
  unmet: number;
  /** What the last request asked for. */
  asked: number;
  share: number;
  target: number;
  /** A job without maxInFlight: counted, but not limited. */
  unlimited: boolean;
  /** Monotonic milliseconds. */
  validUntil: number;
}

class HeldPlace implements Place {
  readonly pools: readonly Pool[];
  readonly #ledger: ShareLedger;
  #abort: AbortController | undefined;
  ended = false;

  constructor(ledger: ShareLedger, pools: readonly Pool[]) {
    this.#ledger = ledger;
    this.pools = pools;
  }

  /** Made on demand: most places are released without anyone having listened. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController();
    return this.#abort.signal;
  }

  release(): void {
    this.#ledger.release(this);
  }

  lose(pool: string): void {
    this.#abort ??= new AbortController();
    this.#abort.abort(new PlaceLost(pool));
  }
}

export interface LedgerOptions {
  clock: Clock;
  leaseMilliseconds: number;
  marginMilliseconds: number;
  /** Places may have become free. Called often: must be cheap. */
  onFree: () => void;
  /** Someone wants more than was last asked for. */
  onUnmet: () => void;
  /** We hold more than our fair share and could give some back. */
  onSurplus: () => void;
}

export class ShareLedger {
  readonly #options: LedgerOptions;
  readonly #addresses = new Map<string, Pool>();
  readonly #jobs = new Map<string, Pool>();
  /** No pool with a limit runs out before this. */
  #soonestExpiry = Infinity;

  constructor(options: LedgerOptions) {
    this.#options = options;
  }

  take(ids: readonly PoolId[]): Place | undefined {
    const now = this.#options.clock.monotonic();
    if (now >= this.#soonestExpiry) this.expire(now);
    const pools: Pool[] = [];
    for (const id of ids) {
      const pool = this.#pool(id);
      if (freeIn(pool) <= 0) {
        this.#missing(pool);
        return undefined;
      }
      pools.push(pool);
    }
    const place = new HeldPlace(this, pools);
    for (const pool of pools) pool.held.add(place);
    return place;
  }

  release(place: HeldPlace): void {
    if (place.ended) return;
    place.ended = true;
    let surplus = false;
    for (const pool of place.pools) {
      pool.held.delete(place);
      surplus ||= !pool.unlimited && pool.share > pool.target && pool.held.size < pool.share;
    }
    this.#options.onFree();
    if (surplus) this.#options.onSurplus();
  }

  free(id: PoolId): number {
    const now = this.#options.clock.monotonic();
    if (now >= this.#soonestExpiry) this.expire(now);
    const pool = this.#known(id);
    return pool === undefined ? 0 : Math.max(0, freeIn(pool));
  }

  setWant(id: PoolId, want: number): void {
    const pool = this.#pool(id);
    pool.want = Math.max(0, Math.floor(want));
    if (pool.want > pool.asked) this.#options.onUnmet();
  }

  /** Wants nothing more; places in use stay until they are released or run out. */
  retire(): void {
    for (const pool of this.#all()) {
      pool.want = 0;
      pool.unmet = 0;
    }
  }

  /** True when some pool wants more than it has. */
  hungry(): boolean {
    for (const pool of this.#all()) if (!pool.unlimited && pool.want > pool.share) return true;
    return false;
  }

  has(id: PoolId): boolean {
    return this.#known(id) !== undefined;
  }

  /** Gives up what is not needed and returns what to tell Redis. Every request must be followed by `settle` or be lost. */
  request(): PoolRequest[] {
    const now = this.#options.clock.monotonic();
    this.expire(now);
    const requests: PoolRequest[] = [];
    for (const pool of this.#all()) {
      const inUse = pool.held.size;
      const want = Math.max(pool.want, pool.unmet, inUse);
      const keep = pool.unlimited ? inUse : Math.max(inUse, Math.min(pool.share, pool.target, want));
      pool.unmet = 0;
      pool.asked = want;
      // Said is said: this answer may never come, and Redis may give the rest away at once.
      if (!pool.unlimited) pool.share = Math.min(pool.share, keep);
      requests.push({ pool: pool.id, want, keep, inUse });
    }
    return requests;
  }

  /** `sentAt`: monotonic time before the request left; the lease counts from no earlier than this. */
  settle(requests: readonly PoolRequest[], answers: readonly PoolAnswer[], sentAt: number): void {
    const now = this.#options.clock.monotonic();
    const validUntil = sentAt + this.#options.leaseMilliseconds - this.#options.marginMilliseconds;
    let freed = false;
    requests.forEach((request, at) => {
      const answer = answers[at];
      const pool = this.#known(request.pool);
      if (answer === undefined || pool === undefined) return;
      const before = freeIn(pool);
      pool.unlimited = answer.cap === UNLIMITED;
      pool.share = answer.granted;
      pool.target = answer.target;
      pool.validUntil = pool.unlimited ? Infinity : validUntil;
      if (now < pool.validUntil) this.#dropExcess(pool);
      freed ||= freeIn(pool) > before;
      if (pool.want === 0 && pool.unmet === 0 && pool.held.size === 0 && pool.share === 0) this.#forget(pool);
    });
    this.#soonestExpiry = this.#computeSoonestExpiry();
    // The answer may have waited in the socket while this process was stopped.
    this.expire(now);
    if (freed) this.#options.onFree();
  }

  /** Aborts every place whose lease has run out. */
  expire(now: number): void {
    if (now < this.#soonestExpiry) return;
    for (const pool of this.#all()) {
      if (now < pool.validUntil) continue;
      pool.share = 0;
      pool.target = 0;
      pool.asked = 0;
      pool.validUntil = Infinity;
      for (const place of [...pool.held]) this.#lose(place, pool);
    }
    this.#soonestExpiry = this.#computeSoonestExpiry();
  }

  /** All places end now. */
  loseAll(): void {
    for (const pool of this.#all()) {
      pool.share = 0;
      for (const place of [...pool.held]) this.#lose(place, pool);
    }
  }

  inFlight(): number {
    let sum = 0;
    for (const pool of this.#addresses.values()) sum += pool.held.size;
    return sum;
  }

  /**
   * Redis granted less than is in use: it forgot us. For an address the newest places end; a job's pool may be
   * overdrawn where its cap came while lines were running, and those may finish.
   */
  #dropExcess(pool: Pool): void {
    if (pool.unlimited || 'job' in pool.id || pool.held.size <= pool.share) return;
    for (const place of [...pool.held].slice(pool.share)) this.#lose(place, pool);
  }

  #lose(place: HeldPlace, because: Pool): void {
    if (place.ended) return;
    place.ended = true;
    for (const pool of place.pools) pool.held.delete(place);
    place.lose(because.name);
  }

  #missing(pool: Pool): void {
    pool.unmet = Math.max(pool.unmet, pool.held.size + 1);
    if (pool.unmet > pool.asked) this.#options.onUnmet();
  }

  #computeSoonestExpiry(): number {
    let soonest = Infinity;
    for (const pool of this.#all()) soonest = Math.min(soonest, pool.validUntil);
    return soonest;
  }

  #known(id: PoolId): Pool | undefined {
    return 'address' in id ? this.#addresses.get(id.address) : this.#jobs.get(id.job);
  }

  #pool(id: PoolId): Pool {
    const known = this.#known(id);
    if (known !== undefined) return known;
    const pool: Pool = {
      id,
      name: 'address' in id ? id.address : `job ${id.job}`,
      held: new Set(),
      want: 0,
      unmet: 0,
      asked: 0,
      share: 0,
      target: 0,
      unlimited: false,
      validUntil: Infinity,
    };
    if ('address' in id) this.#addresses.set(id.address, pool);
    else this.#jobs.set(id.job, pool);
    return pool;
  }

  #forget(pool: Pool): void {
    if ('address' in pool.id) this.#addresses.delete(pool.id.address);
    else this.#jobs.delete(pool.id.job);
  }

  *#all(): Generator<Pool> {
    yield* this.#addresses.values();
    yield* this.#jobs.values();
  }
}

const freeIn = (pool: Pool): number =>
  pool.unlimited ? Number.MAX_SAFE_INTEGER : Math.min(pool.share, pool.target) - pool.held.size;
