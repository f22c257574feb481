import { describe, expect, test } from '@jest/globals';
import type { InferenceBatchJobStatus, JobState } from '../../api/inference-batch-job.ts';
import { eventsOf } from './events.ts';

type Word = `${'+' | '-'}${string}`;

/** `+Accepted` is a condition that is True; `-Running:Unauthorized` one that is False for that reason. */
function statusOf(state: JobState, ...words: Word[]): InferenceBatchJobStatus {
  return {
    state,
    ...(['Completed', 'Cancelled', 'Expired', 'Failed'].includes(state) ? { completionTime: 'now' } : {}),
    conditions: words.map((word) => {
      const [type = '', reason = type] = word.slice(1).split(':');
      const status = word.startsWith('+') ? ('True' as const) : ('False' as const);
      return { type, status, reason, message: 'm', lastTransitionTime: 't' };
    }),
  };
}

describe('events tell', () => {
  test.each<[string, InferenceBatchJobStatus | undefined, InferenceBatchJobStatus, string[]]>([
    ['that a job was accepted', undefined, statusOf('Validating', '+Accepted'), ['Normal Accepted']],
    [
      'why it was not, once',
      undefined,
      statusOf('Pending', '-Accepted:ModelDeploymentNotFound'),
      ['Warning ModelDeploymentNotFound'],
    ],
    [
      'nothing twice',
      statusOf('Pending', '-Accepted:ModelDeploymentNotFound'),
      statusOf('Pending', '-Accepted:ModelDeploymentNotFound'),
      [],
    ],
    ['not that indexing goes on', undefined, statusOf('Validating', '-Indexed:Indexing'), []],
    [
      'what keeps the input from being read',
      statusOf('Validating', '-Indexed:Indexing'),
      statusOf('Validating', '-Indexed:NoSuchBucket'),
      ['Warning NoSuchBucket'],
    ],
    ['that it was read', statusOf('Validating'), statusOf('Queued', '+Indexed'), ['Normal Indexed']],
    [
      'that lines run',
      statusOf('Queued', '-Running:Queued'),
      statusOf('Running', '+Running'),
      ['Normal Running'],
    ],
    [
      'not that they run again',
      statusOf('Throttled', '-Running:WaitingForPlaces'),
      statusOf('Running', '+Running'),
      [],
    ],
    [
      'that the engine is in trouble',
      statusOf('Running', '+Running'),
      statusOf('Throttled', '-Running:Unauthorized'),
      ['Warning Unauthorized'],
    ],
    [
      'not that a job waits for its turn',
      statusOf('Running', '+Running'),
      statusOf('Throttled', '-Running:WaitingForPlaces'),
      [],
    ],
    ['of suspend', statusOf('Running'), statusOf('Suspended', '+Suspended'), ['Normal Suspended']],
    [
      'of resume',
      statusOf('Suspended', '+Suspended'),
      statusOf('Running', '-Suspended:NotSuspended'),
      ['Normal Resumed'],
    ],
    [
      'of completion',
      statusOf('Finalizing'),
      statusOf('Completed', '+Complete:Completed'),
      ['Normal Completed'],
    ],
    [
      'of a cancel as wanted',
      statusOf('Finalizing'),
      statusOf('Cancelled', '+Failed:Cancelled'),
      ['Normal Cancelled'],
    ],
    [
      'of every other end as a warning',
      statusOf('Finalizing'),
      statusOf('Expired', '+Failed:WindowExpired'),
      ['Warning WindowExpired'],
    ],
    [
      'nothing after the end',
      statusOf('Expired', '+Failed:WindowExpired'),
      statusOf('Expired', '+Failed:WindowExpired'),
      [],
    ],
  ])('%s', (_name, before, after, expected) => {
    expect(eventsOf(before, after).map(({ type, reason }) => `${type} ${reason}`)).toEqual(expected);
  });
});
