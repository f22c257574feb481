/**
 * The one door through which lines leave this worker: jobs of a deployment take turns, each line goes to the open
 * replica with most free places, and nothing leaves while the buffered bytes are at their limit.
 */
import type { Clock } from '../../observability/contract.ts';
import type { DeploymentPlan, Place, PoolId, Places, QueueId } from '../../queue/contract.ts';
import type { ByteBudget } from './byte-budget.ts';

/** An open shard, as the dispatcher sees it. */
export interface DispatchableRun {
  readonly queue: QueueId;
  readonly jobUID: string;
  /** Its number in the job: a job's earlier shards go first, so that they end, and are published, in order. */
  readonly shard: { readonly shard: number };
  /** The places of the job's maxInFlight; without one there is no limit to them. */
  readonly jobPool: PoolId;
  /** Lines that may be sent now. */
  readonly ready: number;
  readonly inFlight: number;
  /** Sends the next ready line to this replica; the run releases the place when the call has ended. */
  start(address: string, place: Place): void;
}

export interface DispatcherDependencies {
  places: Places;
  plan: (queue: QueueId) => DeploymentPlan | undefined;
  /** Whether a hold keeps this replica (or all of the queue, or this job) closed. */
  isHeld: (queue: QueueId, address: string) => boolean;
  isJobHeld: (queue: QueueId, jobUID: string) => boolean;
  budget: ByteBudget;
  clock: Clock;
}

export class Dispatcher {
  readonly #deps: DispatcherDependencies;
  /** Per queue, the jobs in turn order, each with its runs in shard order. */
  readonly #queues = new Map<QueueId, Map<string, readonly DispatchableRun[]>>();
  /** Replicas that answered busy: closed until this monotonic time. */
  readonly #coolUntil = new Map<string, number>();
  readonly #wants = new Map<string, number>();
  readonly #subscriptions: (() => void)[];
  #scheduled = false;
  #stopped = false;
  #coolTimer: NodeJS.Timeout | undefined;

  constructor(deps: DispatcherDependencies) {
    this.#deps = deps;
    this.#subscriptions = [deps.places.onFree(() => this.wake()), deps.budget.onRelease(() => this.wake())];
  }

  add(run: DispatchableRun): void {
    const jobs = this.#queues.get(run.queue) ?? new Map<string, readonly DispatchableRun[]>();
    this.#queues.set(run.queue, jobs);
    const runs = [...(jobs.get(run.jobUID) ?? []), run];
    jobs.set(
      run.jobUID,
      runs.sort((a, b) => a.shard.shard - b.shard.shard),
    );
    this.wake();
  }

  remove(run: DispatchableRun): void {
    const jobs = this.#queues.get(run.queue);
    const runs = jobs?.get(run.jobUID)?.filter((other) => other !== run);
    if (jobs === undefined || runs === undefined) return;
    if (runs.length > 0) jobs.set(run.jobUID, runs);
    else {
      jobs.delete(run.jobUID);
      this.#want(run.jobPool, 0);
    }
    if (jobs.size === 0) this.#queues.delete(run.queue);
    this.wake();
  }

  /** Keeps a replica closed for a while after it said it is busy. */
  cool(address: string, milliseconds: number): void {
    const until = this.#deps.clock.monotonic() + milliseconds;
    this.#coolUntil.set(address, Math.max(until, this.#coolUntil.get(address) ?? 0));
    this.#armCoolTimer();
  }

  /** Dispatches soon; many calls in one turn of the event loop cost one pass. */
  wake(): void {
    if (this.#scheduled || this.#stopped) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      if (!this.#stopped) this.#dispatchAll();
    });
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#coolTimer);
    for (const unsubscribe of this.#subscriptions) unsubscribe();
    this.#queues.clear();
    this.#setWants();
  }

  #dispatchAll(): void {
    this.#setWants();
    for (const [queue, jobs] of this.#queues) this.#dispatch(queue, jobs);
  }

  #dispatch(queue: QueueId, jobs: Map<string, readonly DispatchableRun[]>): void {
    const open = this.#openReplicas(queue);
    /** Jobs passed over in this pass: nothing ready, held, or at their own cap. */
    const passed = new Set<string>();
    while (this.#deps.budget.open && passed.size < jobs.size) {
      const address = this.#mostFree(open);
      if (address === undefined) return;
      const [uid, runs] = nextJob(jobs, passed);
      if (uid === undefined) return;
      const run = this.#deps.isJobHeld(queue, uid) ? undefined : runs.find(({ ready }) => ready > 0);
      const place = run && this.#deps.places.take([{ address }, run.jobPool]);
      if (run === undefined || place === undefined) {
        passed.add(uid);
        continue;
      }
      // The job goes to the end of the line.
      jobs.delete(uid);
      jobs.set(uid, runs);
      run.start(address, place);
    }
  }

  #openReplicas(queue: QueueId): string[] {
    const now = this.#deps.clock.monotonic();
    const addresses: string[] = [];
    for (const { address } of this.#deps.plan(queue)?.replicas ?? []) {
      if ((this.#coolUntil.get(address) ?? 0) <= now && !this.#deps.isHeld(queue, address))
        addresses.push(address);
    }
    return addresses;
  }

  #mostFree(addresses: readonly string[]): string | undefined {
    let best: string | undefined;
    let most = 0;
    for (const address of addresses) {
      const free = this.#deps.places.free({ address });
      if (free > most) {
        most = free;
        best = address;
      }
    }
    return best;
  }

  /** Tells the places how much this worker could use: what is in flight and what is ready, per replica and per capped job. */
  #setWants(): void {
    const wants = new Map<string, { pool: PoolId; want: number }>();
    const add = (pool: PoolId, amount: number): void => {
      const key = poolKey(pool);
      const entry = wants.get(key) ?? { pool, want: 0 };
      entry.want += amount;
      wants.set(key, entry);
    };
    for (const [queue, jobs] of this.#queues) {
      let load = 0;
      for (const runs of jobs.values()) {
        for (const run of runs) {
          const lines = run.ready + run.inFlight;
          load += lines;
          add(run.jobPool, lines);
        }
      }
      for (const { address } of this.#deps.plan(queue)?.replicas ?? []) {
        add({ address }, this.#deps.isHeld(queue, address) ? 0 : load);
      }
    }
    for (const { pool, want } of wants.values()) this.#want(pool, want);
    for (const key of [...this.#wants.keys()]) if (!wants.has(key)) this.#want(poolOf(key), 0);
  }

  #want(pool: PoolId, want: number): void {
    const key = poolKey(pool);
    if ((this.#wants.get(key) ?? 0) === want) return;
    if (want === 0) this.#wants.delete(key);
    else this.#wants.set(key, want);
    this.#deps.places.setWant(pool, want);
  }

  #armCoolTimer(): void {
    clearTimeout(this.#coolTimer);
    const now = this.#deps.clock.monotonic();
    let soonest = Infinity;
    for (const [address, until] of this.#coolUntil) {
      if (until <= now) this.#coolUntil.delete(address);
      else soonest = Math.min(soonest, until);
    }
    if (soonest === Infinity) return;
    this.#coolTimer = setTimeout(() => {
      this.#armCoolTimer();
      this.wake();
    }, soonest - now);
  }
}

const poolKey = (pool: PoolId): string => ('address' in pool ? `address ${pool.address}` : `job ${pool.job}`);
const poolOf = (key: string): PoolId =>
  key.startsWith('address ') ? { address: key.slice('address '.length) } : { job: key.slice('job '.length) };

function nextJob<T>(
  jobs: ReadonlyMap<string, T>,
  passed: ReadonlySet<string>,
): [string, T] | [undefined, undefined] {
  for (const [uid, runs] of jobs) if (!passed.has(uid)) return [uid, runs];
  return [undefined, undefined];
}
