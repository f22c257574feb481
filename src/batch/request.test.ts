import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { chatLine } from './builders.ts';
import { BatchError } from './errors.ts';
import { locateBody, requestBody } from './request.ts';

const NAMES = { model: 'llama-3-8b', aliases: ['llama', 'a"b'] };
const sent = (line: string): string => Buffer.concat(requestBody(Buffer.from(line), NAMES)).toString();
const lineWith = (body: string): string => `{"custom_id":"a","method":"POST","url":"/x","body":${body}}`;

describe('requestBody', () => {
  test.each([
    ['integers above 2^53 (batch-gateway R37)', '{"model":"llama-3-8b","seed":9007199254740993}'],
    ['1e400', '{"model":"llama-3-8b","x":1e400,"y":-0.0,"z":1E+2}'],
    ['duplicate keys and their order', '{"b":1,"a":2,"b":3,"model":"x","model":"llama-3-8b"}'],
    ['lone surrogate escapes', '{"model":"llama-3-8b","x":"\\ud800 \\udfff"}'],
    ['escapes as they are spelled', '{"model":"llama-3-8b","x":"\\u0041\\/\\n"}'],
    ['white space', '{ "model" :\t"llama-3-8b" , "x" : [ 1 , 2 ] }'],
    ['raw U+2028 in a string', '{"model":"llama-3-8b","x":"\u2028"}'],
    [
      'arrays of parts (batch-gateway R30)',
      '{"model":"llama-3-8b","messages":[{"content":[{"type":"text"}]}]}',
    ],
    ['a body without model', '{"messages":[]}'],
    ['a model that is no name we know', '{"model":"gpt-4"}'],
    ['a model that is no string', '{"model":["llama"]}'],
    ['the model deeper down', '{"model":"llama-3-8b","x":{"model":"llama"}}'],
    ['an alias behind which the real model stands', '{"model":"llama","model":"llama-3-8b"}'],
    ['the model in an escaped spelling', '{"model":"llam\\u0061-3-8b"}'],
  ])('forwards byte for byte: %s', (_name, body) => {
    expect(sent(lineWith(body))).toBe(body);
  });

  test.each([
    ['an alias (litellm#36159)', '{"model":"llama","x":1}', '{"model":"llama-3-8b","x":1}'],
    ['an alias in an escaped spelling', '{"model":"llam\\u0061"}', '{"model":"llama-3-8b"}'],
    ['under a key in an escaped spelling', '{"mo\\u0064el":"llama"}', '{"mo\\u0064el":"llama-3-8b"}'],
    [
      'the last of duplicate keys',
      '{"model":"llama","model":"llama"}',
      '{"model":"llama","model":"llama-3-8b"}',
    ],
    ['between white space', '{ "model" : "llama" }', '{ "model" : "llama-3-8b" }'],
    ['an alias with a quote', '{"model":"a\\"b"}', '{"model":"llama-3-8b"}'],
  ])('replaces %s', (_name, body, expected) => {
    expect(sent(lineWith(body))).toBe(expected);
  });

  test('takes the last of two bodies', () => {
    expect(sent('{"body":{"model":"x"},"body":{"model":"llama"}}')).toBe('{"model":"llama-3-8b"}');
  });

  test('sends views, not copies, of the line', () => {
    const line = Buffer.from(chatLine('a'));
    const [only, ...rest] = requestBody(line, NAMES);
    expect(rest).toEqual([]);
    expect(only!.buffer).toBe(line.buffer);
  });

  test.each(['', 'x', '[]', '{}', '{"body":"x"}', '{"body":{}'])(
    'refuses %j, which the index never lets run',
    (line) => {
      expect(() => sent(line)).toThrow(BatchError);
    },
  );

  test('everything but the alias stays byte for byte, whatever else stands in the body', () => {
    const key = fc.constantFrom('"model"', '"mo\\u0064el"', '"x"', '"stream"', '"\\ud800"');
    const value = fc.oneof(
      fc.json({ maxDepth: 2 }),
      fc.constantFrom(
        '9007199254740993',
        '1e400',
        '"\\ud800"',
        '{"model":"llama"}',
        '"llama"',
        '"llama-3-8b"',
        '"\u2028"',
      ),
    );
    const space = fc.constantFrom('', ' ', '\t');
    fc.assert(
      fc.property(fc.array(fc.tuple(key, value, space), { maxLength: 6 }), (members) => {
        const text = `{${members.map(([k, v, s]) => `${s}${k}${s}:${s}${v}${s}`).join(',')}}`;
        const last = members.findLastIndex(([k]) => k.startsWith('"m'));
        const expected =
          last >= 0 && members[last]![1].trim() === '"llama"'
            ? `{${members.map(([k, v, s], i) => `${s}${k}${s}:${s}${i === last ? '"llama-3-8b"' : v}${s}`).join(',')}}`
            : text;
        expect(sent(lineWith(text))).toBe(expected);
      }),
      { numRuns: 1000 },
    );
  });
});

test('locateBody names the spans of body and model', () => {
  const line = Buffer.from('{"body": {"model":"m"} }');
  expect(locateBody(line)).toEqual({ start: 9, end: 22, modelStart: 18, modelEnd: 21 });
});
