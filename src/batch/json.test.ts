import { isUtf8 } from 'node:buffer';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { FieldScanner, oneLineJson, valueOf } from './json.ts';

const FIELDS = [
  { key: 'a', slot: 0 },
  { key: 'b', slot: 1, inside: [{ key: 'c', slot: 2 }] },
];

const accepts = (bytes: Uint8Array): boolean =>
  isUtf8(bytes) && new FieldScanner(FIELDS).scan(bytes, 0, bytes.length) >= 0;

const parses = (bytes: Uint8Array): boolean => {
  if (!isUtf8(bytes)) return false;
  try {
    JSON.parse(new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes));
    return true;
  } catch {
    return false;
  }
};

/** Pieces that make texts which are almost JSON. */
const pieces = fc.array(
  fc.constantFrom(
    ...[
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '"',
      '"a"',
      '"b"',
      '"\\u0063"',
      '"c":',
      ' ',
      '\t',
      '\n',
      '\r',
      '0',
      '-',
      '-0',
    ],
    ...[
      '1',
      '01',
      '1.',
      '.5',
      '1.5',
      '1e',
      '1e5',
      '1E+5',
      '1e-400',
      'true',
      'tru',
      'false',
      'null',
      'nul',
      '\\',
    ],
    ...[
      '"\\u12"',
      '"\\uD800"',
      '"\\x"',
      '"\\/"',
      '"\u0000"',
      '"\u001f"',
      '"\u2028"',
      '"é"',
      '\u00a0',
      '\ufeff',
      '\f',
    ],
  ),
  { maxLength: 14 },
);

describe('FieldScanner', () => {
  test.each([
    '{}',
    '[]',
    '"x"',
    'null',
    ' 1 ',
    '-0.5E-7',
    '1e400',
    '{"a":[{},[],[[]],{"x":[1,2,{"y":null}]}]}',
    '{"a":1,"a":2}',
    '"\\ud800"',
    '"\u2028\u2029\u0085"',
    '',
    ' ',
    '{',
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,',
    '{"a":1,}',
    '{"a" 1}',
    '{a:1}',
    '[1,]',
    '[1 2]',
    '[1}',
    '{"a":1]',
    '01',
    '+1',
    '1.',
    '.1',
    '1e',
    '--1',
    'nulll',
    'truefalse',
    '"\t"',
    '"\\u00g0"',
    '"\\u00',
    '"\\',
    '"abc',
    "{'a':1}",
    '{"a":NaN}',
    '{"a":1}{"a":2}',
    '/* */1',
    '\ufeff{}',
  ])('accepts %j exactly when JSON.parse does', (text) => {
    const bytes = Buffer.from(text);
    expect(accepts(bytes)).toBe(parses(bytes));
  });

  test('accepts exactly what JSON.parse accepts, on texts that are almost JSON', () => {
    fc.assert(
      fc.property(pieces, (parts) => {
        const bytes = Buffer.from(parts.join(''));
        expect(accepts(bytes)).toBe(parses(bytes));
      }),
      { numRuns: 3000 },
    );
  });

  test('accepts exactly what JSON.parse accepts, on JSON with one byte changed, dropped or added', () => {
    fc.assert(
      fc.property(fc.json(), fc.nat(), fc.nat(255), fc.nat(2), (text, where, byte, how) => {
        const bytes = [...Buffer.from(text)];
        bytes.splice(where % (bytes.length + 1), how === 2 ? 0 : 1, ...(how === 1 ? [] : [byte]));
        const changed = Uint8Array.from(bytes);
        expect(accepts(changed)).toBe(parses(changed));
      }),
      { numRuns: 3000 },
    );
  });

  test('any bytes are scanned without an exception, and the wrong position lies inside', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
        const result = new FieldScanner(FIELDS).scan(bytes, 0, bytes.length);
        expect(result < 0 ? ~result : result).toBeLessThanOrEqual(bytes.length);
      }),
    );
  });

  test('finds the fields that JSON.parse finds, the last of duplicates, also in an escaped spelling', () => {
    const key = fc.constantFrom('"a"', '"b"', '"c"', '"\\u0061"', '"\\u0062"', '"d"');
    const value = fc.oneof(
      fc.json({ maxDepth: 2 }),
      fc.array(fc.tuple(key, fc.json({ maxDepth: 1 })), { maxLength: 4 }).map(asObject),
    );
    fc.assert(
      fc.property(fc.array(fc.tuple(key, value), { maxLength: 6 }), (members) => {
        const bytes = Buffer.from(asObject(members));
        const scanner = new FieldScanner(FIELDS);
        expect(scanner.scan(bytes, 0, bytes.length)).toBe(0);
        const found = (slot: number): unknown =>
          scanner.starts[slot]! < 0 ? undefined : valueOf(bytes, scanner.starts[slot]!, scanner.ends[slot]!);
        const parsed = JSON.parse(bytes.toString()) as Record<string, unknown>;
        expect(found(0)).toEqual(parsed['a']);
        expect(found(1)).toEqual(parsed['b']);
        const inner = parsed['b'];
        const isObject = typeof inner === 'object' && inner !== null && !Array.isArray(inner);
        expect(found(2)).toEqual(isObject ? (inner as Record<string, unknown>)['c'] : undefined);
      }),
      { numRuns: 1000 },
    );
  });

  test('nesting of any depth costs no stack', () => {
    const depth = 200_000;
    const bytes = Buffer.from(`{"x":${'['.repeat(depth)}${']'.repeat(depth)},"a":1}`);
    const scanner = new FieldScanner(FIELDS);
    expect(scanner.scan(bytes, 0, bytes.length)).toBe(0);
    expect(scanner.starts[0]).toBe(bytes.length - 2);
  });
});

const asObject = (members: [string, string][]): string =>
  `{${members.map(([key, value]) => `${key} : ${value}`).join(' ,')}}`;

test('oneLineJson keeps every string and escapes what clients take for line breaks', () => {
  expect(oneLineJson('a\u2028b\u2029c\u0085d\ud800')).toBe('"a\\u2028b\\u2029c\\u0085d\\ud800"');
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      expect(JSON.parse(oneLineJson(text))).toBe(text);
      expect(oneLineJson(text)).not.toMatch(/[\n\r\u0085\u2028\u2029]/);
    }),
  );
});
