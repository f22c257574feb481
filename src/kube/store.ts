import type { Change, KubeObject, Store } from './contract.ts';
import { keyOf } from './contract.ts';

/** The values under which an object is found; none, one or several. Must be pure. */
export type Indexer<T> = (object: T) => readonly string[];

/** Objects as last seen, frozen, and what changes when they are seen anew. Written by its reflector alone. */
export class ObjectStore<T extends KubeObject> implements Store<T> {
  readonly #objects = new Map<string, T>();
  readonly #indexers: ReadonlyMap<string, Indexer<T>>;
  /** index → value → key → object. */
  readonly #indexes = new Map<string, Map<string, Map<string, T>>>();
  #listed: readonly T[] | undefined;
  readonly #texts = new SharedTexts();

  readonly #onIndexerError: (index: string, object: T, error: unknown) => void;

  constructor(
    indexers: Readonly<Record<string, Indexer<T>>> = {},
    onIndexerError: (index: string, object: T, error: unknown) => void = () => undefined,
  ) {
    this.#indexers = new Map(Object.entries(indexers));
    this.#onIndexerError = onIndexerError;
    for (const name of this.#indexers.keys()) this.#indexes.set(name, new Map());
  }

  get size(): number {
    return this.#objects.size;
  }

  get(key: string): T | undefined {
    return this.#objects.get(key);
  }

  list(): readonly T[] {
    this.#listed ??= Object.freeze([...this.#objects.values()]);
    return this.#listed;
  }

  byIndex(index: string, value: string): readonly T[] {
    const values = this.#indexes.get(index);
    if (values === undefined) {
      const known = [...this.#indexes.keys()].join(', ') || 'none';
      throw new RangeError(`no index "${index}"; there are: ${known}`);
    }
    return [...(values.get(value)?.values() ?? [])];
  }

  /**
   * Takes in one object. The same version changes nothing. Another UID under the key means that we missed the end of
   * the old one, so that whatever hung on it is told before the new one begins.
   */
  put(object: T): Change<T>[] {
    const key = keyOf(object);
    const old = this.#objects.get(key);
    if (old !== undefined && old.metadata.uid !== object.metadata.uid) {
      this.#remove(key, old);
      this.#insert(key, freeze(object, this.#texts));
      return [
        { type: 'Deleted', object: old },
        { type: 'Added', object },
      ];
    }
    if (old === undefined) {
      this.#insert(key, freeze(object, this.#texts));
      return [{ type: 'Added', object }];
    }
    if (old.metadata.resourceVersion === object.metadata.resourceVersion) return [];
    this.#remove(key, old);
    this.#insert(key, freeze(object, this.#texts));
    return [{ type: 'Updated', object, old }];
  }

  /** Takes out one object; `object` is its last state. Nothing happens where another UID has taken its place. */
  delete(object: T): Change<T>[] {
    const key = keyOf(object);
    const old = this.#objects.get(key);
    if (old === undefined || old.metadata.uid !== object.metadata.uid) return [];
    this.#remove(key, old);
    return [{ type: 'Deleted', object: freeze(object, this.#texts) }];
  }

  /** Takes in a whole list; what is not in it is gone. Ends are told before beginnings. */
  replace(objects: readonly T[]): Change<T>[] {
    const keys = new Set(objects.map(keyOf));
    const changes: Change<T>[] = [];
    for (const [key, old] of [...this.#objects]) {
      if (keys.has(key)) continue;
      this.#remove(key, old);
      changes.push({ type: 'Deleted', object: old });
    }
    for (const object of objects) changes.push(...this.put(object));
    return changes;
  }

  #insert(key: string, object: T): void {
    this.#objects.set(key, object);
    this.#listed = undefined;
    for (const [name, values] of this.#indexes) {
      for (const value of this.#valuesOf(name, object)) {
        const found = values.get(value);
        if (found === undefined) values.set(value, new Map([[key, object]]));
        else found.set(key, object);
      }
    }
  }

  #remove(key: string, object: T): void {
    this.#objects.delete(key);
    this.#listed = undefined;
    for (const [name, values] of this.#indexes) {
      for (const value of this.#valuesOf(name, object)) {
        const found = values.get(value);
        found?.delete(key);
        if (found?.size === 0) values.delete(value);
      }
    }
  }

  /** An object that an indexer cannot read is found under no value, rather than lost to everyone. */
  #valuesOf(index: string, object: T): readonly string[] {
    try {
      return this.#indexers.get(index)?.(object) ?? [];
    } catch (error) {
      this.#onIndexerError(index, object, error);
      return [];
    }
  }
}

/**
 * Without managedFields (often half of an object, and read by nobody here) and frozen to the bottom: everyone shares
 * these objects.
 */
function freeze<T extends KubeObject>(object: T, texts: SharedTexts): T {
  if (Object.isFrozen(object)) return object;
  // A copy: after a deletion V8 would keep the rest as a hash table, several times the size.
  const { managedFields: _, ...metadata } = object.metadata as T['metadata'] & { managedFields?: unknown };
  object.metadata = metadata as T['metadata'];
  deepFreeze(metadata);
  deepFreeze(object, texts);
  return object;
}

/** Names in metadata differ from object to object; of the other texts most are the same in thousands of them. */
function deepFreeze(value: unknown, texts?: SharedTexts): void {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return;
  const fields = value as Record<string, unknown>;
  for (const [name, child] of Object.entries(fields)) {
    if (typeof child !== 'string') deepFreeze(child, texts);
    else if (texts !== undefined) fields[name] = texts.share(child);
  }
  Object.freeze(value);
}

/** Beyond these bounds a text is hardly one of a few; the pool starts anew when it is full, so that it stays small. */
const [LONGEST_SHARED, TEXTS_KEPT] = [128, 4_096];

/** One copy of each text that was seen lately, instead of one for each object. */
class SharedTexts {
  readonly #texts = new Map<string, string>();

  share(text: string): string {
    if (text.length > LONGEST_SHARED) return text;
    const known = this.#texts.get(text);
    if (known !== undefined) return known;
    if (this.#texts.size >= TEXTS_KEPT) this.#texts.clear();
    this.#texts.set(text, text);
    return text;
  }
}
