import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { jsonEqual, mergePatchOf } from './merge-patch.ts';

/** RFC 7386, section 2, as written there. */
function applyMergePatch(target: unknown, patch: unknown): unknown {
  if (typeof patch !== 'object' || patch === null || Array.isArray(patch)) return patch;
  const isObject = typeof target === 'object' && target !== null && !Array.isArray(target);
  const result = new Map(isObject ? Object.entries(target) : []);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) result.delete(name);
    else result.set(name, applyMergePatch(result.get(name), value));
  }
  return Object.fromEntries(result);
}

/** As the server stores it: fields set to null or undefined are no fields. */
function withoutNulls(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, field]) => field !== null && field !== undefined)
      .map(([name, field]) => [name, withoutNulls(field)]),
  );
}

describe('mergePatchOf', () => {
  test.each([
    ['a changed field', { a: 1, b: 2 }, { a: 1, b: 3 }, { b: 3 }],
    ['a new field', {}, { a: { b: 1 } }, { a: { b: 1 } }],
    ['a removed field', { a: 1, b: 2 }, { a: 1 }, { b: null }],
    ['a field set to undefined', { a: 1 }, { a: undefined }, { a: null }],
    ['only the deep change', { a: { b: 1, c: 2 } }, { a: { b: 1, c: 3 } }, { a: { c: 3 } }],
    ['an emptied object', { a: { b: 1 } }, { a: {} }, { a: { b: null } }],
    ['a new empty object', {}, { a: {} }, { a: {} }],
    ['an object in place of a value', { a: 1 }, { a: {} }, { a: {} }],
    ['a list, whole', { a: [1, 2] }, { a: [1, 3] }, { a: [1, 3] }],
    ['no change', { a: [{ b: 1, c: 2 }] }, { a: [{ c: 2, b: 1 }] }, undefined],
    ['no change but an undefined field', { a: 1 }, { a: 1, b: undefined }, undefined],
  ])('holds %s', (_name, old, wanted, patch) => {
    expect(mergePatchOf(old, wanted)).toEqual(patch);
  });

  const key = fc.constantFrom('a', 'b', '__proto__', 'constructor', 'toString');
  const { tree } = fc.letrec<{ tree: unknown; fields: Record<string, unknown> }>((tie) => ({
    tree: fc.oneof(
      { depthSize: 'small' },
      fc.constantFrom(null, undefined, true, 0, 1, '', 'x'),
      fc.array(fc.constantFrom<unknown>(1, 'x', { a: 1 })),
      tie('fields'),
    ),
    fields: fc.dictionary(key, tie('tree'), { maxKeys: 4 }),
  }));
  const object = fc.dictionary(key, tree, { maxKeys: 5 });

  test('turns the old object into the wanted one, and is undefined exactly when they are equal', () => {
    fc.assert(
      fc.property(object, object, (old, wanted) => {
        const patch = mergePatchOf(old, wanted);
        expect(jsonEqual(applyMergePatch(withoutNulls(old), patch ?? {}), withoutNulls(wanted))).toBe(true);
        expect(patch === undefined).toBe(jsonEqual(withoutNulls(old), withoutNulls(wanted)));
        expect(Object.getPrototypeOf(patch ?? {})).toBe(Object.prototype);
      }),
      { numRuns: 500 },
    );
  });

  test('changes no prototype, whatever the keys are called', () => {
    const patch = mergePatchOf({}, JSON.parse('{"__proto__":{"polluted":true}}') as object);
    expect(JSON.stringify(patch)).toBe('{"__proto__":{"polluted":true}}');
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });
});
