import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { answerBody, errorInside, hasErrorInside, isJsonObject, readAnswer, usageOf } from './answer.ts';
import { MAX_FOREIGN_TEXT_BYTES } from './answer.ts';

const kept = (text: string | Uint8Array, status = 200): string =>
  Buffer.from(answerBody(status, Buffer.from(text))).toString();

describe('answerBody', () => {
  test.each([
    ['number spellings (batch-gateway R37)', '{"a":9007199254740993,"b":1e400,"c":-0.0,"d":1E+2,"e":0.10}'],
    ['string spellings', '{"a":"\\u00e9\\/\\ud800","b":"é"}'],
    ['duplicate keys and their order', '{"b":1,"a":2,"b":3}'],
    ['spaces and tabs between tokens', '{ "a" :\t[ 1 , 2 ] }'],
    ['\\n and \\r in strings', '{"a":"x\\ny\\r\\n"}'],
    ['characters near U+2028 and U+0085', '{"a":"\u2027\u202a\u0084\u0086\u00a0\u20a8"}'],
  ])('keeps %s', (_name, text) => {
    expect(kept(text)).toBe(text);
  });

  test.each([
    ['line breaks between tokens', '{\n  "a": [\r\n    1,\r    2\n  ]\n}\n', '{  "a": [    1,    2  ]}'],
    ['a line break between a key and its value', '{"a"\n:\n1}', '{"a":1}'],
    ['white space around', ' \n{"a":1}\r\n\t', '{"a":1}'],
    ['a BOM before', '\ufeff{"a":1}', '{"a":1}'],
  ])('removes %s', (_name, text, expected) => {
    expect(kept(text)).toBe(expected);
  });

  test('escapes U+2028, U+2029 and U+0085, which clients take for line breaks (modaic#188, gluonts#920)', () => {
    expect(kept('{"a":"x\u2028y\u2029z\u0085","\u2028":1}')).toBe(
      '{"a":"x\\u2028y\\u2029z\\u0085","\\u2028":1}',
    );
    expect(kept('{\n"a":"\u2028"\n,"b":"\u0085"}')).toBe('{"a":"\\u2028","b":"\\u0085"}');
  });

  test.each<[string, string | Uint8Array, number, Record<string, unknown>]>([
    [
      'an empty 403 (batch-gateway#589)',
      '',
      403,
      {
        message: 'The engine answered 403 with an empty body.',
        type: 'invalid_request_error',
        param: null,
        code: 'http_403',
      },
    ],
    [
      'a page of HTML',
      '<html>',
      502,
      { message: '<html>', type: 'server_error', param: null, code: 'http_502' },
    ],
    ['an array', '[1]', 200, { message: '[1]', code: 'invalid_answer' }],
    ['a string', '"x"', 200, { message: '"x"', code: 'invalid_answer' }],
    ['null', 'null', 200, { message: 'null' }],
    ['two objects', '{}{}', 200, { message: '{}{}' }],
    ['a cut object', '{"a":', 200, { message: '{"a":' }],
    ['server-sent events', 'data: {"a":1}\n\n', 200, { message: 'data: {"a":1}\n\n' }],
    ['invalid UTF-8', Buffer.from('{"a":"\u00ff"}', 'latin1'), 200, { message: '{"a":"\ufffd"}' }],
  ])('keeps %s as the text of an error', (_name, text, status, error) => {
    expect(JSON.parse(kept(text, status))).toEqual({ error: expect.objectContaining(error) });
    expect(kept(text, status)).not.toContain('\n');
  });

  test.each([
    ['ASCII', 'x'.repeat(1_000_000)],
    ['three-byte characters', '€'.repeat(10_000)],
    ['four-byte characters', '🌊'.repeat(10_000)],
    ['characters that move', `ab${'€'.repeat(10_000)}`],
  ])('keeps at most 8 KiB of foreign text, whole characters only: %s', (_name, text) => {
    const { error } = JSON.parse(kept(text, 500)) as { error: { message: string } };
    expect(Buffer.byteLength(error.message)).toBeLessThanOrEqual(MAX_FOREIGN_TEXT_BYTES);
    expect(Buffer.byteLength(error.message)).toBeGreaterThan(MAX_FOREIGN_TEXT_BYTES - 4);
    expect(text.startsWith(error.message)).toBe(true);
  });

  test('of foreign bytes that are no text at most 8 KiB are kept, too', () => {
    const { error } = JSON.parse(kept(Buffer.alloc(100_000, 0xff), 500)) as { error: { message: string } };
    expect(Buffer.byteLength(error.message)).toBeLessThanOrEqual(MAX_FOREIGN_TEXT_BYTES);
  });

  test('any JSON object keeps its tokens, on one line, however it is printed', () => {
    const value = fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue({ noUnicodeString: false }));
    const indent = fc.constantFrom(undefined, 1, '\t', ' \n\r');
    fc.assert(
      fc.property(value, indent, (object, space) => {
        const printed = JSON.stringify(object, undefined, space);
        const line = kept(printed);
        expect(JSON.parse(line)).toEqual(JSON.parse(printed));
        expect(line).not.toMatch(/[\n\r\u0085\u2028\u2029]/);
        expect(tokens(line)).toEqual(tokens(printed));
      }),
    );
  });

  test('any bytes become one JSON object on one line', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array(),
          fc.json().map((t) => Buffer.from(t)),
        ),
        fc.constantFrom(200, 400, 500),
        (bytes, status) => {
          const line = kept(bytes, status);
          expect(line).not.toMatch(/[\n\r\u0085\u2028\u2029]/);
          const value = JSON.parse(line) as unknown;
          expect(typeof value === 'object' && value !== null && !Array.isArray(value)).toBe(true);
        },
      ),
    );
  });

  test('a large answer printed over many lines is one pass, not one piece per line', () => {
    const printed = `{"embedding":[${Array(200_000).fill('\n0.125').join(',')}]}`;
    expect(kept(printed)).toBe(printed.replaceAll('\n', ''));
  });
});

/** Tokens of a JSON text, with the three escapes undone. */
const tokens = (text: string): string[] =>
  (text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs) ?? []).map((token) =>
    token.replace(/\\u(2028|2029|0085)/g, (_all, hex: string) => String.fromCharCode(parseInt(hex, 16))),
  );

describe('an error inside an answer', () => {
  test.each<[string, boolean]>([
    ['{"error":{"message":"x"}}', true],
    ['{"error":"x"}', true],
    ['{"choices":[],"error":{}}', true],
    ['{"\\u0065rror":{"message":"x"}}', true],
    ['{"error":null,"error":{"message":"x"}}', true],
    ['{"error":{"message":"x"},"error":null}', false],
    ['{"error":null}', false],
    ['{"choices":[{"error":{"message":"x"}}]}', false],
    ['{}', false],
    ['[{"error":1}]', false],
    ['nope', false],
  ])('%s: %s (fusillade#196)', (text, expected) => {
    expect(hasErrorInside(Buffer.from(text))).toBe(expected);
  });

  test.each<[string, number, { code: string; message: string } | undefined]>([
    [
      '{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}',
      400,
      { code: '400', message: 'too long' },
    ],
    [
      '{"error":{"message":"m","code":"context_length_exceeded"}}',
      400,
      { code: 'context_length_exceeded', message: 'm' },
    ],
    [
      '{"error":{"message":"m","type":"server_error","code":null}}',
      500,
      { code: 'server_error', message: 'm' },
    ],
    ['{"error":{}}', 500, { code: 'http_500', message: 'The engine answered 500 with an error.' }],
    ['{"error":"boom"}', 200, { code: 'http_200', message: 'boom' }],
    ['{"error":7}', 200, { code: 'http_200', message: 'The engine answered 200 with an error.' }],
    ['{"detail":"Not Found"}', 404, undefined],
    ['', 403, { code: 'http_403', message: 'The engine answered 403 with an empty body.' }],
  ])('%s with status %d is described', (text, status, expected) => {
    expect(errorInside(status, Buffer.from(text))).toEqual(expected);
  });
});

test.each<[string, boolean]>([
  ['{}', true],
  [' {"a":1}\n', true],
  ['\ufeff{}', true],
  ['[]', false],
  ['', false],
  ['{', false],
  ['{"a":"\t"}', false],
])('isJsonObject(%j) is %s', (text, expected) => {
  expect(isJsonObject(Buffer.from(text))).toBe(expected);
});

describe('usage', () => {
  const none = { inputTokens: 0, cachedInputTokens: 0, outputTokens: 0 };
  test.each<[string, Parameters<typeof usageOf>[0], unknown, typeof none]>([
    [
      'chat completions with cached tokens',
      '/v1/chat/completions',
      {
        prompt_tokens: 12,
        completion_tokens: 7,
        total_tokens: 19,
        prompt_tokens_details: { cached_tokens: 4 },
      },
      { inputTokens: 12, cachedInputTokens: 4, outputTokens: 7 },
    ],
    [
      'completions without details',
      '/v1/completions',
      { prompt_tokens: 12, completion_tokens: 7, prompt_tokens_details: null },
      { inputTokens: 12, cachedInputTokens: 0, outputTokens: 7 },
    ],
    ['embeddings', '/v1/embeddings', { prompt_tokens: 5, total_tokens: 5 }, { ...none, inputTokens: 5 }],
    [
      'responses',
      '/v1/responses',
      { input_tokens: 3, output_tokens: 2, input_tokens_details: { cached_tokens: 1 }, total_tokens: 5 },
      { inputTokens: 3, cachedInputTokens: 1, outputTokens: 2 },
    ],
    ['responses in names of chat', '/v1/responses', { prompt_tokens: 3 }, none],
    ['null', '/v1/completions', null, none],
    ['a number', '/v1/completions', 7, none],
    ['an array', '/v1/completions', [], none],
    [
      'counts that are none',
      '/v1/completions',
      { prompt_tokens: -1, completion_tokens: 1.5, prompt_tokens_details: 'x' },
      none,
    ],
    ['counts as text', '/v1/completions', { prompt_tokens: '12', completion_tokens: 1e300 }, none],
  ])('%s', (_name, endpoint, usage, expected) => {
    expect(usageOf(endpoint, Buffer.from(JSON.stringify({ usage, choices: [] })))).toEqual(expected);
  });

  test('the last usage of an answer counts, and only the one at the top', () => {
    const text =
      '{"choices":[{"usage":{"prompt_tokens":9}}],"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}';
    expect(usageOf('/v1/completions', Buffer.from(text)).inputTokens).toBe(2);
    expect(usageOf('/v1/completions', Buffer.from('{"choices":[{"usage":{"prompt_tokens":9}}]}'))).toEqual(
      none,
    );
  });

  test('an answer that is no object, or has a bad line, costs nothing (litellm#37457)', () => {
    for (const text of ['', 'x', '{"usage":', '[{"usage":{"prompt_tokens":1}}]']) {
      expect(readAnswer('/v1/completions', 200, Buffer.from(text))).toMatchObject({
        usage: none,
        isJsonObject: false,
      });
    }
  });
});
