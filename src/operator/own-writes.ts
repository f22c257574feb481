import type { KubeObject } from '../kube/contract.ts';

/**
 * Our own writes, and versions that we read to go on after a conflict, seen before the watch brings them: a decision
 * made from the object before our last write would want to make that write again, and be refused.
 */
export interface OwnWrites<T extends KubeObject> {
  /** The newer of what the cache holds and what we wrote on top of it. */
  latest(cached: T): T;
  wrote(before: T, after: T): void;
  forget(uid: string | undefined): void;
}

export function createOwnWrites<T extends KubeObject>(): OwnWrites<T> {
  /** By UID: our last version, and the versions it was written on top of. */
  const written = new Map<string, { object: T; before: Set<string | undefined> }>();
  return {
    latest: (cached) => {
      const { uid = '', resourceVersion } = cached.metadata;
      const own = written.get(uid);
      if (own === undefined) return cached;
      if (own.before.has(resourceVersion)) return own.object;
      // The cache has reached our version, or someone else has written since.
      written.delete(uid);
      return cached;
    },
    wrote: (before, after) => {
      const { uid = '' } = after.metadata;
      const own = written.get(uid);
      const known =
        own?.object.metadata.resourceVersion === before.metadata.resourceVersion ? own?.before : [];
      written.set(uid, {
        object: after,
        before: new Set([...(known ?? []), before.metadata.resourceVersion]),
      });
    },
    forget: (uid) => void written.delete(uid ?? ''),
  };
}
