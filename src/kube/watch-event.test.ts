import { describe, expect, test } from '@jest/globals';
import { KubeError } from './contract.ts';
import { parseWatchEvent } from './watch-event.ts';

const parse = (text: string) => parseWatchEvent(Buffer.from(text), 'watch of jobs');
const thrownBy = (text: string): KubeError => {
  try {
    parse(text);
  } catch (error) {
    if (error instanceof KubeError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
};

describe('parseWatchEvent', () => {
  test.each(['ADDED', 'MODIFIED', 'DELETED'])('reads %s', (type) => {
    const object = { metadata: { name: 'a', resourceVersion: '7' } };
    expect(parse(JSON.stringify({ type, object }))).toEqual({ type, object });
  });

  test('reads a bookmark', () => {
    expect(parse('{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}')).toEqual({
      type: 'BOOKMARK',
      resourceVersion: '9',
    });
  });

  test('throws an ERROR event as the error that it tells', () => {
    const error = thrownBy(
      '{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}',
    );
    expect([error.status, error.reason, error.message]).toEqual([410, 'Expired', 'watch of jobs: too old']);
  });

  test.each([
    ['no JSON', '{"type":"ADDED","object":{"data":{"password":"hunter2'],
    ['null', 'null'],
    ['an unknown type', '{"type":"MOVED","object":{}}'],
    ['an object without metadata', '{"type":"ADDED","object":{"data":{"password":"hunter2"}}}'],
    ['an object without resourceVersion', '{"type":"ADDED","object":{"metadata":{"name":"a"}}}'],
    ['a bookmark without resourceVersion', '{"type":"BOOKMARK","object":{"metadata":{}}}'],
    ['an object that is a list', '{"type":"ADDED","object":[]}'],
  ])('refuses %s without quoting it', (_name, text) => {
    const error = thrownBy(text);
    expect([error.status, error.reason]).toEqual([0, 'MalformedEvent']);
    expect(error.message).not.toContain('hunter2');
    expect(error.message).toContain(`a line of ${text.length} bytes`);
  });
});
