import { describe, expect, test } from '@jest/globals';
import { readEnvironment, UsageError, withOverrides } from './environment.ts';

const least = { REDIS_URL: 'redis://127.0.0.1:6379' };

describe('environment of a role', () => {
  test('needs nothing but Redis', () => {
    expect(readEnvironment(least)).toMatchObject({
      redisPrefix: 'tg',
      httpPort: 8080,
      allowLoopback: false,
      failPoints: undefined,
    });
  });

  const wrong: [string, Record<string, string>, string][] = [
    ['Redis missing', {}, 'REDIS_URL: is not set'],
    ['Redis of another scheme', { REDIS_URL: 'http://x' }, 'REDIS_URL: must be a redis://'],
    ['a port that is none', { ...least, TIDEGATE_HTTP_PORT: '70000' }, 'TIDEGATE_HTTP_PORT: '],
    ['settings that are no JSON', { ...least, TIDEGATE_SETTINGS: '{' }, 'TIDEGATE_SETTINGS: is no JSON'],
    ['settings of an unknown room', { ...least, TIDEGATE_SETTINGS: '{"wroker":{}}' }, 'wroker'],
  ];
  test.each(wrong)('%s is named', (_, env, message) => {
    expect(() => readEnvironment(env)).toThrow(UsageError);
    expect(() => readEnvironment(env)).toThrow(message);
  });

  test('overrides replace defaults of the same name and type only', () => {
    const defaults = { pollMilliseconds: 1000, names: ['a'], deep: { a: 1, b: 2 } };
    const read = (settings: object) =>
      readEnvironment({ ...least, TIDEGATE_SETTINGS: JSON.stringify({ queue: settings }) });
    expect(withOverrides('queue', defaults, read({ pollMilliseconds: 5 }))).toEqual({
      pollMilliseconds: 5,
      names: ['a'],
      deep: { a: 1, b: 2 },
    });
    expect(withOverrides('queue', defaults, read({ deep: { b: 3 } })).deep).toEqual({ a: 1, b: 3 });
    expect(() => withOverrides('queue', defaults, read({ deep: { c: 3 } }))).toThrow(
      'queue.deep.c is unknown; allowed: a, b',
    );
    expect(withOverrides('worker', defaults, read({ pollMilliseconds: 5 }))).toEqual(defaults);
    expect(() => withOverrides('queue', defaults, read({ pollMs: 5 }))).toThrow(
      'queue.pollMs is unknown; allowed: pollMilliseconds, names, deep',
    );
    expect(() => withOverrides('queue', defaults, read({ names: 5 }))).toThrow(
      'queue.names is a number; allowed: a list',
    );
  });
});
