import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { indexJob, chatLine } from './builders.ts';
import {
  answerRecord,
  invalidLineRecord,
  lineIdentity,
  recordId,
  unfinishedRecord,
  type LineIdentity,
} from './records.ts';
import type { LineRecord } from './model.ts';

const UID = '0b0b2c6e-93a4-4cb5-8f0e-6b9a5c1d2e3f';
const LINE: LineIdentity = { jobUID: UID, ordinal: 41, line: 77, customId: 'claim-77' };
const ID = 'batch_req_0b0b2c6e93a44cb58f0e6b9a5c1d2e3f00000029';
const CHAT = '/v1/chat/completions';

const text = (record: LineRecord): string => Buffer.from(record.bytes).toString();
const answered = (status: number, body: string, identity = LINE): LineRecord =>
  answerRecord(identity, CHAT, { status, requestId: 'req-1', body: Buffer.from(body) });

describe('the record of an answer', () => {
  test('is one line with the engine’s own bytes', () => {
    const body = '{"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"x":1e400}';
    const record = answered(200, `${body}\n`);
    expect(text(record)).toBe(
      `{"id":"${ID}","custom_id":"claim-77","response":{"status_code":200,"request_id":"req-1","body":${body}},"error":null}`,
    );
    expect(record).toMatchObject({
      ordinal: 41,
      line: 77,
      outcome: 'completed',
      usage: { inputTokens: 3, cachedInputTokens: 0, outputTokens: 2 },
    });
    expect(record.error).toBeUndefined();
  });

  test.each<[string, number, string, { code: string; message: string }]>([
    [
      'max_tokens over the limit (openai-openapi#302)',
      400,
      '{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}}',
      { code: '400', message: 'max_tokens is too large' },
    ],
    [
      'a prompt over the context (ray#59194)',
      400,
      '{"error":{"message":"m","code":"context_length_exceeded"}}',
      { code: 'context_length_exceeded', message: 'm' },
    ],
    [
      '422 with a body (batch-gateway#205)',
      422,
      '{"detail":[{"msg":"x"}]}',
      { code: 'http_422', message: 'The engine answered 422.' },
    ],
    [
      '403 without a body (batch-gateway#590)',
      403,
      '',
      { code: 'http_403', message: 'The engine answered 403 with an empty body.' },
    ],
    [
      'an error inside a 200 (control-layer#934)',
      200,
      '{"error":{"message":"boom","code":"x"}}',
      { code: 'x', message: 'boom' },
    ],
    ['a 200 that is no object', 200, 'garbage', { code: 'invalid_answer', message: 'garbage' }],
    ['a 500', 500, '{"error":{"message":"m","type":"internal"}}', { code: 'internal', message: 'm' }],
  ])('%s: failed, error null, status and body as they came', (_name, status, body, error) => {
    const record = answered(status, body);
    const line = JSON.parse(text(record)) as {
      response: { status_code: number; body: unknown };
      error: unknown;
    };
    expect(line.error).toBeNull();
    expect(line.response.status_code).toBe(status);
    if (body.startsWith('{')) expect(line.response.body).toEqual(JSON.parse(body));
    else expect(line.response.body).toMatchObject({ error: { message: error.message } });
    expect(record).toMatchObject({ outcome: 'failed', error: { customId: 'claim-77', ...error } });
  });

  test('an answer over the limit is failed and says so', () => {
    const record = answerRecord(LINE, CHAT, {
      status: 200,
      requestId: 'r',
      body: Buffer.alloc(0),
      tooLarge: true,
    });
    expect(record).toMatchObject({ outcome: 'failed', error: { code: 'answer_too_large' } });
    expect(text(record)).toContain('longer than 67108864 bytes');
  });

  test('a failed line that used tokens counts them', () => {
    expect(answered(200, '{"error":{"message":"x"},"usage":{"prompt_tokens":5}}').usage.inputTokens).toBe(5);
  });

  test('any id, request id and body give exactly one line that says the same', () => {
    fc.assert(
      fc.property(
        fc.option(fc.string({ unit: 'binary' })),
        fc.string({ unit: 'binary' }),
        fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue()),
        (customId, requestId, body) => {
          const record = answerRecord({ ...LINE, customId }, CHAT, {
            status: 200,
            requestId,
            body: Buffer.from(JSON.stringify(body, undefined, 2)),
          });
          expect(text(record)).not.toMatch(/[\n\r\u0085\u2028\u2029]/);
          expect(JSON.parse(text(record))).toMatchObject({
            custom_id: customId,
            response: { request_id: requestId, body: JSON.parse(JSON.stringify(body)) as object },
          });
        },
      ),
    );
  });
});

describe('the record of a line that did not run', () => {
  test.each([
    [{ kind: 'Cancelled' } as const, 'cancelled', 'batch_cancelled', 'was cancelled'],
    [{ kind: 'Expired' } as const, 'expired', 'batch_expired', 'window ended'],
    [
      { kind: 'Failed', reason: 'InputChanged', message: 'etag differs' } as const,
      'failed',
      'batch_failed',
      'InputChanged: etag differs',
    ],
  ])(
    '$kind keeps its custom_id and names line and key (batch-gateway#598)',
    (cause, outcome, code, message) => {
      const record = unfinishedRecord(LINE, 'in/part-1.jsonl', cause);
      expect(JSON.parse(text(record))).toEqual({
        id: ID,
        custom_id: 'claim-77',
        response: null,
        error: {
          code,
          message: expect.stringContaining(message),
          param: null,
          line: 77,
          key: 'in/part-1.jsonl',
        },
      });
      expect(record).toMatchObject({ outcome, error: { customId: 'claim-77', code } });
    },
  );

  test('an invalid line keeps its error; a missing custom_id is null', () => {
    const error = { code: 'invalid_url', message: 'url \u2028 must …', param: 'url' };
    const record = invalidLineRecord({ ...LINE, customId: null }, 'k', error);
    expect(JSON.parse(text(record))).toMatchObject({
      custom_id: null,
      response: null,
      error: { ...error, line: 77, key: 'k' },
    });
    expect(record.outcome).toBe('failed');
    expect(text(record)).not.toContain('\u2028');
  });
});

test('ids are the same for the same line and differ for every other line and job', () => {
  expect(recordId(UID, 41)).toBe(ID);
  fc.assert(
    fc.property(fc.uuid(), fc.uuid(), fc.nat(1e9), fc.nat(1e9), (a, b, m, n) => {
      expect(recordId(a, m) === recordId(b, n)).toBe(a === b && m === n);
    }),
  );
});

test('lineIdentity numbers lines over the whole job', async () => {
  const { shards } = await indexJob({ k: `${chatLine('a')}\n\n${chatLine('b')}\n`, l: chatLine('c') });
  expect(lineIdentity(UID, shards[0]!, 1)).toEqual({ jobUID: UID, ordinal: 1, line: 3, customId: 'b' });
  expect(lineIdentity(UID, shards[1]!, 0)).toEqual({ jobUID: UID, ordinal: 2, line: 1, customId: 'c' });
});
