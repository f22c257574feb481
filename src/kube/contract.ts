/**
 * The small controller runtime: what reconcilers see of Kubernetes. Only this room knows @kubernetes/client-node,
 * and only for configuration and credentials.
 */

import type { ObjectMeta } from '../api/object.ts';

export type { ObjectMeta };

export interface KubeObject {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
}

/** A kind on the wire; `T` only carries the type. */
export interface Resource<T extends KubeObject> {
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  readonly kind: string;
  readonly namespaced: boolean;
  readonly _type?: T;
}

export interface KubeErrorCause {
  field?: string;
  message?: string;
  reason?: string;
}

/** An answer of the API server that is no success, or no answer at all (`status` 0). Never carries headers or request bodies. */
export class KubeError extends Error {
  readonly status: number;
  readonly reason: string;
  readonly causes: readonly KubeErrorCause[];
  readonly retryAfterSeconds: number | undefined;
  constructor(
    status: number,
    reason: string,
    message: string,
    options: {
      causes?: readonly KubeErrorCause[];
      retryAfterSeconds?: number | undefined;
      cause?: unknown;
    } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'KubeError';
    this.status = status;
    this.reason = reason;
    this.causes = options.causes ?? [];
    this.retryAfterSeconds = options.retryAfterSeconds;
  }
}

export interface CallOptions {
  signal?: AbortSignal;
  /** For the whole call, repeats and waits included (of a list: for each page). */
  timeoutMilliseconds?: number;
  /** Passes the client-side rate limit: for leases, which must not wait behind other writes. */
  unlimited?: boolean;
}

export interface KubeClient {
  /** undefined on 404. */
  get<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    options?: CallOptions,
  ): Promise<T | undefined>;
  /** All pages. */
  list<T extends KubeObject>(
    resource: Resource<T>,
    options?: CallOptions & { namespace?: string; labelSelector?: string; fieldSelector?: string },
  ): Promise<{ items: T[]; resourceVersion: string }>;
  create<T extends KubeObject>(resource: Resource<T>, object: T, options?: CallOptions): Promise<T>;
  /** A merge patch; with `resourceVersion` in it, optimistic. */
  mergePatch<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    patch: object,
    options?: CallOptions & { subresource?: 'status' },
  ): Promise<T>;
  jsonPatch<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    patch: readonly object[],
    options?: CallOptions & { subresource?: 'status' },
  ): Promise<T>;
  /** Server-side apply under `fieldManager`. */
  apply<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    options: CallOptions & { fieldManager: string; force?: boolean; subresource?: 'status' },
  ): Promise<T>;
  /** 404 is success. */
  delete<T extends KubeObject>(
    resource: Resource<T>,
    namespace: string | undefined,
    name: string,
    options?: CallOptions & { uid?: string },
  ): Promise<void>;
  /** A POST to any API path (TokenReview, SubjectAccessReview …). */
  post<T>(path: string, body: object, options?: CallOptions): Promise<T>;
  close(): Promise<void>;
}

export type Change<T> =
  { type: 'Added'; object: T } | { type: 'Updated'; object: T; old: T } | { type: 'Deleted'; object: T };

/** Read-only, frozen objects as last seen. Keys are `namespace/name` or `name`. */
export interface Store<T extends KubeObject> {
  get(key: string): T | undefined;
  list(): readonly T[];
  byIndex(index: string, value: string): readonly T[];
  readonly size: number;
}

export interface Reflector<T extends KubeObject> {
  readonly store: Store<T>;
  readonly hasSynced: boolean;
  /** Resolves after the first full list. */
  synced(signal?: AbortSignal): Promise<void>;
  /** Handlers must only enqueue keys; a throwing handler is logged and counted, never fatal. */
  onChange(handler: (change: Change<T>) => void): void;
  start(): void;
  stop(): Promise<void>;
  /** Milliseconds since the server last said anything, by a monotonic clock. */
  readonly sinceLastActivity: number;
}

export const keyOf = (object: KubeObject): string =>
  object.metadata.namespace ? `${object.metadata.namespace}/${object.metadata.name}` : object.metadata.name;

/** client-go semantics: a key is handed out once at a time; added again while processed, it comes again afterwards. */
export interface WorkQueue {
  add(key: string): void;
  addAfter(key: string, milliseconds: number): void;
  /** Exponential per-key back-off with a ceiling; `forget` resets it. */
  addRateLimited(key: string): void;
  forget(key: string): void;
  /** Runs `handler` with at most `workers` keys at a time until drained. A rejection re-adds the key rate-limited. */
  run(handler: (key: string) => Promise<void>, workers: number): void;
  /** Stops handing out; resolves when running handlers are done. */
  drain(): Promise<void>;
  readonly length: number;
}

export interface Elector {
  /** The token to give to every external write; undefined when not leading. Checks the lease by monotonic time at each call. */
  fence(): { transitions: number; leaderUID: string } | undefined;
  readonly isLeader: boolean;
  /** False when a renewal is overdue or no leader was ever seen. */
  healthy(): boolean;
  start(callbacks: { onLeading: (signal: AbortSignal) => void; onLost: (reason: string) => void }): void;
  /** Releases the lease after the caller has drained. */
  stop(): Promise<void>;
}

export interface Recorder {
  /** Fire and forget; aggregated, rate-limited per object, type and reason. */
  event(about: KubeObject, type: 'Normal' | 'Warning', reason: string, message: string): void;
  close(): Promise<void>;
}

/** A condition as Kubernetes defines it (metav1.Condition). */
export interface Condition {
  type: string;
  status: 'True' | 'False' | 'Unknown';
  reason: string;
  message: string;
  lastTransitionTime: string;
  observedGeneration?: number;
}
