import { describe, expect, test } from '@jest/globals';
import type { InferenceBatchJobSpec } from '../../api/inference-batch-job.ts';
import type { IndexReport, JobState } from '../../queue/contract.ts';
import { counts, CREATED, emptyQueue, indexReport, jobOf, NOW, problemOf } from '../testing/builders.ts';
import { dueEnding, reasonOf, recordedEnding, type Ending } from './ending.ts';

const WINDOW_END = CREATED + 86_400_000;
const firstInvalid: IndexReport['firstInvalid'] = [
  {
    key: 'a.jsonl',
    line: 7,
    customId: 'x',
    error: { code: 'invalid_json_line', message: 'no JSON', param: null },
  },
];

interface Case {
  spec?: Partial<InferenceBatchJobSpec>;
  queue?: Partial<JobState> | 'down';
  now?: number;
}

const dueIn = ({ spec = {}, queue = {}, now = NOW }: Case) =>
  dueEnding({ job: jobOf({ spec }), queue: queue === 'down' ? undefined : emptyQueue(queue), now });

const allDone = { index: indexReport(), doneShards: 4, counts: counts({ completed: 1_000 }) };
const percent = (maxFailedPercent: number) => ({ failurePolicy: { maxFailedPercent } });
const fail = { input: { ...jobOf().spec.input, invalidLines: 'Fail' as const } };

describe('a job ends', () => {
  test.each<[string, Case, string | undefined]>([
    ['not while it has nothing but hope', {}, undefined],
    ['not one millisecond before its window', { now: WINDOW_END - 1 }, undefined],
    ['with its window', { now: WINDOW_END }, 'WindowExpired'],
    ['with its window, suspended or not', { spec: { suspend: true }, now: WINDOW_END }, 'WindowExpired'],
    ['with its window, also while Redis is down', { queue: 'down', now: WINDOW_END }, 'WindowExpired'],
    [
      'with its window, also when its input could never be read',
      { queue: { problem: problemOf({}) }, now: WINDOW_END },
      'WindowExpired',
    ],
    ['with a shorter window when that is set', { spec: { completionWindowSeconds: 60 } }, 'WindowExpired'],
    ['when it is cancelled', { spec: { cancel: true } }, 'Cancelled'],
    [
      'when it is cancelled, also while Redis is down',
      { spec: { cancel: true }, queue: 'down' },
      'Cancelled',
    ],
    ['as cancelled when both are due', { spec: { cancel: true }, now: WINDOW_END }, 'Cancelled'],
    ['when all is done', { queue: allDone }, 'Finalizing'],
    [
      'as complete when cancelled after the last line (cases: R17)',
      { spec: { cancel: true }, queue: allDone },
      'Finalizing',
    ],
    [
      'as complete when the window ends after the last line',
      { queue: allDone, now: WINDOW_END },
      'Finalizing',
    ],
    [
      'as complete with every line failed',
      { queue: { ...allDone, counts: counts({ failed: 1_000 }) } },
      'Finalizing',
    ],
    ['not while a shard is open', { queue: { ...allDone, doneShards: 3 } }, undefined],
    ['not for a problem that waiting can mend', { queue: { problem: problemOf({}) } }, undefined],
    [
      'for one that waiting cannot mend',
      { queue: { problem: problemOf({ task: 'shard', reason: 'InputChanged', retryable: false }) } },
      'InputChanged',
    ],
    [
      'not for a clean-up that failed',
      { queue: { problem: problemOf({ task: 'cleanup', reason: 'AccessDenied', retryable: false }) } },
      undefined,
    ],
    ['for an empty input', { queue: { index: indexReport({ total: 0, shards: 0 }) } }, 'EmptyInput'],
    ['not for invalid lines', { queue: { index: indexReport({ invalid: 3, firstInvalid }) } }, undefined],
    [
      'for invalid lines where they are not wanted',
      { spec: fail, queue: { index: indexReport({ invalid: 3, firstInvalid }) } },
      'InvalidInput',
    ],
    [
      'not where they are not wanted and there are none',
      { spec: fail, queue: { index: indexReport() } },
      undefined,
    ],
    [
      'not at the share of failed lines that is allowed',
      { spec: percent(10), queue: { index: indexReport(), counts: counts({ failed: 100 }) } },
      undefined,
    ],
    [
      'above it',
      { spec: percent(10), queue: { index: indexReport(), counts: counts({ failed: 101 }) } },
      'FailureThreshold',
    ],
    [
      'above it, counting lines that are invalid and did not come to their turn yet',
      { spec: percent(10), queue: { index: indexReport({ invalid: 101, firstInvalid }) } },
      'FailureThreshold',
    ],
    [
      'at the first failed line where none is allowed',
      { spec: percent(0), queue: { index: indexReport(), counts: counts({ failed: 1 }) } },
      'FailureThreshold',
    ],
    [
      'for too many failed lines, also when the last line has just ended',
      { spec: percent(10), queue: { ...allDone, counts: counts({ completed: 800, failed: 200 }) } },
      'FailureThreshold',
    ],
    [
      'with a reason that Kubernetes takes, whatever a worker calls it',
      { queue: { problem: problemOf({ reason: 'it broke: badly', retryable: false }) } },
      'InternalError',
    ],
  ])('%s', (_name, situation, reason) => {
    const ending = dueIn(situation);
    expect(ending && reasonOf(ending)).toBe(reason);
  });

  test('naming the invalid lines where it does so for them', () => {
    expect(dueIn({ spec: fail, queue: { index: indexReport({ invalid: 3, firstInvalid }) } })?.message).toBe(
      '3 of 1000 lines are invalid and input.invalidLines is Fail: a.jsonl line 7: invalid_json_line',
    );
  });
});

describe('the end on record', () => {
  const endings: Ending[] = [
    { kind: 'Complete', message: 'm' },
    { kind: 'Cancelled', message: 'm' },
    { kind: 'Expired', message: 'm' },
    { kind: 'Failed', reason: 'InputChanged', message: 'm' },
  ];
  test.each(endings)('is read back as it was written: $kind', (ending) => {
    const running = {
      type: 'Running',
      status: 'False' as const,
      reason: reasonOf(ending),
      message: 'm',
      lastTransitionTime: '2026-11-30T12:00:00Z',
    };
    expect(recordedEnding({ state: 'Finalizing', conditions: [running] })).toEqual(ending);
    expect(recordedEnding({ state: 'Running', conditions: [running] })).toBeUndefined();
  });
});
