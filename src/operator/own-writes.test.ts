import { expect, test } from '@jest/globals';
import { createOwnWrites } from './own-writes.ts';

const version = (resourceVersion: string) => ({
  apiVersion: 'v1',
  kind: 'Thing',
  metadata: { name: 'a', uid: 'u', resourceVersion },
});

test('what was written counts until the cache has caught up', () => {
  const own = createOwnWrites();
  own.wrote(version('1'), version('2'));
  own.wrote(version('2'), version('3'));
  expect(own.latest(version('1')).metadata.resourceVersion).toBe('3');
  expect(own.latest(version('2')).metadata.resourceVersion).toBe('3');
  expect(own.latest(version('3')).metadata.resourceVersion).toBe('3');
  expect(own.latest(version('1')).metadata.resourceVersion).toBe('1');
});

test('what others wrote on top counts at once', () => {
  const own = createOwnWrites();
  own.wrote(version('1'), version('2'));
  expect(own.latest(version('9')).metadata.resourceVersion).toBe('9');
});
