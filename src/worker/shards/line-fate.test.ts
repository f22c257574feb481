import { describe, expect, test } from '@jest/globals';
import type { EngineOutcome } from '../../engine/contract.ts';
import { judge, type LineFate, retryPause } from './line-fate.ts';

const retry = { maxAttempts: 3, initialBackoffSeconds: 1, maxBackoffSeconds: 60 };
const answer = {
  kind: 'answer',
  status: 200,
  requestId: 'r',
  body: Buffer.from('{}'),
  contentType: 'application/json',
} as const;
const fault = (extra: Partial<Extract<EngineOutcome, { kind: 'fault' }>>): EngineOutcome => ({
  kind: 'fault',
  status: undefined,
  reason: 'ConnectionLost',
  message: 'socket closed',
  ...extra,
});

describe('what an outcome means for a line', () => {
  const cases: [string, EngineOutcome, number, Partial<LineFate> & Record<string, unknown>][] = [
    ['an answer is its record', answer, 0, { kind: 'record' }],
    ['a 400 is its record as well', { ...answer, status: 400 }, 2, { kind: 'record' }],
    [
      '429 costs no attempt (aibrix, llm-d-async#122)',
      { kind: 'busy', status: 429, retryAfterMilliseconds: 5000 },
      2,
      { kind: 'busy', retryAfterMilliseconds: 5000 },
    ],
    [
      'a refused connection costs no attempt',
      { kind: 'hold', scope: 'Replica', reason: 'ConnectionRefused', status: undefined, message: '' },
      2,
      { kind: 'again' },
    ],
    ['our own abort costs no attempt', { kind: 'aborted' }, 2, { kind: 'again' }],
    ['a lost connection is tried again', fault({}), 0, { kind: 'retry', reason: 'ConnectionLost' }],
    [
      'a lost connection on the last attempt is the end',
      fault({}),
      2,
      { kind: 'record', error: { code: 'connection_lost', message: 'socket closed (after 3 attempts)' } },
    ],
    [
      'a 500 on the last attempt is kept as the engine sent it',
      fault({ status: 500, reason: 'ServerError', body: Buffer.from('{"error":1}'), requestId: 'q' }),
      2,
      { kind: 'record', answer: { status: 500, requestId: 'q', body: Buffer.from('{"error":1}') } },
    ],
    [
      'a 200 with an error inside is no success (fusillade#196)',
      fault({ status: 200, reason: 'ErrorInAnswer', body: Buffer.from('{"error":{}}') }),
      2,
      { kind: 'record', error: { code: 'error_in_answer', message: 'socket closed (after 3 attempts)' } },
    ],
    [
      'a time-out on the last attempt says so',
      fault({ reason: 'Timeout' }),
      2,
      { kind: 'record', error: { code: 'request_timeout', message: 'socket closed (after 3 attempts)' } },
    ],
  ];
  test.each(cases)('%s', (_, outcome, attempts, expected) => {
    expect(judge(outcome, { attempts }, { retry })).toMatchObject(expected);
  });

  test('an answer over the limit fails the line with the limit named', () => {
    expect(judge({ ...answer, tooLarge: true }, { attempts: 0 }, { retry })).toMatchObject({
      kind: 'record',
      error: { code: 'answer_too_large', message: expect.stringContaining('67108864') },
    });
  });
});

test('pauses double up to their ceiling and stay within 20 % of it', () => {
  const middle = () => 0.5;
  expect([1, 2, 3, 4, 99].map((nth) => retryPause(nth, 1000, 5000, middle))).toEqual([
    1000, 2000, 4000, 5000, 5000,
  ]);
  expect(retryPause(1, 1000, 5000, () => 0)).toBeCloseTo(800);
  expect(retryPause(1, 1000, 5000, () => 1)).toBeCloseTo(1200);
});
