import { Connection, type HttpRequest, type KubeCall } from './connection.ts';
import type { CallOptions, KubeClient, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import type { Credentials } from './credentials.ts';
import { isExpired, isOtherUID } from './failures.ts';
import { apiVersionOf, labelOf, pathOf, type Query } from './paths.ts';
import { RateLimiter, type RateLimit } from './rate-limiter.ts';
import { mayRetry, retryDelayMilliseconds } from './retry.ts';
import { pause, type Runtime } from './timers.ts';

export interface TransportOptions {
  credentials: Credentials;
  runtime: Runtime;
  /** `name/version`. */
  userAgent?: string;
  rateLimit?: RateLimit;
  /** Deadline of a call that names none, repeats included. */
  timeoutMilliseconds?: number;
  /** Longest single attempt: what a half-open connection costs. */
  attemptMilliseconds?: number;
  attempts?: number;
  /** Objects a page of a list. */
  pageSize?: number;
  /** Told of every attempt. */
  onCall?: (call: KubeCall) => void;
}

export interface WatchOptions {
  namespace?: string | undefined;
  labelSelector?: string | undefined;
  fieldSelector?: string | undefined;
  resourceVersion: string;
  /** After which the server ends the stream. */
  timeoutSeconds: number;
  signal: AbortSignal;
}

/** What a reflector needs besides the calls that everyone makes. */
export interface WatchClient extends Pick<KubeClient, 'list'> {
  /** The stream's bytes: lines of JSON, one event each, cut anywhere. Not repeated here; throws KubeError. */
  watch<T extends KubeObject>(
    resource: Resource<T>,
    options: WatchOptions,
  ): Promise<AsyncIterable<Uint8Array>>;
}

interface Repetition {
  repeatable: boolean;
  options: CallOptions;
}

interface ListBody<T> {
  items?: T[] | null;
  metadata?: { resourceVersion?: string; continue?: string };
}

export class KubeTransport implements KubeClient, WatchClient {
  readonly #connection: Connection;
  readonly #runtime: Runtime;
  readonly #limiter: RateLimiter;
  readonly #timeoutMilliseconds: number;
  readonly #attemptMilliseconds: number;
  readonly #attempts: number;
  readonly #pageSize: number;

  constructor(options: TransportOptions) {
    const { credentials, runtime, userAgent = 'tidegate', onCall = () => undefined } = options;
    this.#connection = new Connection({ credentials, runtime, userAgent, onCall });
    this.#runtime = runtime;
    this.#limiter = new RateLimiter(
      options.rateLimit ?? { perSecond: 50, burst: 100 },
      runtime.clock,
      runtime.timers,
    );
    this.#timeoutMilliseconds = options.timeoutMilliseconds ?? 60_000;
    this.#attemptMilliseconds = options.attemptMilliseconds ?? 15_000;
    this.#attempts = options.attempts ?? 5;
    this.#pageSize = options.pageSize ?? 500;
  }

  async get<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    options: CallOptions = {},
  ): Promise<T | undefined> {
    try {
      return await this.#call<T>(
        {
          verb: 'get',
          resource: labelOf(resource),
          method: 'GET',
          path: pathOf(resource, { namespace, name }),
        },
        { repeatable: true, options },
      );
    } catch (error) {
      if (error instanceof KubeError && error.status === 404) return undefined;
      throw error;
    }
  }

  async list<T extends KubeObject>(
    resource: Resource<T>,
    options: CallOptions & { namespace?: string; labelSelector?: string; fieldSelector?: string } = {},
  ): Promise<{ items: T[]; resourceVersion: string }> {
    const { namespace, labelSelector, fieldSelector, ...call } = options;
    const page = (query: Query): Promise<ListBody<T>> =>
      this.#call(
        {
          verb: 'list',
          resource: labelOf(resource),
          method: 'GET',
          path: pathOf(resource, { namespace }, { labelSelector, fieldSelector, ...query }),
        },
        { repeatable: true, options: call },
      );

    const items: T[] = [];
    let next: string | undefined;
    let body: ListBody<T>;
    do {
      try {
        body = await page({ limit: this.#pageSize, continue: next });
      } catch (error) {
        if (next === undefined || !(error instanceof KubeError && isExpired(error))) throw error;
        // The snapshot we were paging through was compacted away: once more, in one piece.
        items.length = 0;
        body = await page({});
      }
      for (const item of body.items ?? []) items.push(item);
      next = body.metadata?.continue === '' ? undefined : body.metadata?.continue;
    } while (next !== undefined);

    // Lists of built-in kinds leave these out of their items.
    const apiVersion = apiVersionOf(resource);
    for (const item of items) {
      item.apiVersion ??= apiVersion;
      item.kind ??= resource.kind;
    }
    return { items, resourceVersion: body.metadata?.resourceVersion ?? '' };
  }

  watch<T extends KubeObject>(
    resource: Resource<T>,
    options: WatchOptions,
  ): Promise<AsyncIterable<Uint8Array>> {
    const { namespace, signal, ...query } = options;
    return this.#connection.open(
      {
        verb: 'watch',
        resource: labelOf(resource),
        method: 'GET',
        path: pathOf(resource, { namespace }, { watch: true, allowWatchBookmarks: true, ...query }),
      },
      this.#attemptMilliseconds,
      signal,
    );
  }

  create<T extends KubeObject>(resource: Resource<T>, object: T, options: CallOptions = {}): Promise<T> {
    return this.#call(
      {
        verb: 'create',
        resource: labelOf(resource),
        method: 'POST',
        path: pathOf(resource, { namespace: object.metadata.namespace }),
        body: object,
      },
      { repeatable: false, options },
    );
  }

  mergePatch<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    patch: object,
    options: CallOptions & { subresource?: 'status' } = {},
  ): Promise<T> {
    return this.#call(
      {
        verb: 'patch',
        resource: labelOf(resource),
        method: 'PATCH',
        path: pathOf(resource, { namespace, name, subresource: options.subresource }),
        body: patch,
        contentType: 'application/merge-patch+json',
      },
      { repeatable: true, options },
    );
  }

  jsonPatch<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    patch: readonly object[],
    options: CallOptions & { subresource?: 'status' } = {},
  ): Promise<T> {
    // Without a test, adding to a list twice adds twice.
    const guarded = patch.some((operation) => 'op' in operation && operation.op === 'test');
    return this.#call(
      {
        verb: 'patch',
        resource: labelOf(resource),
        method: 'PATCH',
        path: pathOf(resource, { namespace, name, subresource: options.subresource }),
        body: patch,
        contentType: 'application/json-patch+json',
      },
      { repeatable: guarded, options },
    );
  }

  apply<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    options: CallOptions & { fieldManager: string; force?: boolean; subresource?: 'status' },
  ): Promise<T> {
    const { fieldManager, force, subresource } = options;
    const { namespace, name } = object.metadata;
    return this.#call(
      {
        verb: 'apply',
        resource: labelOf(resource),
        method: 'PATCH',
        path: pathOf(resource, { namespace, name, subresource }, { fieldManager, force }),
        body: object,
        contentType: 'application/apply-patch+yaml',
      },
      { repeatable: true, options },
    );
  }

  async delete<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    options: CallOptions & { uid?: string } = {},
  ): Promise<void> {
    const preconditions = options.uid === undefined ? {} : { preconditions: { uid: options.uid } };
    try {
      await this.#call(
        {
          verb: 'delete',
          resource: labelOf(resource),
          method: 'DELETE',
          path: pathOf(resource, { namespace, name }),
          body: {
            apiVersion: 'v1',
            kind: 'DeleteOptions',
            propagationPolicy: 'Background',
            ...preconditions,
          },
        },
        { repeatable: true, options },
      );
    } catch (error) {
      if (error instanceof KubeError && (error.status === 404 || isOtherUID(error))) return;
      throw error;
    }
  }

  post<T>(path: string, body: object, options: CallOptions = {}): Promise<T> {
    const resource = path.split('/').at(-1) ?? path;
    return this.#call({ verb: 'post', resource, method: 'POST', path, body }, { repeatable: false, options });
  }

  close(): Promise<void> {
    return this.#connection.close();
  }

  async #call<R>(request: HttpRequest, { repeatable, options }: Repetition): Promise<R> {
    const { clock, timers, random } = this.#runtime;
    const deadline = clock.monotonic() + (options.timeoutMilliseconds ?? this.#timeoutMilliseconds);
    let refreshed = false;
    for (let attempt = 1; ; attempt += 1) {
      if (options.unlimited !== true) await this.#limiter.take(options.signal);
      const left = deadline - clock.monotonic();
      try {
        const limit = Math.max(1, Math.min(left, this.#attemptMilliseconds));
        return (await this.#connection.exchange(request, limit, options.signal)) as R;
      } catch (error) {
        if (!(error instanceof KubeError)) throw error;
        if (error.status === 401 && !refreshed) {
          // Nothing was carried out; the token may just have been rotated.
          refreshed = true;
          this.#connection.refreshCredentials();
          continue;
        }
        if (attempt >= this.#attempts || !mayRetry(error, repeatable)) throw error;
        const delay = retryDelayMilliseconds(error, attempt, random);
        if (delay >= deadline - clock.monotonic()) throw error;
        await pause(timers, delay, options.signal);
      }
    }
  }
}
