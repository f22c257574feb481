import { describe, expect, test } from '@jest/globals';
import { KubeError } from './contract.ts';
import { isExpired, isTooLargeResourceVersion, kubeErrorOf, noAnswer, redact } from './failures.ts';

describe('redact', () => {
  test.each([
    ['a bearer token', 'Authorization: Bearer abc.DEF-_~+/=', 'Authorization: Bearer [redacted]'],
    ['basic credentials', 'authorization: basic dXNlcjpwYXNz', 'authorization: basic [redacted]'],
    [
      'a JSON web token',
      'token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2ln refused',
      'token [redacted] refused',
    ],
    ['a password in a URL', 'https://user:pass@proxy:3128/x', 'https://[redacted]@proxy:3128/x'],
    ['nothing else', 'configmaps "bearer" is forbidden', 'configmaps "bearer" is forbidden'],
  ])('takes out %s', (_name, text, expected) => {
    expect(redact(text)).toBe(expected);
  });
});

describe('noAnswer', () => {
  const coded = (code: string, cause?: Error): Error =>
    Object.assign(new Error('failed', { cause }), { code });
  test.each([
    ['ECONNREFUSED', 'ConnectionRefused'],
    ['ENOTFOUND', 'ConnectionRefused'],
    ['UND_ERR_CONNECT_TIMEOUT', 'ConnectionRefused'],
    ['DEPTH_ZERO_SELF_SIGNED_CERT', 'ConnectionRefused'],
    ['CERT_HAS_EXPIRED', 'ConnectionRefused'],
    ['ECONNRESET', 'ConnectionLost'],
    ['UND_ERR_SOCKET', 'ConnectionLost'],
    ['EPIPE', 'ConnectionLost'],
  ])('%s is %s: only what was surely not sent may be repeated freely', (code, reason) => {
    const error = noAnswer(coded(code), 'GET /x');
    expect([error.status, error.reason, error.message]).toEqual([0, reason, `GET /x: ${code}: failed`]);
    const wrapped = new Error('wrapped', { cause: coded(code) });
    expect(noAnswer(wrapped, 'GET /x').reason).toBe(reason);
  });

  test('keeps an error that is known already', () => {
    const known = new KubeError(0, 'Timeout', 'x');
    expect(noAnswer(known, 'GET /x')).toBe(known);
  });
});

describe('a Status', () => {
  const status = (code: number, reason: string, details?: unknown, message = 'm') =>
    kubeErrorOf(0, { kind: 'Status', code, reason, message, details }, 'watch');

  test.each([
    [status(410, 'Expired'), true, false],
    [status(410, 'Gone'), true, false],
    [status(0, 'Expired'), true, false],
    [status(504, 'Timeout', { causes: [{ reason: 'ResourceVersionTooLarge' }] }), false, true],
    [status(504, 'Timeout', null, 'Too large resource version: 9, current: 3'), false, true],
    [status(504, 'Timeout'), false, false],
    [status(500, 'InternalError'), false, false],
  ])('%s: expired %s, too large %s', (error, expired, tooLarge) => {
    expect([isExpired(error), isTooLargeResourceVersion(error)]).toEqual([expired, tooLarge]);
  });

  test('with strange details is read without harm', () => {
    const error = status(422, 'Invalid', {
      causes: [null, 'x', { field: 1, message: 'only this' }],
      retryAfterSeconds: -1,
    });
    expect([error.causes, error.retryAfterSeconds]).toEqual([[{ message: 'only this' }], undefined]);
  });

  test.each([
    ['7', 7],
    ['0', 0],
    ['Wed, 21 Oct 2026 07:28:00 GMT', undefined],
    ['-1', undefined],
    ['1e9', undefined],
  ])('Retry-After: %s', (header, seconds) => {
    expect(kubeErrorOf(429, undefined, 'GET /x', header).retryAfterSeconds).toBe(seconds);
  });
});
