import type { Change, KubeObject, Reflector, Resource, Store } from './contract.ts';
import { KubeError } from './contract.ts';
import { isExpired, isTooLargeResourceVersion } from './failures.ts';
import { LineFramer } from './line-framer.ts';
import { labelOf } from './paths.ts';
import { nextState, type ReflectorSignal, type ReflectorState } from './reflector-state.ts';
import { ObjectStore, type Indexer } from './store.ts';
import { backoffMilliseconds, pause, type Runtime } from './timers.ts';
import type { WatchClient } from './transport.ts';
import { malformedEvent, parseWatchEvent } from './watch-event.ts';

export interface ReflectorSettings {
  /** Silence after which a watch counts as dead; above the 60 to 62 s between two bookmarks (measured on 1.36). */
  idleMilliseconds: number;
  /** A full list at least this often, as a safety net; varied by a tenth. */
  relistMilliseconds: number;
  /** How long the server keeps a watch, chosen anew each time so that reconnects spread out. */
  watchSeconds: { from: number; to: number };
  backoff: { initialMilliseconds: number; ceilingMilliseconds: number };
  /** A watch that lived this long ends the counting of failures. */
  steadyMilliseconds: number;
}

export const defaultReflectorSettings: ReflectorSettings = {
  idleMilliseconds: 90_000,
  relistMilliseconds: 600_000,
  watchSeconds: { from: 290, to: 590 },
  backoff: { initialMilliseconds: 1_000, ceilingMilliseconds: 30_000 },
  steadyMilliseconds: 10_000,
};

/** For metrics. */
export type ReflectorObservation = { resource: string } & (
  | { type: 'relist'; reason: 'start' | 'expired' | 'periodic' | 'failure' }
  | { type: 'reconnect'; reason: 'ended' | 'idle' | 'failure' }
  /** Status of the answer or of the ERROR event; 0 where the connection failed. */
  | { type: 'watchError'; code: number; reason: string }
  | { type: 'handlerError' }
);

export interface ReflectorOptions<T extends KubeObject> {
  client: WatchClient;
  resource: Resource<T>;
  runtime: Runtime;
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
  indexers?: Readonly<Record<string, Indexer<T>>>;
  settings?: Partial<ReflectorSettings>;
  observe?: (observation: ReflectorObservation) => void;
}

/** After so many failures in a row a watch is not resumed where it was but begun with a list. */
const failuresBeforeRelist = 3;
/** A stream that ends sooner and says nothing is a failure, or we would reconnect in a tight circle. */
const shortestWatchMilliseconds = 1_000;

/** A local picture of one kind, kept up to date by list and watch through every kind of failure, until stopped. */
export class KindReflector<T extends KubeObject> implements Reflector<T> {
  readonly #options: ReflectorOptions<T>;
  readonly #runtime: Runtime;
  readonly #settings: ReflectorSettings;
  readonly #label: string;
  readonly #store: ObjectStore<T>;
  readonly #handlers: ((change: Change<T>) => void)[] = [];
  readonly #stopping = new AbortController();
  readonly #firstList = Promise.withResolvers<void>();
  #state: ReflectorState = 'Idle';
  #loop: Promise<void> | undefined;
  #hasSynced = false;
  #resourceVersion = '';
  /** Nothing was heard since the list that gave us our resourceVersion. */
  #freshlyListed = false;
  #relistReason: 'start' | 'expired' | 'periodic' | 'failure' = 'start';
  #relistDueAt = 0;
  #failures = 0;
  #resumeWith: 'resumeList' | 'resumeWatch' = 'resumeList';
  #restMilliseconds = 0;
  #lastActivityAt: number;

  constructor(options: ReflectorOptions<T>) {
    this.#options = options;
    this.#settings = { ...defaultReflectorSettings, ...options.settings };
    this.#label = labelOf(options.resource);
    this.#runtime = { ...options.runtime, logger: options.runtime.logger.child({ resource: this.#label }) };
    this.#store = new ObjectStore(options.indexers, (index, object, error) => {
      this.#reportDefect(`the indexer "${index}" threw`, object, error);
    });
    this.#lastActivityAt = options.runtime.clock.monotonic();
    this.#firstList.promise.catch(() => undefined);
  }

  get store(): Store<T> {
    return this.#store;
  }

  get state(): ReflectorState {
    return this.#state;
  }

  get hasSynced(): boolean {
    return this.#hasSynced;
  }

  get sinceLastActivity(): number {
    return this.#runtime.clock.monotonic() - this.#lastActivityAt;
  }

  /** Rejects when `signal` aborts or the reflector is stopped before its first list. */
  async synced(signal?: AbortSignal): Promise<void> {
    if (signal === undefined) return this.#firstList.promise;
    signal.throwIfAborted();
    const given = Promise.withResolvers<never>();
    const onAbort = (): void => {
      given.reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'));
    };
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      await Promise.race([this.#firstList.promise, given.promise]);
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  /** A handler that comes late is first told of everything that is already known. */
  onChange(handler: (change: Change<T>) => void): void {
    this.#handlers.push(handler);
    for (const object of this.#store.list()) this.#tell(handler, { type: 'Added', object });
  }

  /** More than one call makes no second watch. */
  start(): void {
    if (this.#state !== 'Idle') return;
    this.#go('start');
    this.#loop = this.#run();
  }

  async stop(): Promise<void> {
    this.#go('stop');
    this.#stopping.abort(new Error(`the reflector of ${this.#label} was stopped`));
    this.#firstList.reject(this.#stopping.signal.reason as Error);
    await this.#loop;
  }

  #go(signal: ReflectorSignal): void {
    this.#state = nextState(this.#state, signal);
  }

  /** Asked anew after every wait: nothing may begin once we were told to stop. */
  get #isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      switch (this.#state) {
        case 'Listing':
          await this.#list();
          break;
        case 'Watching':
          await this.#watch();
          break;
        case 'Backoff':
          await pause(this.#runtime.timers, this.#restMilliseconds, this.#stopping.signal);
          if (!this.#isStopped) this.#go(this.#resumeWith);
          break;
        case 'Idle':
        case 'Stopped':
          return;
      }
    }
  }

  async #list(): Promise<void> {
    const { client, resource, namespace, labelSelector, fieldSelector } = this.#options;
    this.#observe({ type: 'relist', reason: this.#relistReason });
    try {
      const { items, resourceVersion } = await client.list(resource, {
        signal: this.#stopping.signal,
        ...(namespace !== undefined && { namespace }),
        ...(labelSelector !== undefined && { labelSelector }),
        ...(fieldSelector !== undefined && { fieldSelector }),
      });
      if (this.#isStopped) return;
      this.#touch();
      this.#resourceVersion = resourceVersion;
      this.#freshlyListed = true;
      const { clock, random } = this.#runtime;
      this.#relistDueAt = clock.monotonic() + this.#settings.relistMilliseconds * (0.9 + random() / 5);
      this.#publish(this.#store.replace(items));
      this.#hasSynced = true;
      this.#firstList.resolve();
      this.#go('listed');
    } catch (error) {
      if (!this.#isStopped) this.#fail(error, 'resumeList');
    }
  }

  async #watch(): Promise<void> {
    const { client, resource, namespace, labelSelector, fieldSelector } = this.#options;
    const { clock, timers, random } = this.#runtime;
    const { watchSeconds, steadyMilliseconds } = this.#settings;
    const openedAt = clock.monotonic();
    const stream = new AbortController();
    const onStop = (): void => {
      stream.abort();
    };
    this.#stopping.signal.addEventListener('abort', onStop, { once: true });
    let ending: 'idle' | 'periodic' | undefined;
    const end = (why: 'idle' | 'periodic'): void => {
      ending ??= why;
      stream.abort();
    };
    const cancelIdle = this.#whenIdle(() => {
      end('idle');
    });
    const cancelRelist = timers.after(Math.max(0, this.#relistDueAt - openedAt), () => {
      end('periodic');
    });
    let heard = false;
    try {
      const chunks = await client.watch(resource, {
        namespace,
        labelSelector,
        fieldSelector,
        resourceVersion: this.#resourceVersion,
        timeoutSeconds: Math.floor(watchSeconds.from + random() * (watchSeconds.to - watchSeconds.from + 1)),
        signal: stream.signal,
      });
      this.#touch();
      const framer = new LineFramer();
      for await (const chunk of chunks) {
        if (stream.signal.aborted) break;
        this.#touch();
        for (const line of framer.push(chunk)) {
          this.#take(line);
          heard = true;
        }
      }
      if (framer.isTorn && ending === undefined) {
        throw new KubeError(
          0,
          'ConnectionLost',
          `watch of ${this.#label}: the stream broke off inside an event`,
        );
      }
      this.#closeWatch(ending ?? 'ended', { lived: clock.monotonic() - openedAt, heard });
    } catch (error) {
      if (this.#isStopped) return;
      const lived = clock.monotonic() - openedAt;
      if (lived >= steadyMilliseconds) this.#failures = 0;
      if (ending !== undefined) this.#closeWatch(ending, { lived, heard });
      else this.#failWatch(error);
    } finally {
      cancelIdle();
      cancelRelist();
      this.#stopping.signal.removeEventListener('abort', onStop);
      stream.abort();
    }
  }

  #closeWatch(why: 'ended' | 'idle' | 'periodic', watch: { lived: number; heard: boolean }): void {
    if (this.#isStopped) return;
    if (watch.lived >= this.#settings.steadyMilliseconds) this.#failures = 0;
    if (why === 'periodic') {
      this.#relistReason = 'periodic';
      this.#go('relist');
    } else if (why === 'ended' && !watch.heard && watch.lived < shortestWatchMilliseconds) {
      this.#fail(
        new KubeError(0, 'ConnectionLost', `watch of ${this.#label}: closed at once without a word`),
        'resumeWatch',
      );
    } else {
      this.#observe({ type: 'reconnect', reason: why });
      this.#go('ended');
    }
  }

  #failWatch(error: unknown): void {
    const known = asKubeError(error);
    this.#observe({ type: 'watchError', code: known.status, reason: known.reason });
    if (!isExpired(known)) {
      this.#fail(known, resumptionAfter(known));
    } else if (this.#freshlyListed) {
      // Expired as soon as it was listed: once more at once would be a tight circle.
      this.#fail(known, 'resumeList');
      this.#relistReason = 'expired';
    } else {
      this.#relistReason = 'expired';
      this.#go('relist');
    }
  }

  #fail(error: unknown, resumeWith: 'resumeList' | 'resumeWatch'): void {
    const known = asKubeError(error);
    this.#failures += 1;
    this.#resumeWith = this.#failures >= failuresBeforeRelist ? 'resumeList' : resumeWith;
    this.#relistReason = this.#hasSynced ? 'failure' : 'start';
    if (this.#resumeWith === 'resumeWatch') this.#observe({ type: 'reconnect', reason: 'failure' });
    const { initialMilliseconds, ceilingMilliseconds } = this.#settings.backoff;
    this.#restMilliseconds = Math.max(
      (known.retryAfterSeconds ?? 0) * 1000,
      backoffMilliseconds(this.#failures, initialMilliseconds, ceilingMilliseconds, this.#runtime.random),
    );
    // Each power of two: an outage of an hour is a dozen lines, not a thousand.
    if ((this.#failures & (this.#failures - 1)) === 0) {
      this.#runtime.logger.warn('cannot keep up with the API server, trying again', {
        state: this.#state,
        failures: this.#failures,
        afterMilliseconds: Math.round(this.#restMilliseconds),
        status: known.status,
        reason: known.reason,
        error: known.message,
      });
    }
    this.#go('failed');
  }

  #take(line: Buffer): void {
    const event = parseWatchEvent<T>(line, `watch of ${this.#label}`);
    this.#freshlyListed = false;
    switch (event.type) {
      case 'ADDED':
      case 'MODIFIED':
        this.#publish(this.#store.put(event.object));
        break;
      case 'DELETED':
        this.#publish(this.#store.delete(event.object));
        break;
      case 'BOOKMARK':
        this.#resourceVersion = event.resourceVersion;
        return;
    }
    this.#resourceVersion = event.object.metadata.resourceVersion ?? this.#resourceVersion;
  }

  #publish(changes: readonly Change<T>[]): void {
    for (const change of changes) {
      for (const handler of this.#handlers) this.#tell(handler, change);
    }
  }

  /** Must not throw: one handler's defect would end the watch of all others. */
  #tell(handler: (change: Change<T>) => void, change: Change<T>): void {
    try {
      handler(change);
    } catch (error) {
      this.#reportDefect(`a handler of ${change.type} threw`, change.object, error);
    }
  }

  #reportDefect(message: string, about: T, error: unknown): void {
    this.#observe({ type: 'handlerError' });
    this.#runtime.logger.error(message, {
      namespace: about.metadata.namespace,
      name: about.metadata.name,
      error: error instanceof Error ? (error.stack ?? error.message) : String(error),
    });
  }

  #touch(): void {
    this.#lastActivityAt = this.#runtime.clock.monotonic();
  }

  /** One alarm that looks when something was last heard, instead of a new one with every chunk. */
  #whenIdle(run: () => void): () => void {
    const { timers } = this.#runtime;
    const { idleMilliseconds } = this.#settings;
    const from = this.#runtime.clock.monotonic();
    const silence = (): number => Math.min(this.sinceLastActivity, this.#runtime.clock.monotonic() - from);
    let cancel: () => void;
    const look = (): void => {
      const left = idleMilliseconds - silence();
      if (left <= 0) run();
      else cancel = timers.after(left, look);
    };
    cancel = timers.after(idleMilliseconds, look);
    return () => {
      cancel();
    };
  }

  #observe(observation: DistributiveOmit<ReflectorObservation, 'resource'>): void {
    this.#options.observe?.({ resource: this.#label, ...observation });
  }
}

type DistributiveOmit<U, K extends PropertyKey> = U extends unknown ? Omit<U, K> : never;

function asKubeError(error: unknown): KubeError {
  if (error instanceof KubeError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new KubeError(0, 'ConnectionLost', message, { cause: error });
}

/** Where the picture we hold may be wrong, it is made anew; where only the connection failed, it goes on. */
function resumptionAfter(error: KubeError): 'resumeList' | 'resumeWatch' {
  if (isTooLargeResourceVersion(error) || error.reason === malformedEvent) return 'resumeList';
  switch (error.status) {
    case 0:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return 'resumeWatch';
    default:
      return 'resumeList';
  }
}
