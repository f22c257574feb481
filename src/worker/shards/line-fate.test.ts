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
    ['an answer is its record', answer, 0, { kind: 'answered', answer }],
    ['a 400 is its record as well', { ...answer, status: 400 }, 2, { kind: 'answered' }],
    [
      '429 costs no attempt (llm-d-async#122)',
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
      { kind: 'unanswered', message: 'socket closed (attempt 3 of 3)' },
    ],
    [
      'a 500 on the last attempt is kept as the engine sent it',
      fault({ status: 500, reason: 'ServerError', body: Buffer.from('{"error":1}'), requestId: 'q' }),
      2,
      { kind: 'answered', answer: { status: 500, requestId: 'q', body: Buffer.from('{"error":1}') } },
    ],
    [
      'a 200 with an error inside is tried again (fusillade#196)',
      fault({ status: 200, reason: 'ErrorInAnswer', body: Buffer.from('{"error":{}}') }),
      1,
      { kind: 'retry', reason: 'ErrorInAnswer' },
    ],
    [
      'a time-out on the last attempt says so',
      fault({ reason: 'Timeout', message: 'no answer within 600 s' }),
      2,
      { kind: 'unanswered', message: 'no answer within 600 s (attempt 3 of 3)' },
    ],
  ];
  test.each(cases)('%s', (_, outcome, attempts, expected) => {
    expect(judge(outcome, { attempts }, { retry })).toMatchObject(expected);
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
