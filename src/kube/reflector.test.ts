import { describe, expect, test } from '@jest/globals';
import type { KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { KindReflector, type ReflectorObservation, type ReflectorSettings } from './reflector.ts';
import { manualRuntime, settle } from './testing/manual-time.ts';
import type { WatchClient, WatchOptions } from './transport.ts';

const jobs: Resource<KubeObject> = {
  group: 'batch',
  version: 'v1',
  plural: 'jobs',
  kind: 'Job',
  namespaced: true,
};

const job = (name: string, resourceVersion: string, uid = `uid-${name}`): KubeObject => ({
  apiVersion: 'batch/v1',
  kind: 'Job',
  metadata: { name, namespace: 'ns', uid, resourceVersion },
});

/** One open watch, fed by the test. */
class OpenWatch implements AsyncIterable<Uint8Array> {
  readonly options: WatchOptions;
  #chunks: (Uint8Array | Error | 'end')[] = [];
  #wake: () => void = () => undefined;

  constructor(options: WatchOptions) {
    this.options = options;
    options.signal.addEventListener('abort', () => {
      this.#give(new KubeError(0, 'Aborted', 'given up by the caller'));
    });
  }

  get isOpen(): boolean {
    return !this.options.signal.aborted;
  }

  #give(chunk: Uint8Array | Error | 'end'): void {
    this.#chunks.push(chunk);
    this.#wake();
  }

  async bytes(bytes: string | Buffer): Promise<void> {
    this.#give(Buffer.from(bytes as string));
    await settle();
  }

  event(type: string, object: object): Promise<void> {
    return this.bytes(`${JSON.stringify({ type, object })}\n`);
  }

  bookmark(resourceVersion: string): Promise<void> {
    return this.event('BOOKMARK', { metadata: { resourceVersion } });
  }

  error(code: number, reason: string, details?: object): Promise<void> {
    return this.event('ERROR', { kind: 'Status', code, reason, message: 'told by the stream', details });
  }

  async end(): Promise<void> {
    this.#give('end');
    await settle();
  }

  async breakOff(error: Error): Promise<void> {
    this.#give(error);
    await settle();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for (;;) {
      const chunk = this.#chunks.shift();
      if (chunk === 'end') return;
      if (chunk instanceof Error) throw chunk;
      if (chunk !== undefined) yield chunk;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

/** An API server of one kind, as far as a reflector sees it. */
class FakeApi implements WatchClient {
  items: KubeObject[] = [];
  resourceVersion = '100';
  lists = 0;
  watches: OpenWatch[] = [];
  /** What the next calls fail with, or the last one for ever. */
  listFailures: Error[] = [];
  watchFailures: Error[] = [];
  holdList: Promise<void> | undefined;

  async list<T extends KubeObject>(): Promise<{ items: T[]; resourceVersion: string }> {
    this.lists += 1;
    const failure = this.listFailures.shift();
    await this.holdList;
    if (failure !== undefined) throw failure;
    return { items: structuredClone(this.items) as T[], resourceVersion: this.resourceVersion };
  }

  async watch(_resource: Resource<KubeObject>, options: WatchOptions): Promise<AsyncIterable<Uint8Array>> {
    const failure = this.watchFailures.shift();
    const watch = new OpenWatch(options);
    this.watches.push(watch);
    if (failure !== undefined) throw failure;
    return Promise.resolve(watch);
  }

  get latest(): OpenWatch {
    const watch = this.watches.at(-1);
    if (watch === undefined) throw new Error('there is no watch');
    return watch;
  }

  get open(): number {
    return this.watches.filter((watch) => watch.isOpen).length;
  }
}

function setUp(settings: Partial<ReflectorSettings> = {}) {
  const { time, runtime, lines } = manualRuntime();
  const api = new FakeApi();
  const observed: ReflectorObservation[] = [];
  const reflector = new KindReflector({
    client: api,
    resource: jobs,
    runtime,
    settings,
    observe: (one) => observed.push(one),
  });
  const told: string[] = [];
  reflector.onChange(({ type, object }) => {
    told.push(`${type} ${object.metadata.name} ${object.metadata.uid}@${object.metadata.resourceVersion}`);
  });
  const started = async (): Promise<void> => {
    reflector.start();
    await settle();
  };
  return { time, api, reflector, told, observed, lines, started };
}

const lost = (): KubeError => new KubeError(0, 'ConnectionLost', 'socket hang up');

describe('a reflector', () => {
  test('lists, then watches from there with bookmarks, and tells what changes', async () => {
    const { api, reflector, told, started } = setUp();
    api.items = [job('a', '7')];
    expect(reflector.hasSynced).toBe(false);
    await started();
    await reflector.synced();
    expect(reflector.hasSynced).toBe(true);
    expect(api.latest.options.resourceVersion).toBe('100');
    await api.latest.event('ADDED', job('b', '101'));
    await api.latest.event('MODIFIED', job('a', '102'));
    await api.latest.event('DELETED', job('b', '103'));
    expect(told).toEqual([
      'Added a uid-a@7',
      'Added b uid-b@101',
      'Updated a uid-a@102',
      'Deleted b uid-b@103',
    ]);
    expect(reflector.store.list()).toHaveLength(1);
  });

  test('tells a late handler what is already known', async () => {
    const { api, reflector, started } = setUp();
    api.items = [job('a', '7')];
    await started();
    const late: string[] = [];
    reflector.onChange(({ type, object }) => late.push(`${type} ${object.metadata.name}`));
    expect(late).toEqual(['Added a']);
  });

  test('puts together events that the network cut in the middle of a character', async () => {
    const { api, told, started } = setUp();
    await started();
    const bytes = Buffer.from(`${JSON.stringify({ type: 'ADDED', object: job('é😀', '101') })}\n`);
    for (const byte of bytes) await api.latest.bytes(Buffer.from([byte]));
    expect(told).toEqual(['Added é😀 uid-é😀@101']);
  });

  test('makes one watch, however often it is started (client-node#1933, #881)', async () => {
    const { api, reflector, started } = setUp();
    await started();
    reflector.start();
    reflector.start();
    await settle();
    expect([api.lists, api.watches.length]).toEqual([1, 1]);
  });

  test('asks the server for another length of watch each time, between 290 and 590 s', async () => {
    const { time, runtime } = manualRuntime();
    const api = new FakeApi();
    const random = [0, 0, 0.999_999, 0.5];
    const reflector = new KindReflector({
      client: api,
      resource: jobs,
      runtime: { ...runtime, random: () => random.shift() ?? 0.5 },
    });
    reflector.start();
    await settle();
    await time.advance(2_000);
    await api.latest.end();
    await time.advance(2_000);
    await api.latest.end();
    expect(api.watches.map(({ options }) => options.timeoutSeconds)).toEqual([290, 590, 440]);
    await reflector.stop();
  });

  test('goes on from the last bookmark when the server ends the watch, without a list', async () => {
    const { api, time, observed, started } = setUp();
    await started();
    await api.latest.bookmark('250');
    await time.advance(60_000);
    await api.latest.end();
    expect([api.lists, api.watches.length, api.open]).toEqual([1, 2, 1]);
    expect(api.latest.options.resourceVersion).toBe('250');
    expect(observed).toContainEqual({ resource: 'jobs.batch', type: 'reconnect', reason: 'ended' });
  });

  test('does not turn in a tight circle when the server closes each watch at once', async () => {
    const { api, time, started } = setUp();
    await started();
    const from = time.monotonic();
    for (let turn = 0; turn < 6; turn += 1) {
      await api.latest.end();
      expect(api.open).toBe(0);
      while (api.open === 0) await time.advance(250);
    }
    expect(api.watches).toHaveLength(7);
    expect(time.monotonic() - from).toBeGreaterThanOrEqual(
      0.75 * (1_000 + 2_000 + 4_000 + 8_000 + 16_000 + 30_000),
    );
  });
});

describe('faults of the connection', () => {
  test('a half-open connection is given up after the idle limit and replaced (pepr#745, fabric8#4781)', async () => {
    const { api, time, reflector, observed, started } = setUp();
    await started();
    await time.advance(60_000);
    await api.latest.bookmark('150');
    await time.advance(89_999);
    expect(api.watches).toHaveLength(1);
    expect(reflector.sinceLastActivity).toBe(89_999);
    await time.advance(1);
    expect([api.watches.length, api.open, api.lists]).toEqual([2, 1, 1]);
    expect(api.latest.options.resourceVersion).toBe('150');
    expect(observed.at(-1)).toEqual({ resource: 'jobs.batch', type: 'reconnect', reason: 'idle' });
  });

  test('a watch that is quiet but alive is left alone (client-node#3020)', async () => {
    const { api, time, started } = setUp({ relistMilliseconds: 1e9 });
    await started();
    for (let minute = 0; minute < 60; minute += 1) {
      await time.advance(61_000);
      await api.latest.bookmark(`${200 + minute}`);
    }
    expect([api.lists, api.watches.length]).toEqual([1, 1]);
  });

  test('a killed server is come back to with a growing pause, then with exactly one watch', async () => {
    const { api, time, reflector, lines, started } = setUp();
    await started();
    await time.advance(20_000);
    api.watchFailures = Array.from({ length: 2 }, lost);
    api.listFailures = Array.from({ length: 4 }, lost);
    const before = { lists: api.lists, watches: api.watches.length };
    await api.latest.breakOff(lost());
    expect(reflector.state).toBe('Backoff');
    await time.advance(60_000);
    // After 0.75, 1.5, 3, 6, 12 and 22.5 s: six attempts in a minute, not hundreds (client-node#1933).
    expect(api.watches.length - before.watches + api.lists - before.lists).toBe(6);
    await time.advance(30_000);
    expect([reflector.state, api.open]).toEqual(['Watching', 1]);
    expect(lines.filter(({ level }) => level === 'warn').length).toBeLessThan(5);
  });

  test('a stream that breaks off inside an event goes on from the last whole one', async () => {
    const { api, time, told, started } = setUp();
    await started();
    await api.latest.event('ADDED', job('a', '101'));
    await api.latest.bytes('{"type":"ADDED","object":{"metadata":{"na');
    await api.latest.end();
    await time.advance(1_000);
    expect(api.latest.options.resourceVersion).toBe('101');
    await api.latest.event('ADDED', job('b', '102'));
    expect(told).toEqual(['Added a uid-a@101', 'Added b uid-b@102']);
  });
});

describe('errors that the server tells', () => {
  const expired = (): KubeError => new KubeError(410, 'Expired', 'too old resource version');

  test.each([
    ['in the stream', true],
    ['as an answer to the watch', false],
  ])(
    '410 %s: a list, whose missing objects are told as deleted (headlamp#7451, client-node#392, #781)',
    async (_name, inStream) => {
      const { api, time, told, observed, started } = setUp();
      api.items = [job('stays', '1'), job('goes', '2')];
      await started();
      await api.latest.bookmark('120');
      api.items = [job('stays', '1'), job('comes', '190')];
      api.resourceVersion = '200';
      if (inStream) {
        await api.latest.error(410, 'Expired');
      } else {
        api.watchFailures = [expired()];
        await time.advance(2_000);
        await api.latest.end();
      }
      expect(told.slice(2)).toEqual(['Deleted goes uid-goes@2', 'Added comes uid-comes@190']);
      expect([api.lists, api.open, api.latest.options.resourceVersion]).toEqual([2, 1, '200']);
      expect(observed).toContainEqual({ resource: 'jobs.batch', type: 'relist', reason: 'expired' });
      expect(observed).toContainEqual({
        resource: 'jobs.batch',
        type: 'watchError',
        code: 410,
        reason: 'Expired',
      });
    },
  );

  test('410 to every watch does not become a storm of lists', async () => {
    const { api, time, started } = setUp();
    api.watchFailures = Array.from({ length: 100 }, expired);
    await started();
    await time.advance(60_000);
    expect(api.lists).toBeLessThan(9);
  });

  test.each([
    [500, 'InternalError', 1],
    [503, 'ServiceUnavailable', 1],
    [429, 'TooManyRequests', 1],
    [403, 'Forbidden', 2],
    [400, 'BadRequest', 2],
  ])('%d %s in the stream: rests, then has listed %d times', async (code, reason, lists) => {
    const { api, time, reflector, observed, started } = setUp();
    await started();
    await api.latest.bookmark('120');
    await api.latest.error(code, reason);
    expect([reflector.state, api.open]).toEqual(['Backoff', 0]);
    await time.advance(1_000);
    expect([reflector.state, api.open, api.lists]).toEqual(['Watching', 1, lists]);
    expect(observed).toContainEqual({ resource: 'jobs.batch', type: 'watchError', code, reason });
  });

  test('a version that the server does not know yet, as after a restore: lists again', async () => {
    const { api, time, started } = setUp();
    await started();
    await api.latest.bookmark('120');
    api.resourceVersion = '60';
    await api.latest.error(504, 'Timeout', { causes: [{ reason: 'ResourceVersionTooLarge' }] });
    await time.advance(1_000);
    expect([api.lists, api.latest.options.resourceVersion]).toEqual([2, '60']);
  });

  test('a line that is no event: lists again', async () => {
    const { api, time, started } = setUp();
    await started();
    await api.latest.bytes('<html>502 Bad Gateway</html>\n');
    await time.advance(1_000);
    expect(api.lists).toBe(2);
  });

  test('Retry-After is waited for', async () => {
    const { api, time, started } = setUp();
    api.listFailures = [new KubeError(429, 'TooManyRequests', 'slow down', { retryAfterSeconds: 17 })];
    await started();
    await time.advance(16_999);
    expect(api.lists).toBe(1);
    await time.advance(1);
    expect(api.lists).toBe(2);
  });

  test('a storm of 5xx and 429 on lists never ends the reflector (client-node#596, #958)', async () => {
    const { api, time, reflector, started } = setUp();
    api.listFailures = Array.from(
      { length: 50 },
      (_, index) => new KubeError(index % 2 ? 500 : 429, 'X', 'x'),
    );
    await started();
    await time.advance(50 * 30_000);
    await reflector.synced();
    expect(reflector.state).toBe('Watching');
  });

  test('a watch that cannot be resumed is begun with a list after the third failure', async () => {
    const { api, time, started } = setUp();
    await started();
    api.watchFailures = Array.from({ length: 3 }, () => new KubeError(500, 'InternalError', 'broken'));
    await api.latest.breakOff(lost());
    await time.advance(6_000);
    expect(api.lists).toBe(2);
  });
});

describe('gaps', () => {
  test('an object that was deleted and created again in a gap is told as two (UID compared)', async () => {
    const { api, told, started } = setUp();
    api.items = [job('a', '5', 'first')];
    await started();
    await api.latest.bookmark('120');
    api.items = [job('a', '180', 'second')];
    await api.latest.error(410, 'Expired');
    expect(told).toEqual(['Added a first@5', 'Deleted a first@5', 'Added a second@180']);
  });

  test('the same, when the watch itself shows it', async () => {
    const { api, told, started } = setUp();
    api.items = [job('a', '5', 'first')];
    await started();
    await api.latest.event('MODIFIED', job('a', '180', 'second'));
    expect(told).toEqual(['Added a first@5', 'Deleted a first@5', 'Added a second@180']);
  });

  test('an event of a version that is already known tells nothing', async () => {
    const { api, told, started } = setUp();
    api.items = [job('a', '5')];
    await started();
    await api.latest.event('MODIFIED', job('a', '5'));
    expect(told).toEqual(['Added a uid-a@5']);
  });

  test('a safety relist every ten minutes, give or take one, brings back what no event told', async () => {
    const { api, time, told, observed, started } = setUp({ idleMilliseconds: 1e9 });
    await started();
    api.items = [job('missed', '110')];
    await time.advance(599_999);
    expect(api.lists).toBe(1);
    await time.advance(1);
    expect(told).toEqual(['Added missed uid-missed@110']);
    expect([api.lists, api.watches.length, api.open]).toEqual([2, 2, 1]);
    expect(observed).toContainEqual({ resource: 'jobs.batch', type: 'relist', reason: 'periodic' });
  });
});

describe('handlers, clocks and stopping', () => {
  test('a handler that throws is logged and counted; the others and the watch go on', async () => {
    const { api, reflector, told, observed, lines, started } = setUp();
    reflector.onChange(() => {
      throw new Error('defect');
    });
    const after: string[] = [];
    reflector.onChange(({ object }) => after.push(object.metadata.name));
    await started();
    await api.latest.event('ADDED', job('a', '101'));
    await api.latest.event('ADDED', job('b', '102'));
    expect(told).toHaveLength(2);
    expect(after).toEqual(['a', 'b']);
    expect(observed.filter(({ type }) => type === 'handlerError')).toHaveLength(2);
    expect(lines.filter(({ level }) => level === 'error')).toHaveLength(2);
    expect([api.watches.length, reflector.state]).toEqual([1, 'Watching']);
  });

  test('jumps of the wall clock are not noticed', async () => {
    const { api, time, started } = setUp();
    await started();
    time.jumpWallClock(3_600_000);
    await time.advance(1_000);
    time.jumpWallClock(-7_200_000);
    await time.advance(1_000);
    expect([api.lists, api.watches.length]).toEqual([1, 1]);
  });

  test('after a freeze longer than the idle limit it reconnects once, from where it was', async () => {
    const { api, time, started } = setUp({ relistMilliseconds: 1e9 });
    await started();
    await api.latest.bookmark('120');
    time.freeze(3_600_000);
    await time.advance(1_000);
    expect([api.watches.length, api.open, api.lists]).toEqual([2, 1, 1]);
    expect(api.latest.options.resourceVersion).toBe('120');
  });

  test('stopped during a list, it opens no watch afterwards', async () => {
    const { api, reflector } = setUp();
    const hold = Promise.withResolvers<void>();
    api.holdList = hold.promise;
    reflector.start();
    await settle();
    const stopped = reflector.stop();
    hold.resolve();
    await stopped;
    await settle();
    expect([api.watches.length, reflector.state]).toEqual([0, 'Stopped']);
    await expect(reflector.synced()).rejects.toThrow('was stopped');
  });

  test('stopped while it rests, it tries no more', async () => {
    const { api, time, reflector, started } = setUp();
    api.listFailures = [lost()];
    await started();
    await reflector.stop();
    await time.advance(100_000);
    expect([api.lists, api.watches.length, time.pendingAlarms]).toEqual([1, 0, 0]);
  });

  test('stopped while it watches, it closes the watch and leaves no timer', async () => {
    const { api, time, reflector, started } = setUp();
    await started();
    await reflector.stop();
    expect([api.open, time.pendingAlarms]).toEqual([0, 0]);
    reflector.start();
    await settle();
    expect(api.lists).toBe(1);
    await reflector.stop();
  });

  test('stopped before it was started, it never starts', async () => {
    const { api, reflector, started } = setUp();
    await reflector.stop();
    await started();
    expect(api.lists).toBe(0);
  });

  test('who waits for the first list can give up', async () => {
    const { reflector } = setUp();
    await expect(reflector.synced(AbortSignal.abort(new Error('too late')))).rejects.toThrow('too late');
    const controller = new AbortController();
    const waiting = reflector.synced(controller.signal);
    controller.abort(new Error('given up'));
    await expect(waiting).rejects.toThrow('given up');
  });
});
