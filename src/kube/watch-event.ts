import type { KubeObject } from './contract.ts';
import { KubeError } from './contract.ts';
import { kubeErrorOf } from './failures.ts';

export type WatchEvent<T> =
  | { type: 'ADDED' | 'MODIFIED' | 'DELETED'; object: T }
  /** Says only up to which resourceVersion the stream has come. */
  | { type: 'BOOKMARK'; resourceVersion: string };

/** Reason of the KubeError for a line that is no event; its status is 0. */
export const malformedEvent = 'MalformedEvent';

/** One line of a watch. An ERROR event is thrown as the KubeError that it tells. */
export function parseWatchEvent<T extends KubeObject>(line: Buffer, target: string): WatchEvent<T> {
  const malformed = (what: string): KubeError =>
    new KubeError(0, malformedEvent, `${target}: ${what} (a line of ${line.length} bytes)`);
  let event: { type?: unknown; object?: unknown };
  try {
    event = JSON.parse(line.toString('utf8')) as typeof event;
  } catch {
    throw malformed('a line that is no JSON');
  }
  if (typeof event !== 'object' || event === null) throw malformed('a line that is no object');
  const { type, object } = event;
  switch (type) {
    case 'ERROR':
      throw kubeErrorOf(0, object, target);
    case 'BOOKMARK': {
      const resourceVersion = metadataOf(object)?.resourceVersion;
      if (!resourceVersion) throw malformed('a bookmark without resourceVersion');
      return { type, resourceVersion };
    }
    case 'ADDED':
    case 'MODIFIED':
    case 'DELETED': {
      const metadata = metadataOf(object);
      if (!metadata?.name || !metadata.resourceVersion)
        throw malformed('an object without name or resourceVersion');
      return { type, object: object as T };
    }
    default:
      throw malformed('an event of unknown type');
  }
}

function metadataOf(object: unknown): Partial<KubeObject['metadata']> | undefined {
  if (typeof object !== 'object' || object === null || !('metadata' in object)) return undefined;
  const { metadata } = object;
  return typeof metadata === 'object' && metadata !== null ? metadata : undefined;
}
