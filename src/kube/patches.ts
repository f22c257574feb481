import type { CallOptions, KubeClient, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { mergePatchOf } from './merge-patch.ts';

export { mergePatchOf } from './merge-patch.ts';

type WithStatus = KubeObject & { status?: object | undefined };
type StatusOf<T extends WithStatus> = NonNullable<T['status']>;

/** Whether something was written, and the object as it is now. */
export interface Applied<T> {
  written: boolean;
  object: T;
}

/**
 * Makes the status of `object` (as read) equal to `status`, by the smallest merge patch, and by none at all when
 * nothing changed. The patch holds only for the very version that was read: a later change by anyone else is a
 * KubeError 409, and so is an object of the same name with another UID.
 */
export async function applyStatusIfChanged<T extends WithStatus>(
  client: KubeClient,
  resource: Resource<T>,
  object: T,
  status: StatusOf<T>,
  options: CallOptions = {},
): Promise<Applied<T>> {
  const change = mergePatchOf({ status: object.status }, { status });
  if (change === undefined) return { written: false, object };
  const { namespace, name, uid, resourceVersion } = object.metadata;
  const patch = { metadata: { uid, resourceVersion }, ...change };
  const updated = await client.mergePatch(resource, namespace, name, patch, {
    ...options,
    subresource: 'status',
  });
  return { written: true, object: updated };
}

/**
 * Writes what `decide` makes of the object, starting from `object` as cached and, after each conflict, from the live
 * one: repeating a write with the version that was just refused can never succeed. Undefined when the object is gone
 * or was replaced. After `attempts` conflicts the last 409 is thrown, and the key should be queued again.
 */
export async function convergeStatus<T extends WithStatus>(
  client: KubeClient,
  resource: Resource<T>,
  object: T,
  decide: (live: T) => StatusOf<T>,
  options: CallOptions & { attempts?: number } = {},
): Promise<Applied<T> | undefined> {
  const { attempts = 4, ...call } = options;
  const { namespace, name, uid } = object.metadata;
  let live = object;
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await applyStatusIfChanged(client, resource, live, decide(live), call);
    } catch (error) {
      if (error instanceof KubeError && error.status === 404) return undefined;
      const conflict = error instanceof KubeError && error.status === 409;
      if (!conflict || attempt >= attempts) throw error;
    }
    const read = await client.get(resource, namespace, name, call);
    if (read === undefined || read.metadata.uid !== uid) return undefined;
    live = read;
  }
}
