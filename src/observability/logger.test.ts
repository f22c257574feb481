import { describe, expect, test } from '@jest/globals';
import { Writable } from 'node:stream';
import { createLogger, type LogLevel } from './logger.ts';

function capture(level: LogLevel = 'debug') {
  const lines: string[] = [];
  const stream = new Writable({
    write(chunk, _encoding, done) {
      lines.push(String(chunk));
      done();
    },
  });
  const clock = { now: () => 0, monotonic: () => 0 };
  return {
    logger: createLogger({ level, stream, clock, fields: { role: 'worker' } }),
    text: () => lines.join(''),
    last: () => JSON.parse(lines.at(-1) ?? '{}') as Record<string, unknown>,
  };
}

describe('the logger', () => {
  test('writes one JSON object a line with time, level, message and all bound fields', () => {
    const { logger, last } = capture();
    logger.child({ job: 'ns/a' }).child({ shard: 7 }).info('shard done', { lines: 250 });
    expect(last()).toEqual({
      time: '1970-01-01T00:00:00.000Z',
      level: 'info',
      message: 'shard done',
      role: 'worker',
      job: 'ns/a',
      shard: 7,
      lines: 250,
    });
  });

  test('leaves out what is below its level', () => {
    const { logger, text } = capture('warn');
    logger.info('quiet');
    logger.warn('loud');
    expect(text()).not.toContain('quiet');
    expect(text()).toContain('loud');
  });

  test('keeps a field that has the name of one of its own', () => {
    const { logger, last } = capture();
    logger.info('hello', { message: 'other', level: 'x' });
    expect(last()).toMatchObject({
      message: 'hello',
      level: 'info',
      field_message: 'other',
      field_level: 'x',
    });
  });

  test('writes errors with code, stack and cause', () => {
    const { logger, last } = capture();
    const cause = Object.assign(new Error('connect refused'), { code: 'ECONNREFUSED' });
    logger.error('failed', { error: new Error('no engine', { cause }) });
    expect(last()['error']).toMatchObject({
      name: 'Error',
      message: 'no engine',
      stack: expect.stringContaining('logger.test') as unknown,
      cause: { message: 'connect refused', code: 'ECONNREFUSED' },
    });
  });

  test.each<[string, Record<string, unknown>]>([
    ['an authorization header', { headers: { Authorization: 'Bearer s3cr3t-value' } }],
    ['a bearer token in a text', { note: 'sent Bearer s3cr3t-value to it' }],
    ['a secret access key', { AWS_SECRET_ACCESS_KEY: 's3cr3t-value' }],
    ['a secret access key in camel case', { secretAccessKey: 's3cr3t-value' }],
    ['a session token', { sessionToken: 's3cr3t-value' }],
    ['an api key', { 'api-key': 's3cr3t-value' }],
    ['a whole object of credentials', { credentials: { a: 's3cr3t-value' } }],
    ['a password in a url', { url: 'redis://user:s3cr3t-value@redis:6379' }],
    ['a password without a user in a url', { url: 'redis://:s3cr3t-value@redis:6379' }],
    ['a presigned url', { url: 'https://s3/x?X-Amz-Signature=s3cr3t-value&a=b' }],
    ['a key in the message of an error', { error: new Error('api_key=s3cr3t-value is wrong') }],
    ['a key in the cause of an error', { error: new Error('x', { cause: { apiKey: 's3cr3t-value' } }) }],
    ['a secret in a list', { list: [{ token: 's3cr3t-value' }] }],
    ['a secret in a map', { map: new Map([['password', 's3cr3t-value']]) }],
  ])('never writes %s', (_name, fields) => {
    const { logger, text } = capture();
    logger.info('x', fields);
    expect(text()).not.toContain('s3cr3t');
    expect(text()).toContain('[redacted]');
  });

  test('never writes secrets that stand in the message', () => {
    const { logger, text } = capture();
    logger.info(
      'key AKIAABCDEFGHIJKLMNOP, sk-abcdefghijklmnopqrstuvwx, eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig',
    );
    expect(text()).not.toMatch(/AKIAABC|sk-abc|eyJhbG/);
  });

  test('keeps counts of tokens and names of secrets', () => {
    const { logger, last } = capture();
    logger.info('x', {
      inputTokens: 5,
      tokens: { output: 7 },
      secretName: 'aws',
      credentialsSecretRef: { name: 'aws' },
    });
    expect(last()).toMatchObject({
      inputTokens: 5,
      tokens: { output: 7 },
      secretName: 'aws',
      credentialsSecretRef: { name: 'aws' },
    });
  });

  test('survives circles, throwing getters, huge texts and big numbers', () => {
    const { logger, text, last } = capture();
    const circle: Record<string, unknown> = { big: 1n };
    circle['self'] = circle;
    logger.info('circle', circle);
    logger.info('getter', {
      get bad(): string {
        throw new Error('no');
      },
    });
    logger.info('huge', { huge: 'x'.repeat(1_000_000) });
    expect(text().trim().split('\n')).toHaveLength(3);
    expect(JSON.stringify(last()).length).toBeLessThan(10_000);
  });
});
