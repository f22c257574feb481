import type { KubeObject, Resource } from './contract.ts';

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

/** `/api/v1/…` for the core group, `/apis/<group>/<version>/…` for all others; every segment is escaped. */
export function pathOf<T extends KubeObject>(
  resource: Resource<T>,
  at: { namespace?: string | undefined; name?: string; subresource?: string | undefined } = {},
  query: Query = {},
): string {
  const segments =
    resource.group === '' ? ['api', resource.version] : ['apis', resource.group, resource.version];
  if (at.namespace !== undefined) {
    if (!resource.namespaced) {
      throw new TypeError(`${resource.kind} is not namespaced, but namespace "${at.namespace}" was given`);
    }
    segments.push('namespaces', at.namespace);
  }
  segments.push(resource.plural);
  if (at.name !== undefined) {
    if (at.name === '') throw new TypeError(`an empty name would address all ${resource.plural}`);
    if (resource.namespaced && at.namespace === undefined) {
      throw new TypeError(`${resource.kind} "${at.name}" was asked for without its namespace`);
    }
    segments.push(at.name);
  }
  if (at.subresource !== undefined) segments.push(at.subresource);
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined) parameters.set(key, String(value));
  }
  const search = parameters.size === 0 ? '' : `?${parameters.toString()}`;
  return `/${segments.map(encodeURIComponent).join('/')}${search}`;
}

/** `jobs.batch`, or `secrets` in the core group: how logs and metrics name a kind. */
export function labelOf(resource: Pick<Resource<KubeObject>, 'group' | 'plural'>): string {
  return resource.group === '' ? resource.plural : `${resource.plural}.${resource.group}`;
}

export function apiVersionOf(resource: Pick<Resource<KubeObject>, 'group' | 'version'>): string {
  return resource.group === '' ? resource.version : `${resource.group}/${resource.version}`;
}
