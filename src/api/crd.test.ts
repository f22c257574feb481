import { describe, expect, test } from '@jest/globals';
import { crdOf, openAPISchemaOf, type Schema } from './crd.ts';
import { KINDS } from './kinds.ts';

interface Place {
  path: string;
  schema: Schema;
}

function* placesOf(schema: Schema, path: string): Generator<Place> {
  yield { path, schema };
  for (const [name, child] of Object.entries(schema.properties ?? {})) {
    if (path === '' && name === 'metadata') continue;
    yield* placesOf(child, path === '' ? name : `${path}.${name}`);
  }
  if (schema.items) yield* placesOf(schema.items, `${path}[]`);
  if (schema.additionalProperties) yield* placesOf(schema.additionalProperties, `${path}.*`);
}

const LIST_TYPES = ['atomic', 'set', 'map'];

describe.each(KINDS)('the CRD of $resource.kind', (kind) => {
  const places = [...placesOf(openAPISchemaOf(kind), '')].filter(({ path }) => path !== '');
  const missing = (isFine: (schema: Schema) => boolean, ofType?: string): string[] =>
    places
      .filter(({ path }) => path.startsWith('spec') || path.startsWith('status'))
      .filter(({ schema }) => ofType === undefined || schema.type === ofType)
      .filter(({ schema }) => !isFine(schema))
      .map(({ path }) => path);

  test('describes every field', () => {
    const undescribed = places.filter(({ path, schema }) => !schema.description && !path.endsWith('*'));
    expect(undescribed.map(({ path }) => path)).toEqual([]);
  });

  test('bounds every string', () => {
    expect(missing((s) => s.maxLength !== undefined || s.enum !== undefined, 'string')).toEqual([]);
  });

  test('bounds every list, and declares how it merges', () => {
    expect(
      missing(
        (s) => s.maxItems !== undefined && LIST_TYPES.includes(s['x-kubernetes-list-type'] ?? ''),
        'array',
      ),
    ).toEqual([]);
  });

  test('bounds every number, names its width, and has no floats', () => {
    expect(
      missing((s) => s.minimum !== undefined && s.maximum !== undefined && s.format !== undefined, 'integer'),
    ).toEqual([]);
    expect(places.filter(({ schema }) => schema.type === 'number')).toEqual([]);
  });

  test('bounds every map', () => {
    expect(missing((s) => s.additionalProperties === undefined || s.maxProperties !== undefined)).toEqual([]);
  });

  test('says of every field of spec whether it may change', () => {
    const silent = places.filter(
      ({ path, schema }) =>
        path.startsWith('spec.') &&
        !/\[\]|\.\*/.test(path) &&
        !/(Immutable|May change .*|May be set once.*)\.$/.test(schema.description ?? ''),
    );
    expect(silent.map(({ path }) => path)).toEqual([]);
  });

  test('says the default of every field that has one', () => {
    const silent = places.filter(
      ({ schema }) =>
        ['string', 'number', 'boolean'].includes(typeof schema.default) &&
        !schema.description?.includes(`Default: ${String(schema.default)}.`),
    );
    expect(silent.map(({ path }) => path)).toEqual([]);
  });

  test('has nothing that would make it not structural', () => {
    const text = JSON.stringify(crdOf(kind));
    for (const forbidden of ['anyOf', 'oneOf', 'allOf', 'nullable', '$ref', '"additionalProperties":false']) {
      expect(text).not.toContain(forbidden);
    }
    expect(text).not.toContain('mutability');
  });

  test('is in the category, and has a short name and a status subresource', () => {
    const { spec } = crdOf(kind);
    expect(spec.names.categories).toEqual(['inference']);
    expect(spec.names.shortNames).toEqual([kind.shortName]);
    expect(spec.versions[0]?.subresources).toEqual({ status: {} });
  });

  test('names every condition and reason in PascalCase and explains each', () => {
    for (const [name, meaning] of Object.entries({ ...kind.conditions, ...kind.reasons, ...kind.states })) {
      expect(name).toMatch(/^[A-Z][A-Za-z0-9]*$/);
      expect(meaning).toMatch(/\.$/);
    }
  });
});
