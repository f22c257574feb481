/** Judges manifests without a cluster, as the API server does with strict field validation. */
import type { z } from 'zod';
import { API_VERSION } from './group.ts';
import { manifestSchema } from './kind.ts';
import { KINDS } from './kinds.ts';

/** One thing that is wrong with a manifest. */
export interface ManifestProblem {
  /** Path as the API server writes it, such as `spec.input.s3.keys[0]`. */
  field: string;
  message: string;
}

/** Everything that the API server would refuse in this manifest; it alone can judge changes of an existing object. */
export function manifestProblems(manifest: unknown): ManifestProblem[] {
  if (typeof manifest !== 'object' || manifest === null || Array.isArray(manifest)) {
    return [{ field: '', message: 'a manifest is an object with apiVersion, kind, metadata and spec' }];
  }
  const named = manifest as { apiVersion?: unknown; kind?: unknown };
  const kind = KINDS.find(({ resource }) => resource.kind === named.kind);
  if (!kind || named.apiVersion !== API_VERSION) {
    const known = KINDS.map(({ resource }) => `${API_VERSION} ${resource.kind}`).join(', ');
    return [
      { field: 'kind', message: `found ${String(named.apiVersion)} ${String(named.kind)}; known: ${known}` },
    ];
  }
  const { error } = manifestSchema(kind).safeParse(withoutNulls(manifest));
  return (error?.issues ?? []).map((issue) => ({ field: fieldOf(issue), message: issue.message }));
}

/** The API server takes a null field for an absent one; a null in a list stays and is refused. */
function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, child]) => child !== null)
      .map(([name, child]) => [name, withoutNulls(child)]),
  );
}

const fieldOf = (issue: z.core.$ZodIssue): string =>
  issue.path
    .map((step) => (typeof step === 'number' ? `[${step}]` : `.${String(step)}`))
    .join('')
    .replace(/^\./, '');
