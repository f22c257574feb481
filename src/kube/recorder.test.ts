import { describe, expect, test } from '@jest/globals';
import type { KubeClient, KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import {
  EventRecorder,
  type EventObject,
  type RecorderObservation,
  type RecorderSettings,
} from './recorder.ts';
import { manualRuntime, settle } from './testing/manual-time.ts';

const job = (name: string, namespace: string | undefined = 'ns'): KubeObject => ({
  apiVersion: 'tidegate.io/v1alpha1',
  kind: 'InferenceBatchJob',
  metadata: { name, uid: `uid-${name}`, resourceVersion: '7', ...(namespace !== undefined && { namespace }) },
});

function setUp(settings: Partial<RecorderSettings> = {}) {
  const { time, runtime, lines } = manualRuntime();
  const written: EventObject[] = [];
  const patches: { name: string; patch: object }[] = [];
  const observed: RecorderObservation[] = [];
  const failures: (Error | undefined)[] = [];
  const gate = { promise: Promise.resolve() };
  const act = async (): Promise<void> => {
    await gate.promise;
    const failure = failures.shift();
    if (failure !== undefined) throw failure;
  };
  const client: Pick<KubeClient, 'create' | 'mergePatch'> = {
    create: async <T extends KubeObject>(_resource: Resource<T>, object: T) => {
      await act();
      written.push(object as unknown as EventObject);
      return object;
    },
    mergePatch: async <T extends KubeObject>(
      _resource: Resource<T>,
      _namespace: string | undefined,
      name: string,
      patch: object,
    ) => {
      await act();
      patches.push({ name, patch });
      return {} as T;
    },
  };
  const recorder = new EventRecorder({
    client,
    runtime,
    controller: 'tidegate.io/operator',
    instance: 'operator-0',
    settings,
    observe: (one) => observed.push(one),
  });
  const outcomes = (): Record<string, number> => {
    const counts: Record<string, number> = {};
    for (const { type, outcome, why } of observed) {
      const key = [type, outcome, why].filter(Boolean).join(' ');
      counts[key] = (counts[key] ?? 0) + 1;
    }
    return counts;
  };
  return { recorder, time, lines, written, patches, failures, gate, outcomes };
}

const terminating = (): KubeError =>
  new KubeError(403, 'Forbidden', 'unable to create new content in namespace ns', {
    causes: [{ reason: 'NamespaceTerminating' }],
  });

describe('an event', () => {
  test('names its object, and is written without anyone waiting', async () => {
    const { recorder, written } = setUp();
    recorder.event(job('a'), 'Normal', 'Indexed', '4,000 lines in 16 shards');
    expect(written).toEqual([]);
    await settle();
    expect(written).toEqual([
      {
        apiVersion: 'events.k8s.io/v1',
        kind: 'Event',
        metadata: { name: expect.stringMatching(/^a\.[0-9a-f]+$/), namespace: 'ns' },
        eventTime: '2026-11-30T12:00:00.000000Z',
        reportingController: 'tidegate.io/operator',
        reportingInstance: 'operator-0',
        action: 'Indexed',
        reason: 'Indexed',
        type: 'Normal',
        note: '4,000 lines in 16 shards',
        regarding: {
          apiVersion: 'tidegate.io/v1alpha1',
          kind: 'InferenceBatchJob',
          namespace: 'ns',
          name: 'a',
          uid: 'uid-a',
          resourceVersion: '7',
        },
      },
    ]);
  });

  test('has a name after those of all earlier ones, which is the order that kubectl describe shows', async () => {
    const { recorder, time, written } = setUp();
    const story = ['Accepted', 'Indexed', 'Running', 'Suspended', 'Resumed', 'Completed'];
    for (const reason of story) {
      recorder.event(job('a'), 'Normal', reason, reason);
      if (reason !== 'Indexed') await time.advance(1_234);
    }
    await settle();
    const byName = written.toSorted((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
    expect(byName.map(({ reason }) => reason)).toEqual(story);
  });

  test('about an object of the whole cluster goes to the namespace default', async () => {
    const { recorder, written } = setUp();
    const { namespace: _namespace, ...metadata } = job('a').metadata;
    recorder.event({ ...job('a'), metadata }, 'Normal', 'Ready', 'ready');
    await settle();
    expect(written[0]?.metadata.namespace).toBe('default');
  });

  test('is cut at 1 KiB, and its name stays a name', async () => {
    const { recorder, written } = setUp();
    recorder.event(job(`${'x'.repeat(199)}.${'y'.repeat(53)}`), 'Warning', 'Failed', 'é'.repeat(5_000));
    await settle();
    expect(Buffer.byteLength(written[0]?.note ?? '')).toBeLessThanOrEqual(1024);
    expect(written[0]?.metadata.name).toMatch(/^x{199}\.[0-9a-f]+$/);
  });
});

describe('repetitions', () => {
  test('become one event with a count, written every ten seconds at most', async () => {
    const { recorder, time, written, patches } = setUp();
    for (let second = 0; second < 25; second += 1) {
      recorder.event(job('a'), 'Warning', 'Held', 'engine refuses connections');
      await time.advance(1_000);
    }
    await time.advance(10_000);
    expect(written).toHaveLength(1);
    expect(patches.map(({ patch }) => (patch as EventObject).series?.count)).toEqual([11, 21, 25]);
    expect(patches.at(-1)).toEqual({
      name: written[0]?.metadata.name,
      patch: { series: { count: 25, lastObservedTime: '2026-11-30T12:00:24.000000Z' } },
    });
  });

  test('with another message are events of their own: the server keeps notes unchanged', async () => {
    const { recorder, written } = setUp();
    recorder.event(job('a'), 'Normal', 'Indexed', 'one');
    recorder.event(job('a'), 'Normal', 'Indexed', 'two');
    await settle();
    expect(written.map(({ note }) => note)).toEqual(['one', 'two']);
  });

  test('after a long silence begin a new event', async () => {
    const { recorder, time, written } = setUp();
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await time.advance(360_000);
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await settle();
    expect(written).toHaveLength(2);
  });

  test('of an event that the server has forgotten make a new one with the whole count', async () => {
    const { recorder, time, written, failures } = setUp();
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await settle();
    failures.push(new KubeError(404, 'NotFound', 'no such event'));
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await time.advance(10_000);
    expect(written.map(({ series }) => series?.count)).toEqual([undefined, 2]);
  });
});

describe('a flood', () => {
  test('of Normal events hides no Warning (kubernetes#124747, cassandra-operator#34)', async () => {
    const { recorder, written, outcomes } = setUp();
    for (let count = 0; count < 1_000; count += 1) {
      recorder.event(job('a'), 'Normal', 'Progress', `line ${count}`);
    }
    recorder.event(job('a'), 'Warning', 'Failed', 'the important one');
    recorder.event(job('b'), 'Normal', 'Progress', 'another object');
    await settle();
    await settle();
    await settle();
    expect(written.map(({ note }) => note)).toContain('the important one');
    expect(written.map(({ note }) => note)).toContain('another object');
    expect(outcomes()).toMatchObject({
      'Normal dropped rate': 990,
      'Normal written': 11,
      'Warning written': 1,
    });
  });

  test('is let through again slowly', async () => {
    const { recorder, time, written } = setUp();
    for (let count = 0; count < 20; count += 1) recorder.event(job('a'), 'Normal', 'Progress', `${count}`);
    await time.advance(60_000);
    for (let count = 0; count < 20; count += 1) recorder.event(job('a'), 'Normal', 'Progress', `b${count}`);
    await settle();
    await settle();
    expect(written).toHaveLength(12);
  });

  test('while nothing can be written keeps Warnings, gives up Normals, and stays bounded', async () => {
    const { recorder, written, gate, outcomes } = setUp({ queueLength: 10 });
    const opened = Promise.withResolvers<void>();
    gate.promise = opened.promise;
    for (let count = 0; count < 50; count += 1) recorder.event(job(`n${count}`), 'Normal', 'Progress', 'x');
    for (let count = 0; count < 12; count += 1) recorder.event(job(`w${count}`), 'Warning', 'Failed', 'x');
    expect(outcomes()).toEqual({ 'Normal dropped queueFull': 50, 'Warning dropped queueFull': 2 });
    opened.resolve();
    for (let turn = 0; turn < 10; turn += 1) await settle();
    expect(written.filter(({ type }) => type === 'Warning')).toHaveLength(10);
  });
});

describe('failures', () => {
  test.each([
    ['the namespace is being deleted (tigera#3791, stackable#863)', terminating()],
    ['the namespace is gone', new KubeError(404, 'NotFound', 'namespace not found')],
  ])('because %s are dropped without a word', async (_name, error) => {
    const { recorder, lines, failures, outcomes } = setUp();
    failures.push(error);
    recorder.event(job('a'), 'Normal', 'Indexed', 'x');
    await settle();
    expect(lines).toEqual([]);
    expect(outcomes()).toEqual({ 'Normal dropped namespaceGone': 1 });
  });

  test('that pass are tried again, and what was written after all is not an error', async () => {
    const { recorder, time, lines, failures, outcomes } = setUp();
    failures.push(
      new KubeError(0, 'ConnectionLost', 'x'),
      new KubeError(503, 'ServiceUnavailable', 'x'),
      new KubeError(409, 'AlreadyExists', 'x'),
    );
    recorder.event(job('a'), 'Normal', 'Indexed', 'x');
    await time.advance(10_000);
    expect(lines).toEqual([]);
    expect(outcomes()).toEqual({ 'Normal written': 1 });
  });

  test.each([
    ['at once', [new KubeError(422, 'Invalid', 'x')]],
    ['after four attempts', Array.from({ length: 4 }, () => new KubeError(0, 'Timeout', 'x'))],
  ])('that stay are given up %s, counted and logged', async (_name, errors) => {
    const { recorder, time, lines, failures, outcomes } = setUp();
    failures.push(...errors);
    recorder.event(job('a'), 'Normal', 'Indexed', 'x');
    await time.advance(100_000);
    recorder.event(job('b'), 'Normal', 'Indexed', 'x');
    await settle();
    expect(outcomes()).toEqual({ 'Normal dropped failed': 1, 'Normal written': 1 });
    expect(lines.filter(({ level }) => level === 'warn')).toHaveLength(1);
  });

  test('hold up nobody at the end: closing is bounded', async () => {
    const { recorder, time, gate, written, outcomes } = setUp();
    recorder.event(job('a'), 'Normal', 'Indexed', 'x');
    await recorder.close();
    expect(written).toHaveLength(1);
    recorder.event(job('a'), 'Normal', 'Indexed', 'late');
    expect(outcomes()).toEqual({ 'Normal written': 1, 'Normal dropped closed': 1 });

    const stuck = setUp();
    stuck.failures.push(...Array.from({ length: 9 }, () => new KubeError(503, 'ServiceUnavailable', 'x')));
    stuck.recorder.event(job('a'), 'Normal', 'Indexed', 'x');
    const closing = stuck.recorder.close();
    await stuck.time.advance(2_000);
    await closing;
    expect(stuck.written).toEqual([]);
    expect([gate.promise, time.pendingAlarms]).toEqual([expect.anything(), 0]);
  });

  test('at the end leave no count unwritten', async () => {
    const { recorder, patches } = setUp();
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await settle();
    recorder.event(job('a'), 'Warning', 'Held', 'x');
    await recorder.close();
    expect(patches).toHaveLength(1);
  });
});
