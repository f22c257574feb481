import { describe, expect, test } from '@jest/globals';
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import { FINALIZER } from '../../api/group.ts';
import type { KubeClient, Recorder } from '../../kube/contract.ts';
import { memoryLogger } from '../../kube/testing/manual-time.ts';
import { createMetrics } from '../../observability/metrics.ts';
import { NotLeading } from '../leadership.ts';
import { createOwnWrites } from '../own-writes.ts';
import { jobOf, knownDescriptor } from '../testing/builders.ts';
import { MemoryQueue } from '../testing/memory-queue.ts';
import { apply, type JobTools } from './apply.ts';
import { EMPTY_MEMORY, type JobPlan } from './snapshot.ts';

interface Bench {
  tools: JobTools;
  queue: MemoryQueue;
  /** Every write and event, in order. */
  told: string[];
  later: string[];
}

/** An API server that takes everything and counts versions; `lead` ends after so many looks at the token. */
function bench(change: Partial<JobTools> & { looks?: number } = {}): Bench {
  const { looks = Number.POSITIVE_INFINITY, ...tools } = change;
  const told: string[] = [];
  const later: string[] = [];
  const queue = new MemoryQueue();
  queue.calls.push = (...calls: string[]) => told.push(...calls);
  let version = 100;
  let left = looks;
  const client = {
    mergePatch: async (
      _resource: unknown,
      _namespace: unknown,
      _name: unknown,
      patch: object,
      options?: object,
    ) => {
      const { metadata, status } = patch as InferenceBatchJob;
      told.push(options === undefined ? `finalizers ${metadata.finalizers?.join(',') ?? ''}` : 'status');
      const before = jobOf();
      const merged = { ...before.metadata, ...metadata, resourceVersion: String(++version) };
      return { ...before, metadata: merged, ...(status === undefined ? {} : { status }) };
    },
    delete: async (_resource: unknown, _namespace: unknown, name: string, options?: object) => {
      told.push(`delete ${name} ${JSON.stringify(options)}`);
    },
  } as unknown as KubeClient;
  const recorder: Recorder = {
    event: (_about, type, reason) => told.push(`event ${type} ${reason}`),
    close: async () => undefined,
  };
  return {
    queue,
    told,
    later,
    tools: {
      client,
      queue,
      recorder,
      metrics: createMetrics({ role: 'operator', version: 'test', process: false }),
      logger: memoryLogger(),
      failPoint: () => Promise.resolve(),
      budget: { take: () => true },
      own: createOwnWrites(),
      fence: () => {
        if (left-- <= 0) throw new NotLeading();
        return { transitions: 1, leaderUID: 'me' };
      },
      forgetLater: (uid) => later.push(uid),
      now: () => 0,
      priority: 1_000,
      ...tools,
    },
  };
}

const job = jobOf({ metadata: { finalizers: [] } });
const everything: JobPlan = {
  addFinalizer: true,
  descriptor: knownDescriptor(job),
  withdraw: true,
  markMissing: [2],
  clear: ['problem'],
  tasks: [{ task: { kind: 'index', uid: 'uid-1' }, delayMilliseconds: 0 }],
  feed: [0, 1],
  status: { draft: { state: 'Running' }, urgent: true },
  events: [{ type: 'Normal', reason: 'Running', message: 'm' }],
  forget: true,
  removeFinalizer: true,
  deleteObject: true,
  memory: EMPTY_MEMORY,
};
const IN_ORDER = [
  `finalizers ${FINALIZER}`,
  'putJob Run',
  'withdraw',
  'markMissing 2',
  'clear problem',
  'task index',
  'feed 0,1',
  'status',
  'event Normal Running',
  'removeJob',
  'finalizers ',
  'delete claims {"uid":"uid-1"}',
];

describe('a plan is carried out', () => {
  test('in this order: finalizer, queue, status once, events, and the finalizer again last', async () => {
    const { tools, told } = bench();
    await apply(tools, job, everything);
    expect(told).toEqual(IN_ORDER);
  });

  test('not at all when it wants nothing', async () => {
    const { tools, told } = bench({ looks: 0 });
    expect(await apply(tools, job, { memory: EMPTY_MEMORY })).toMatchObject({
      object: job,
      statusWritten: false,
    });
    expect(told).toEqual([]);
  });

  test.each([...IN_ORDER.keys()].slice(0, -1))(
    'only up to where leading ends, and nothing after it: %i looks',
    async (looks) => {
      const { tools, told } = bench({ looks });
      await expect(apply(tools, job, everything)).rejects.toThrow(NotLeading);
      const allowed = IN_ORDER.filter((line) => !line.startsWith('event'));
      expect(told.filter((line) => !line.startsWith('event'))).toEqual(allowed.slice(0, looks));
    },
  );

  test('only up to where Redis has seen a newer leader', async () => {
    const { tools, told, queue } = bench();
    queue.highestFence = 9;
    await expect(apply(tools, job, everything)).rejects.toThrow('9 was seen');
    expect(told).toEqual([`finalizers ${FINALIZER}`]);
  });

  test('without events when the status could not be written', async () => {
    const { tools, told } = bench();
    const refused = {
      ...tools,
      client: {
        ...tools.client,
        mergePatch: () => Promise.reject(new Error('409')),
      } as unknown as KubeClient,
    };
    const { status, events = [] } = everything;
    await expect(
      apply(refused, job, { ...(status === undefined ? {} : { status }), events, memory: EMPTY_MEMORY }),
    ).rejects.toThrow('409');
    expect(told).toEqual([]);
  });

  test('up to progress that finds no budget; transitions need none', async () => {
    const { tools, told } = bench({ budget: { take: () => false } });
    const draft = { state: 'Running' as const };
    const deferred = await apply(tools, job, { status: { draft, urgent: false }, memory: EMPTY_MEMORY });
    expect([deferred.statusDeferred, told]).toEqual([true, []]);
    const urgent = await apply(tools, job, { status: { draft, urgent: true }, memory: EMPTY_MEMORY });
    expect([urgent.statusWritten, told]).toEqual([true, ['status']]);
  });

  test('to the end of a deletion also when Redis is down; it is told to forget later', async () => {
    const { tools, told, queue, later } = bench();
    queue.up = false;
    const held = jobOf({ metadata: { finalizers: ['other/one', FINALIZER] } });
    await apply(tools, held, {
      forget: true,
      removeFinalizer: true,
      leftBehind: { prefix: 's3://out/x/_tidegate/uid-1/', why: 'clean-up took too long' },
      memory: EMPTY_MEMORY,
    });
    expect(told).toEqual(['finalizers other/one']);
    expect(later).toEqual(['uid-1']);
    expect((await tools.metrics.prefixesLeftBehind.get()).values[0]?.value).toBe(1);
  });

  test('so that the next look sees its writes before the watch brings them', async () => {
    const { tools } = bench();
    const { object } = await apply(tools, job, {
      addFinalizer: true,
      status: { draft: { state: 'Validating' }, urgent: true },
      memory: EMPTY_MEMORY,
    });
    expect(tools.own.latest(job)).toBe(object);
    expect(object.status?.state).toBe('Validating');
  });
});
