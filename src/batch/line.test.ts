import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { CHAT_RULES, chatLine } from './builders.ts';
import { LINE_ERROR_CODES } from './errors.ts';
import { checkLine, LineChecker, MAX_CUSTOM_ID_BYTES, MAX_KEPT_CUSTOM_ID_BYTES } from './line.ts';

const check = (text: string | Uint8Array) => checkLine(Buffer.from(text), CHAT_RULES);
const body = (over: Record<string, unknown>) =>
  chatLine('id-1', { body: { model: 'llama-3-8b', messages: [], ...over } });

describe('checkLine lets run', () => {
  test.each([
    ['a plain line', chatLine('id-1')],
    ['an alias of the model (litellm#36159)', body({ model: 'llama' })],
    [
      'an alias with a slash, spelled with escapes',
      chatLine('id-1').replace('llama-3-8b', 'default\\/model'),
    ],
    ['stream false', body({ stream: false })],
    ['stream null', body({ stream: null })],
    [
      'content that is an array of parts (batch-gateway, vision)',
      body({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,x' } }] }] }),
    ],
    [
      'numbers beyond doubles',
      body({}).replace('"messages"', '"seed":9007199254740993,"top_p":1e400,"messages"'),
    ],
    ['unknown fields anywhere', chatLine('id-1', { extra: { stream: true } })],
    ['stream true deeper down', body({ extra_body: { stream: true }, messages: [{ stream: true }] })],
    ['raw U+2028, U+2029 and NEL in strings (birdclaw#61)', body({ messages: ['\u2028\u2029\u0085'] })],
    [
      'white space between tokens',
      JSON.stringify(JSON.parse(chatLine('id-1')), undefined, '\t').replaceAll('\n', ' '),
    ],
    [
      'keys in an escaped spelling',
      chatLine('id-1').replace('"model"', '"mo\\u0064el"').replace('"url"', '"\\u0075rl"'),
    ],
    [
      'the last of duplicate keys where it is the good one',
      `${chatLine('id-0').slice(0, -1)},"custom_id":"id-1"}`,
    ],
    ['a duplicate body whose last is good', `{"body":{"stream":true},${chatLine('id-1').slice(1)}`],
    ['a model field outside of body (groq-php#14 the other way round)', chatLine('id-1', { model: 'gpt-4' })],
  ])('%s', (_name, text) => {
    expect(check(text)).toEqual({ customId: 'id-1' });
  });

  test.each([
    ['of 512 bytes', 'x'.repeat(MAX_CUSTOM_ID_BYTES)],
    ['of 512 bytes in two-byte characters', 'é'.repeat(MAX_CUSTOM_ID_BYTES / 2)],
    ['with quotes and backslashes', 'a"b\\c/d'],
    ['with an emoji', 'claim-🌊'],
    ['with U+2028', 'a\u2028b'],
    ['with a lone surrogate', 'a\ud800b'],
    ['that is a blank', ' '],
    ['named like an object property', '__proto__'],
  ])('a custom_id %s', (_name, customId) => {
    expect(check(chatLine(customId))).toEqual({ customId });
  });
});

describe('checkLine refuses', () => {
  test.each<[string, string | Uint8Array, string, string | null, string | RegExp, string | null]>([
    ['null (headroom#2316)', 'null', 'invalid_json_line', null, 'found null', null],
    ['an array (headroom#2316)', '[1]', 'invalid_json_line', null, 'found an array', null],
    ['a string (headroom#2316)', '"x"', 'invalid_json_line', null, 'found a string', null],
    ['a number', '7', 'invalid_json_line', null, 'found a number', null],
    ['a boolean', 'true', 'invalid_json_line', null, 'found a boolean', null],
    ['what is no JSON (litellm#37527)', 'custom_id,prompt', 'invalid_json_line', null, '"c" at byte 1', null],
    ['a cut line', chatLine('a').slice(0, -2), 'invalid_json_line', null, 'ends too early', null],
    ['two objects on one line', '{}{}', 'invalid_json_line', null, '"{" at byte 3', null],
    ['NaN', body({}).replace('[]', 'NaN'), 'invalid_json_line', null, '"N"', null],
    ['a BOM inside', `\ufeff${chatLine('a')}`, 'invalid_json_line', null, 'byte 0xEF', null],
    [
      'a raw tab in a string',
      chatLine('a').replace('hi', 'h\ti'),
      'invalid_json_line',
      null,
      'byte 0x09',
      null,
    ],
    [
      'invalid UTF-8, keeping the id (litellm#37457)',
      Buffer.from(chatLine('a').replace('hi', 'h\u00ff'), 'latin1'),
      'invalid_json_line',
      null,
      /not valid UTF-8: unexpected byte 0xFF at byte 131/,
      'a',
    ],
    [
      'a surrogate encoded in UTF-8',
      Buffer.concat([Buffer.from(chatLine('a').slice(0, -1)), Buffer.from(',"x":"\xed\xa0\x80"}', 'latin1')]),
      'invalid_json_line',
      null,
      'not valid UTF-8',
      'a',
    ],
    [
      'invalid UTF-8 in the id itself',
      Buffer.from(chatLine('\u00ff'), 'latin1'),
      'invalid_json_line',
      null,
      'not valid UTF-8',
      null,
    ],
    [
      'a line without custom_id',
      chatLine('a', { custom_id: undefined }),
      'missing_required_parameter',
      'custom_id',
      'no custom_id',
      null,
    ],
    [
      'a line whose custom_id is null',
      chatLine('a', { custom_id: null }),
      'missing_required_parameter',
      'custom_id',
      'found null',
      null,
    ],
    [
      'a line without method (litellm#37527)',
      chatLine('a', { method: undefined }),
      'missing_required_parameter',
      'method',
      'no method',
      'a',
    ],
    [
      'a line without url',
      chatLine('a', { url: undefined }),
      'missing_required_parameter',
      'url',
      'no url',
      'a',
    ],
    [
      'a line without body',
      chatLine('a', { body: undefined }),
      'missing_required_parameter',
      'body',
      'no body',
      'a',
    ],
    [
      'params instead of body (instructor#1119)',
      '{"custom_id":"a","params":{}}',
      'missing_required_parameter',
      'method',
      'no method',
      'a',
    ],
    ['an empty object', '{}', 'missing_required_parameter', 'custom_id', 'are required', null],
    [
      'a custom_id that is a number',
      chatLine('a', { custom_id: 7 }),
      'invalid_type',
      'custom_id',
      'found a number',
      null,
    ],
    [
      'a custom_id that is an object',
      chatLine('a', { custom_id: {} }),
      'invalid_type',
      'custom_id',
      'found an object',
      null,
    ],
    ['an empty custom_id', chatLine(''), 'invalid_value', 'custom_id', 'must not be empty', ''],
    [
      'a custom_id of 513 bytes',
      chatLine('x'.repeat(513)),
      'invalid_value',
      'custom_id',
      'has 513 bytes; at most 512',
      'x'.repeat(513),
    ],
    [
      'a custom_id of 513 bytes in 171 characters',
      chatLine('€'.repeat(171)),
      'invalid_value',
      'custom_id',
      'has 513 bytes',
      '€'.repeat(171),
    ],
    [
      'a custom_id too long to keep',
      chatLine('x'.repeat(MAX_KEPT_CUSTOM_ID_BYTES + 1)),
      'invalid_value',
      'custom_id',
      'has 2049 bytes',
      null,
    ],
    [
      'a line break in custom_id',
      chatLine('a\nb'),
      'invalid_value',
      'custom_id',
      'U+000A at position 2',
      'a\nb',
    ],
    ['DEL in custom_id', chatLine('a\u007f'), 'invalid_value', 'custom_id', 'U+007F', 'a\u007f'],
    ['NEL in custom_id', chatLine('\u0085'), 'invalid_value', 'custom_id', 'U+0085', '\u0085'],
    ['GET', chatLine('a', { method: 'GET' }), 'invalid_method', 'method', 'must be POST; found "GET"', 'a'],
    [
      'post in lower case',
      chatLine('a', { method: 'post' }),
      'invalid_method',
      'method',
      'found "post"',
      'a',
    ],
    [
      'another endpoint, naming both (batch-gateway#480)',
      chatLine('a', { url: '/v1/embeddings' }),
      'invalid_url',
      'url',
      /"\/v1\/chat\/completions"; found "\/v1\/embeddings"/,
      'a',
    ],
    [
      'a whole address',
      chatLine('a', { url: 'https://x/v1/chat/completions' }),
      'invalid_url',
      'url',
      'https://x',
      'a',
    ],
    ['a url that is a number', chatLine('a', { url: 1 }), 'invalid_url', 'url', 'found 1', 'a'],
    [
      'a body that is a string (headroom#2316)',
      chatLine('a', { body: '{}' }),
      'invalid_type',
      'body',
      'found a string',
      'a',
    ],
    ['a body that is an array', chatLine('a', { body: [] }), 'invalid_type', 'body', 'found an array', 'a'],
    [
      'an unknown model (aqueduct#118)',
      body({ model: 'gpt-4' }),
      'model_not_found',
      'body.model',
      'found "gpt-4"',
      'id-1',
    ],
    [
      'a body without model (LLMFlux#104)',
      body({ model: undefined }),
      'invalid_request',
      'body.model',
      'it is absent',
      'id-1',
    ],
    [
      'a model that is no string',
      body({ model: 3 }),
      'invalid_request',
      'body.model',
      'found a number',
      'id-1',
    ],
    [
      'a body without messages',
      body({ messages: undefined }),
      'invalid_request',
      'body.messages',
      'absent',
      'id-1',
    ],
    [
      'stream true (batch-gateway#153)',
      body({ stream: true }),
      'streaming_unsupported',
      'body.stream',
      'found true',
      'id-1',
    ],
    [
      'stream 1, which engines take for true',
      body({ stream: 1 }),
      'streaming_unsupported',
      'body.stream',
      'found 1',
      'id-1',
    ],
    [
      'stream "true"',
      body({ stream: 'true' }),
      'streaming_unsupported',
      'body.stream',
      'found "true"',
      'id-1',
    ],
    [
      'stream as an object',
      body({ stream: {} }),
      'streaming_unsupported',
      'body.stream',
      'an object',
      'id-1',
    ],
    [
      'stream true behind stream false',
      body({ stream: false }).replace(/}}$/, ',"stream":true}}'),
      'streaming_unsupported',
      'body.stream',
      'found true',
      'id-1',
    ],
    [
      'stream in an escaped spelling',
      body({ stream: true }).replace('"stream"', '"\\u0073tream"'),
      'streaming_unsupported',
      'body.stream',
      'found true',
      'id-1',
    ],
    [
      'a second custom_id of another type',
      `${chatLine('a').slice(0, -1)},"custom_id":null}`,
      'missing_required_parameter',
      'custom_id',
      'found null',
      null,
    ],
  ])('%s', (_name, text, code, param, message, customId) => {
    const checked = check(text);
    expect(checked.error).toEqual({
      code,
      param,
      message:
        typeof message === 'string' ? expect.stringContaining(message) : expect.stringMatching(message),
    });
    expect(checked.customId).toBe(customId);
    expect(Object.keys(LINE_ERROR_CODES)).toContain(code);
  });

  test.each(['/v1/completions', '/v1/embeddings', '/v1/responses'] as const)(
    'nothing for lack of messages on %s',
    (endpoint) => {
      const line = chatLine('a', { url: endpoint, body: { model: 'm', input: 'x' } });
      expect(checkLine(Buffer.from(line), { endpoint, model: 'm', aliases: [] })).toEqual({ customId: 'a' });
    },
  );

  test('messages stay short whatever the line holds', () => {
    const long = 'y'.repeat(100_000);
    for (const text of [
      body({ model: long }),
      chatLine('a', { url: long }),
      chatLine('a', { method: long }),
      chatLine(long),
      body({ stream: long }),
      body({ stream: 'z' }).replace('"z"', '1'.repeat(100_000)),
    ]) {
      expect(check(text).error!.message.length).toBeLessThan(1000);
    }
  });
});

test('any bytes are checked without an exception', () => {
  fc.assert(
    fc.property(
      fc.oneof(
        fc.uint8Array({ maxLength: 80 }),
        fc.json().map((text) => Buffer.from(text)),
      ),
      (bytes) => {
        expect(check(bytes).error).toBeDefined();
      },
    ),
    { numRuns: 1000 },
  );
});

test('any valid line with one byte changed is refused or still valid, and never throws', () => {
  const valid = Buffer.from(chatLine('id-1'));
  fc.assert(
    fc.property(fc.nat(valid.length - 1), fc.nat(255), (where, byte) => {
      const bytes = Buffer.from(valid);
      bytes[where] = byte;
      const { error } = check(bytes);
      if (error === undefined) expect(() => void JSON.parse(bytes.toString())).not.toThrow();
    }),
    { numRuns: 2000 },
  );
});

test('a checker that is reused knows nothing of the line before', () => {
  const checker = new LineChecker(CHAT_RULES);
  const good = Buffer.from(chatLine('a'));
  const bad = Buffer.from('nope');
  expect(checker.check(good, 0, good.length)).toBeUndefined();
  expect(checker.customId(good)).toBe('a');
  expect(checker.check(bad, 0, bad.length)).toBeDefined();
  expect(checker.customId(bad)).toBeNull();
});
