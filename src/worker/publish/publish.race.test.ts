/**
 * Publishers that race, freeze, crash and thaw, on a real store. Each publisher stops at every fail point until the
 * schedule lets it go on, so that a schedule is one exact interleaving and shrinks like any other value.
 */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { randomUUID } from 'node:crypto';
import { MadeJob } from '../../../hack/bench/made-job.ts';
import { keysUnder, startStore, type StartedStore } from '../../../hack/bench/s3-store.ts';
import type { FailPoint } from '../../observability/contract.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { ObjectStore } from '../../storage/contract.ts';
import { ifThere, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';
import { FILES, type FileName } from './position.ts';
import { publish } from './publish.ts';
import { defaultPublishSettings } from './settings.ts';

const MiB = 1024 * 1024;

let started: StartedStore;
let store: ObjectStore;

beforeAll(async () => {
  started = await startStore('publishing');
  store = started.store;
}, 60_000);

afterAll(() => started.stop());

/** The same store, as one that ignores the conditions on writes (RGW does on CompleteMultipartUpload). */
const withoutConditions = (inner: ObjectStore): ObjectStore =>
  Object.assign(Object.create(inner) as ObjectStore, {
    bucket: inner.bucket,
    ...bound(inner),
    honoursConditions: async () => ({ put: false, complete: false }),
  });

/** Private fields do not survive Object.create, so methods keep their own `this`. */
function bound(inner: ObjectStore) {
  return {
    head: inner.head.bind(inner),
    get: inner.get.bind(inner),
    getBytes: inner.getBytes.bind(inner),
    put: inner.put.bind(inner),
    createMultipart: inner.createMultipart.bind(inner),
    listUploads: inner.listUploads.bind(inner),
    abortUpload: inner.abortUpload.bind(inner),
    list: inner.list.bind(inner),
    delete: inner.delete.bind(inner),
    deleteMany: inner.deleteMany.bind(inner),
  };
}

/** What a reader of both files has seen: each version must begin with all of the one before. */
class Reader {
  readonly #target: ObjectStore;
  readonly #job: MadeJob;
  readonly #last: Record<FileName, Buffer> = { results: Buffer.alloc(0), errors: Buffer.alloc(0) };
  #turn: Promise<void> = Promise.resolve();

  constructor(target: ObjectStore, job: MadeJob) {
    this.#target = target;
    this.#job = job;
  }

  look(): Promise<void> {
    this.#turn = this.#turn.then(async () => {
      for (const file of FILES) {
        const read = await ifThere(this.#target.getBytes(this.#job.layout[file]));
        const now = read?.bytes ?? Buffer.alloc(0);
        const before = this.#last[file];
        if (!now.subarray(0, before.length).equals(before))
          throw new Error(
            `${file}.jsonl of ${now.length} bytes does not begin with the ${before.length} seen before`,
          );
        this.#last[file] = now;
      }
    });
    return this.#turn;
  }

  get seen(): Record<FileName, Buffer> {
    return this.#last;
  }
}

/** A publisher that goes on to its next fail point only when told. */
class SteppedPublisher {
  over = false;
  failure: unknown;
  #release: (() => void) | undefined;
  #stopped: Promise<void>;
  #arrive: () => void = () => undefined;

  constructor(target: ObjectStore, job: MadeJob, reader: Reader) {
    this.#stopped = this.#next();
    const failPoint: FailPoint = async (name) => {
      if (name.endsWith('.completed')) await reader.look();
      await new Promise<void>((resolve) => {
        this.#release = resolve;
        this.#arrive();
      });
    };
    publish(contextFor(target, job, failPoint)).then(
      () => this.#end(undefined),
      (error: unknown) => this.#end(error),
    );
  }

  /** Runs from one fail point to the next, or to its end. */
  async step(): Promise<void> {
    await this.#stopped;
    if (this.over) return;
    this.#stopped = this.#next();
    this.#release?.();
    await this.#stopped;
  }

  async finish(): Promise<void> {
    while (!this.over) await this.step();
  }

  #next(): Promise<void> {
    return new Promise((resolve) => (this.#arrive = resolve));
  }

  #end(failure: unknown): void {
    this.over = true;
    this.failure = failure;
    this.#arrive();
  }
}

function contextFor(
  target: ObjectStore,
  job: MadeJob,
  failPoint: FailPoint = async () => undefined,
): PublishContext {
  return {
    ...{ store: target, layout: job.layout, jobUID: job.uid, failPoint },
    signal: new AbortController().signal,
    settings: {
      ...defaultPublishSettings,
      partBytes: 5 * MiB,
      copyRangeBytes: 5 * MiB + 1,
      readAheadBytes: 100_000,
    },
    clock: { now: () => 0, monotonic: () => 0 },
    logger: silentLogger,
    newId: randomUUID,
    random: Math.random,
  };
}

type Step =
  | { kind: 'shard' }
  | { kind: 'start'; who: number }
  | { kind: 'step'; who: number; times: number }
  /** Never goes on; another one takes its place. */
  | { kind: 'crash'; who: number };

const PUBLISHERS = 3;
const who = fc.nat({ max: PUBLISHERS - 1 });
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 3, arbitrary: fc.constant<Step>({ kind: 'shard' }) },
    {
      weight: 6,
      arbitrary: fc.record({
        kind: fc.constant('step' as const),
        who,
        times: fc.integer({ min: 1, max: 8 }),
      }),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('crash' as const), who }) },
  ),
  { minLength: 8, maxLength: 40 },
);

const jobs = fc.record({
  lines: fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 1, maxLength: 14 }),
  /** Small files are uploaded anew, large ones copied by the store. */
  recordBytes: fc.constantFrom(80, 120_000, 900_000),
  /** One of so many lines fails; 1: all, 0: none. */
  failing: fc.constantFrom(0, 1, 2, 7),
});

async function play(target: ObjectStore, shape: JobShape, schedule: Step[]): Promise<void> {
  const job = madeJob(target, shape);
  const reader = new Reader(target, job);
  const publishers: (SteppedPublisher | undefined)[] = [];
  const frozen: SteppedPublisher[] = [];
  let finished = 0;
  for (const step of schedule) {
    if (step.kind === 'shard') {
      if (finished < job.shards.length) await job.finish(finished++);
      continue;
    }
    const current = publishers[step.who];
    if (step.kind === 'crash') {
      if (current?.over === false) frozen.push(current);
      publishers[step.who] = undefined;
      continue;
    }
    const publisher =
      current === undefined || current.over ? new SteppedPublisher(target, job, reader) : current;
    publishers[step.who] = publisher;
    if (step.kind === 'step') for (let n = 0; n < step.times; n++) await publisher.step();
    await reader.look();
  }
  while (finished < job.shards.length) await job.finish(finished++);

  // All goes well from here on; then those that had stopped somewhere come back to life.
  await publish(contextFor(target, job));
  await reader.look();
  const { results, errors } = job.expected();
  expect(reader.seen.results.equals(results)).toBe(true);
  expect(reader.seen.errors.equals(errors)).toBe(true);
  const all = [...publishers, ...frozen].filter((each) => each !== undefined);
  for (const late of all) {
    await late.finish();
    await reader.look();
    if (late.failure !== undefined) {
      expect(late.failure).toBeInstanceOf(PublishError);
      expect((late.failure as PublishError).code).toBe('Superseded');
    }
  }
  expect(await publish(contextFor(target, job))).toEqual({
    ...{ shards: job.shards.length, resultsBytes: results.length, errorsBytes: errors.length, at: 0 },
  });
  await reader.look();
  for (const file of FILES) expect(await target.listUploads(job.layout[file])).toEqual([]);
  await removeJob(target, job);
}

interface JobShape {
  lines: number[];
  recordBytes: number;
  failing: number;
}

const madeJob = (target: ObjectStore, { lines, recordBytes, failing }: JobShape): MadeJob =>
  new MadeJob({
    ...{ store: target, prefix: `${randomUUID()}/`, uid: randomUUID(), shards: lines },
    recordBytes: (ordinal) => recordBytes + (ordinal % 7),
    fails: (ordinal) => failing > 0 && ordinal % failing === 0,
  });

async function removeJob(target: ObjectStore, job: MadeJob): Promise<void> {
  await target.deleteMany(await keysUnder(target, job.prefix));
}

/** Plays a schedule that was reported once more. */
const seed = process.env['TIDEGATE_PROPERTY_SEED'];

test.each([
  ['with conditional writes', (inner: ObjectStore) => inner],
  ['without conditional writes', withoutConditions],
])(
  'each version a reader sees begins with the one before, in any interleaving of publishers, %s',
  async (_name, of) => {
    await fc.assert(
      fc.asyncProperty(jobs, steps, async (shape, schedule) => play(of(store), shape, schedule)),
      {
        numRuns: Number(process.env['TIDEGATE_PROPERTY_RUNS'] ?? 8),
        ...(seed === undefined ? {} : { seed: Number(seed) }),
        endOnFailure: true,
      },
    );
  },
  600_000,
);

/** Names of all fail points of one publish that changes both files, in order. */
async function momentsOfPublish(target: ObjectStore, shape: JobShape): Promise<string[]> {
  const job = madeJob(target, shape);
  for (const shard of job.shards) await job.finish(shard.shard);
  const moments: string[] = [];
  await publish(
    contextFor(target, job, async (name) => {
      moments.push(name);
    }),
  );
  return moments;
}

test.each([
  ['small files', { lines: [2, 2, 2], recordBytes: 100, failing: 2 }],
  ['files that the store copies', { lines: [6, 1, 1], recordBytes: 900_000, failing: 0 }],
])(
  'a publisher that stops at any moment, for ever or until another has published, loses and repeats nothing: %s',
  async (_name, shape) => {
    const moments = await momentsOfPublish(store, shape);
    expect(moments).toContain('publish.results.completed');
    expect(moments).toContain(`publish.${shape.failing > 0 ? 'errors' : 'results'}.parts-uploaded`);
    for (const stopped of moments.keys()) {
      for (const target of [store, withoutConditions(store)]) {
        const job = madeJob(target, shape);
        const reader = new Reader(target, job);
        await job.finish(0);
        await publish(contextFor(target, job));
        await reader.look();
        await job.finish(1);
        const first = new SteppedPublisher(target, job, reader);
        for (let n = 0; n <= stopped; n++) await first.step();
        for (const { shard } of job.shards.slice(2)) await job.finish(shard);
        await publish(contextFor(target, job));
        await reader.look();
        await first.finish();
        await reader.look();
        const { results, errors } = job.expected();
        expect(reader.seen.results.equals(results)).toBe(true);
        expect(reader.seen.errors.equals(errors)).toBe(true);
        await removeJob(target, job);
      }
    }
  },
  300_000,
);
