/** JSON merge patches (RFC 7386) as pure functions. */

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** In a merge patch null means "remove", so an absent, an undefined and a null value are one and the same. */
const isAbsent = (value: unknown): value is null | undefined => value === undefined || value === null;

/**
 * The smallest merge patch that turns `old` into `wanted`, or undefined when they already say the same.
 * Lists are replaced whole where they differ.
 */
export function mergePatchOf(old: object | undefined, wanted: object): object | undefined {
  const before = (old ?? {}) as Record<string, unknown>;
  const after = wanted as Record<string, unknown>;
  const changes: [string, unknown][] = [];
  for (const key of Object.keys(before)) {
    if (!isAbsent(before[key]) && (!Object.hasOwn(after, key) || isAbsent(after[key])))
      changes.push([key, null]);
  }
  for (const [key, value] of Object.entries(after)) {
    if (isAbsent(value)) continue;
    const previous = Object.hasOwn(before, key) ? before[key] : undefined;
    if (isObject(value)) {
      const nested = mergePatchOf(isObject(previous) ? previous : undefined, value);
      if (nested !== undefined) changes.push([key, nested]);
      else if (!isObject(previous)) changes.push([key, {}]);
    } else if (!jsonEqual(previous, value)) {
      changes.push([key, value]);
    }
  }
  // fromEntries defines own properties, so a key named __proto__ stays plain data.
  return changes.length === 0 ? undefined : Object.fromEntries(changes);
}

/** Equality of what JSON.stringify would write, whatever the order of keys. */
export function jsonEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (Array.isArray(a) || Array.isArray(b)) {
    if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return false;
    return a.every((item, index) => jsonEqual(item ?? null, (b as unknown[])[index] ?? null));
  }
  if (!isObject(a) || !isObject(b)) return a === b;
  const keysOf = (value: Record<string, unknown>): string[] =>
    Object.keys(value).filter((key) => value[key] !== undefined);
  const keys = keysOf(a);
  return (
    keys.length === keysOf(b).length &&
    keys.every((key) => Object.hasOwn(b, key) && jsonEqual(a[key], b[key]))
  );
}
