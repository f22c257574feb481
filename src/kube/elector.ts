import type { Elector, KubeClient } from './contract.ts';
import { KubeError } from './contract.ts';
import { firstTerm, leases, microTime, type Lease, type LeaseSpec } from './lease.ts';
import { pause, type Cancel, type Runtime } from './timers.ts';

export interface ElectorSettings {
  /** How long others respect a lease that is no longer renewed; written into it. */
  leaseDurationSeconds: number;
  /** A leader that could not renew for so long stops leading; shorter than the lease. */
  renewDeadlineMilliseconds: number;
  /** Between two attempts to renew or to acquire; varied by a fifth. */
  retryMilliseconds: number;
}

export const defaultElectorSettings: ElectorSettings = {
  leaseDurationSeconds: 15,
  renewDeadlineMilliseconds: 10_000,
  retryMilliseconds: 2_000,
};

/** For metrics. */
export type ElectorObservation =
  | { type: 'leading'; transitions: number }
  | { type: 'lost'; reason: string }
  | { type: 'callFailed'; status: number; reason: string };

export interface ElectorOptions {
  client: Pick<KubeClient, 'get' | 'create' | 'mergePatch'>;
  runtime: Runtime;
  namespace: string;
  name: string;
  /** Unique to this process, also after a restart of it. */
  identity: string;
  settings?: Partial<ElectorSettings>;
  observe?: (observation: ElectorObservation) => void;
}

interface Callbacks {
  onLeading: (signal: AbortSignal) => void;
  onLost: (reason: string) => void;
}

/** One unbroken time of leading. */
interface Term {
  readonly transitions: number;
  readonly uid: string | undefined;
  readonly ended: AbortController;
  resourceVersion: string | undefined;
  /** Monotonic, taken before the renewal was sent: others cannot have seen it earlier. */
  renewedAt: number;
}

/**
 * Leader election on a Lease. Nothing here compares clocks of two machines: a lease has expired when its record has
 * not changed for its own duration by our monotonic clock, and a leader stops by the same clock before that can be.
 */
export class LeaseElector implements Elector {
  readonly #options: ElectorOptions;
  readonly #runtime: Runtime;
  readonly #settings: ElectorSettings;
  readonly #stopping = new AbortController();
  #callbacks: Callbacks | undefined;
  #loop: Promise<void> | undefined;
  #term: Term | undefined;
  #watchdog: Cancel | undefined;
  #record: { text: string; changedAt: number } | undefined;
  #highestTransitions = 0;
  /** Monotonic: the last sign of life of any leader, ourselves included. */
  #leaderSeenAt: number | undefined;
  #failures = 0;

  constructor(options: ElectorOptions) {
    this.#options = options;
    this.#settings = { ...defaultElectorSettings, ...options.settings };
    this.#runtime = {
      ...options.runtime,
      logger: options.runtime.logger.child({ lease: `${options.namespace}/${options.name}` }),
    };
    const { leaseDurationSeconds, renewDeadlineMilliseconds, retryMilliseconds } = this.#settings;
    if (
      !Number.isInteger(leaseDurationSeconds) ||
      renewDeadlineMilliseconds >= leaseDurationSeconds * 1000 ||
      retryMilliseconds >= renewDeadlineMilliseconds
    ) {
      throw new RangeError(
        `elector: needs whole leaseDurationSeconds (${leaseDurationSeconds}) longer than the renew deadline ` +
          `(${renewDeadlineMilliseconds} ms), and that longer than the retry period (${retryMilliseconds} ms)`,
      );
    }
  }

  get isLeader(): boolean {
    return this.fence() !== undefined;
  }

  /**
   * After a freeze of the event loop no timer can be trusted to run before whatever wants to write, so the gap since
   * the last renewal is looked at here, and leadership ends here.
   */
  fence(): { transitions: number; leaderUID: string } | undefined {
    const term = this.#term;
    if (term === undefined) return undefined;
    const gap = this.#runtime.clock.monotonic() - term.renewedAt;
    if (gap >= this.#settings.renewDeadlineMilliseconds) {
      this.#lose(
        `not renewed for ${Math.round(gap)} ms, allowed are ${this.#settings.renewDeadlineMilliseconds}`,
      );
      return undefined;
    }
    return { transitions: term.transitions, leaderUID: this.#options.identity };
  }

  healthy(): boolean {
    if (this.fence() !== undefined) return true;
    if (this.#leaderSeenAt === undefined) return false;
    const { leaseDurationSeconds, renewDeadlineMilliseconds } = this.#settings;
    const silence = this.#runtime.clock.monotonic() - this.#leaderSeenAt;
    return silence < leaseDurationSeconds * 1000 + renewDeadlineMilliseconds;
  }

  start(callbacks: Callbacks): void {
    if (this.#callbacks !== undefined) throw new Error('the elector was started before');
    this.#callbacks = callbacks;
    this.#loop = this.#run();
  }

  /** The signal of the term aborts; `onLost` is not called, for the caller wanted it. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
    if (this.fence() === undefined) return;
    const term = this.#term;
    // No fence is given out any more before others can hear of the release.
    this.#endTerm('stopped');
    if (term !== undefined) await this.#release(term);
  }

  async #run(): Promise<void> {
    const { timers, random } = this.#runtime;
    while (!this.#stopping.signal.aborted) {
      if (this.fence() === undefined) await this.#attempt(() => this.#candidate());
      else await this.#attempt(() => this.#renew());
      const wait = this.#settings.retryMilliseconds * (0.8 + random() * 0.4);
      await pause(timers, wait, this.#stopping.signal);
    }
  }

  /** Must not reject: the loop has to outlive every failure. */
  async #attempt(step: () => Promise<void>): Promise<void> {
    try {
      await step();
      this.#failures = 0;
    } catch (error) {
      if (this.#stopping.signal.aborted) return;
      this.#failures += 1;
      const { status, reason } =
        error instanceof KubeError ? error : { status: 0, reason: error instanceof Error ? error.name : '' };
      this.#options.observe?.({ type: 'callFailed', status, reason });
      if ((this.#failures & (this.#failures - 1)) === 0) {
        this.#runtime.logger.warn('a call for the lease failed, trying again', {
          failures: this.#failures,
          status,
          reason,
          error: error instanceof Error ? error.message : String(error),
        });
      }
    }
  }

  async #candidate(): Promise<void> {
    try {
      await this.#tryToLead();
    } catch (error) {
      // Another candidate was faster.
      if (!(error instanceof KubeError && error.status === 409)) throw error;
    }
  }

  async #tryToLead(): Promise<void> {
    const { client, namespace, name } = this.#options;
    const lease = await client.get(leases, namespace, name, this.#call());
    if (lease === undefined) {
      const sentAt = this.#runtime.clock.monotonic();
      const spec = this.#claim(firstTerm(this.#runtime.clock.now(), this.#highestTransitions));
      const created = await client.create(
        leases,
        { apiVersion: 'coordination.k8s.io/v1', kind: 'Lease', metadata: { namespace, name }, spec },
        this.#call(),
      );
      this.#begin(created, sentAt);
      return;
    }
    this.#look(lease);
    if (!this.#isFree(lease.spec)) return;
    const known = Math.max(lease.spec?.leaseTransitions ?? 0, this.#highestTransitions);
    const transitions = known === 0 ? firstTerm(this.#runtime.clock.now(), 0) : known + 1;
    const sentAt = this.#runtime.clock.monotonic();
    this.#begin(await this.#patch(lease.metadata, this.#claim(transitions)), sentAt);
  }

  async #renew(): Promise<void> {
    const term = this.#term;
    if (term === undefined) return;
    const sentAt = this.#runtime.clock.monotonic();
    try {
      const spec = { renewTime: microTime(this.#runtime.clock.now()) };
      const renewed = await this.#patch({ uid: term.uid, resourceVersion: term.resourceVersion }, spec);
      this.#extend(term, renewed, sentAt);
    } catch (error) {
      if (this.#term !== term || !(error instanceof KubeError)) throw error;
      if (error.status === 404) this.#lose('the lease was deleted');
      else if (error.status === 409) await this.#resolveConflict(term);
      else throw error;
    }
  }

  /** Someone changed the lease: its label, perhaps, or our own renewal whose answer was lost; or it is no longer ours. */
  async #resolveConflict(term: Term): Promise<void> {
    const { client, namespace, name } = this.#options;
    const live = await client.get(leases, namespace, name, this.#call());
    if (this.#term !== term) return;
    if (live === undefined || live.metadata.uid !== term.uid) {
      this.#lose('the lease was deleted');
    } else if (!this.#isOurs(live.spec, term)) {
      this.#look(live);
      this.#lose(`the lease was taken over by ${live.spec?.holderIdentity ?? 'nobody'}`);
    } else {
      term.resourceVersion = live.metadata.resourceVersion;
      const sentAt = this.#runtime.clock.monotonic();
      const spec = { renewTime: microTime(this.#runtime.clock.now()) };
      this.#extend(term, await this.#patch(live.metadata, spec), sentAt);
    }
  }

  async #release(term: Term): Promise<void> {
    const { client, namespace, name } = this.#options;
    // Not the signal of stopping, which has aborted.
    const call = { timeoutMilliseconds: this.#settings.retryMilliseconds, unlimited: true };
    try {
      const live = await client.get(leases, namespace, name, call);
      if (live === undefined || live.metadata.uid !== term.uid || !this.#isOurs(live.spec, term)) return;
      const { uid, resourceVersion } = live.metadata;
      const spec = { holderIdentity: null, renewTime: microTime(this.#runtime.clock.now()) };
      await client.mergePatch(leases, namespace, name, { metadata: { uid, resourceVersion }, spec }, call);
    } catch (error) {
      this.#runtime.logger.warn('the lease could not be released; it will expire', {
        error: error instanceof Error ? error.message : String(error),
      });
    }
  }

  #patch(
    at: { uid?: string | undefined; resourceVersion?: string | undefined },
    spec: LeaseSpec,
  ): Promise<Lease> {
    const { client, namespace, name } = this.#options;
    const { uid, resourceVersion } = at;
    return client.mergePatch(
      leases,
      namespace,
      name,
      { metadata: { uid, resourceVersion }, spec },
      this.#call(),
    );
  }

  /** Half the renew deadline, so that one hanging call leaves time for another. */
  #call(): { timeoutMilliseconds: number; unlimited: true; signal: AbortSignal } {
    return {
      timeoutMilliseconds: this.#settings.renewDeadlineMilliseconds / 2,
      unlimited: true,
      signal: this.#stopping.signal,
    };
  }

  #claim(transitions: number): LeaseSpec {
    const now = microTime(this.#runtime.clock.now());
    return {
      holderIdentity: this.#options.identity,
      leaseDurationSeconds: this.#settings.leaseDurationSeconds,
      acquireTime: now,
      renewTime: now,
      leaseTransitions: transitions,
    };
  }

  /** Remembers when, by our clock, the record last changed. */
  #look(lease: Lease): void {
    const { holderIdentity, leaseDurationSeconds, acquireTime, renewTime, leaseTransitions } =
      lease.spec ?? {};
    const text = JSON.stringify([
      holderIdentity,
      leaseDurationSeconds,
      acquireTime,
      renewTime,
      leaseTransitions,
    ]);
    this.#highestTransitions = Math.max(this.#highestTransitions, leaseTransitions ?? 0);
    if (this.#record?.text === text) return;
    const changedAt = this.#runtime.clock.monotonic();
    this.#record = { text, changedAt };
    if (holderIdentity) this.#leaderSeenAt = changedAt;
  }

  /** A record that we see for the first time may be about to be renewed: its whole duration is waited for. */
  #isFree(spec: LeaseSpec = {}): boolean {
    const { holderIdentity, leaseDurationSeconds = this.#settings.leaseDurationSeconds } = spec;
    // Our own from a term that we have given up already.
    if (!holderIdentity || holderIdentity === this.#options.identity) return true;
    const unchanged = this.#runtime.clock.monotonic() - (this.#record?.changedAt ?? Infinity);
    return unchanged > leaseDurationSeconds * 1000;
  }

  #isOurs(spec: LeaseSpec | undefined, term: Term): boolean {
    return spec?.holderIdentity === this.#options.identity && spec.leaseTransitions === term.transitions;
  }

  #begin(lease: Lease, sentAt: number): void {
    this.#look(lease);
    const transitions = lease.spec?.leaseTransitions ?? 0;
    const { clock, logger } = this.#runtime;
    const term: Term = {
      transitions,
      uid: lease.metadata.uid,
      ended: new AbortController(),
      resourceVersion: lease.metadata.resourceVersion,
      renewedAt: sentAt,
    };
    // Frozen between sending and hearing of it: the term may be over before it began.
    if (clock.monotonic() - sentAt >= this.#settings.renewDeadlineMilliseconds) return;
    if (this.#stopping.signal.aborted) {
      this.#term = term;
      return;
    }
    this.#term = term;
    this.#leaderSeenAt = clock.monotonic();
    this.#watch();
    logger.info('leading', { transitions, identity: this.#options.identity });
    this.#options.observe?.({ type: 'leading', transitions });
    this.#guarded(() => this.#callbacks?.onLeading(term.ended.signal));
  }

  #extend(term: Term, renewed: Lease, sentAt: number): void {
    // By the renewal before this one: an answer that comes after a freeze proves nothing about the time between.
    if (this.#term !== term || this.fence() === undefined) return;
    term.resourceVersion = renewed.metadata.resourceVersion;
    term.renewedAt = sentAt;
    this.#leaderSeenAt = this.#runtime.clock.monotonic();
    this.#watch();
  }

  /** Ends the term on time even while a renewal hangs. */
  #watch(): void {
    this.#watchdog?.();
    const term = this.#term;
    if (term === undefined) return;
    const { clock, timers } = this.#runtime;
    const left = term.renewedAt + this.#settings.renewDeadlineMilliseconds - clock.monotonic();
    this.#watchdog = timers.after(left, () => {
      // A timer may fire a little early by the clock; then it is set again.
      if (this.fence() !== undefined) this.#watch();
    });
  }

  #lose(reason: string): void {
    if (this.#term === undefined) return;
    this.#endTerm(reason);
    this.#runtime.logger.warn('no longer leading', { reason });
    this.#options.observe?.({ type: 'lost', reason });
    this.#guarded(() => this.#callbacks?.onLost(reason));
  }

  #endTerm(reason: string): void {
    const term = this.#term;
    this.#term = undefined;
    this.#watchdog?.();
    this.#watchdog = undefined;
    term?.ended.abort(new Error(`no longer leading: ${reason}`));
  }

  /** A callback's defect must not end the loop that keeps the lease. */
  #guarded(callback: () => void): void {
    try {
      callback();
    } catch (error) {
      this.#runtime.logger.error('a callback of the elector threw', {
        error: error instanceof Error ? (error.stack ?? error.message) : String(error),
      });
    }
  }
}
