/**
 * The index task: claims the output prefix and reads the input once, or, where the index is there already, surveys
 * which shards are done. Either way the operator learns all it needs to go on from the report.
 */
import { randomBytes } from 'node:crypto';
import { encodeSummary, parseSummary } from '../../batch/index-format.ts';
import { buildIndex } from '../../batch/index-builder.ts';
import { HASH_KEY_BYTES } from '../../batch/id-hash.ts';
import { jobLayout, type JobLayout } from '../../batch/layout.ts';
import type { IndexSummary } from '../../batch/model.ts';
import { UnpackBudget } from '../../batch/unpack.ts';
import type { FailPoint, Logger } from '../../observability/contract.ts';
import type { IndexReport, JobDescriptor, ShardDone } from '../../queue/contract.ts';
import { type ObjectStore, StoreError } from '../../storage/contract.ts';
import type { JobStores } from '../credentials.ts';
import { ProblemError } from '../problems.ts';
import type { WorkerSettings } from '../settings.ts';
import { doneOf, readDecided } from '../shards/decided.ts';
import { DiskSpill } from './disk-spill.ts';
import { inputObjects } from './input-objects.ts';

export interface IndexOutcome {
  index: IndexReport;
  doneShards: { shard: number; done: ShardDone }[];
}

export interface IndexDependencies {
  /** Makes the output prefix this job's, or throws ProblemError OutputExists. */
  claim: (
    store: ObjectStore,
    layout: JobLayout,
    descriptor: JobDescriptor,
    signal: AbortSignal,
  ) => Promise<void>;
  logger: Logger;
  failPoint: FailPoint;
  settings: Pick<WorkerSettings, 'spillDirectory' | 'maxSpillBytes' | 'maxUnpackedBytes' | 'maxUnpackRatio'>;
}

/** Shard results read at a time during a survey. */
const SURVEY_CONCURRENCY = 16;
const GiB = 1024 ** 3;

export async function indexJob(
  deps: IndexDependencies,
  descriptor: JobDescriptor,
  stores: JobStores,
  signal: AbortSignal,
): Promise<IndexOutcome> {
  const layout = jobLayout(descriptor.output.prefix, descriptor.uid);
  await deps.claim(stores.output, layout, descriptor, signal);
  await deps.failPoint('worker.index.claimed');
  const existing = await readSummary(stores.output, layout);
  if (existing !== undefined) {
    return { index: reportOf(existing), doneShards: await survey(stores.output, layout, signal) };
  }
  const summary = await buildIndexOf(deps, descriptor, layout, stores, signal);
  if (summary.total === 0) {
    const what = descriptor.input.keys?.join(', ') ?? `prefix ${descriptor.input.prefix}`;
    throw new ProblemError('EmptyInput', `the input (${what}) has no line that is not blank`, false);
  }
  await deps.failPoint('worker.index.built');
  await stores.output.put(layout.summary, encodeSummary(summary), { signal });
  await deps.failPoint('worker.index.written');
  return { index: reportOf(summary), doneShards: [] };
}

async function buildIndexOf(
  { logger, settings }: IndexDependencies,
  descriptor: JobDescriptor,
  layout: JobLayout,
  stores: JobStores,
  signal: AbortSignal,
): Promise<IndexSummary> {
  const budget = new UnpackBudget({
    maxUnpackedBytes: settings.maxUnpackedBytes,
    maxRatio: settings.maxUnpackRatio,
    ratioFromBytes: GiB,
  });
  const spill = await DiskSpill.create(settings.spillDirectory, settings.maxSpillBytes);
  try {
    const { output } = stores;
    const summary = await buildIndex({
      jobUID: descriptor.uid,
      sources: inputObjects({ descriptor, layout, stores, budget, signal }),
      rules: descriptor,
      spill,
      hashKey: randomBytes(HASH_KEY_BYTES),
      writeChunk: async (chunk, bytes) => {
        await output.put(layout.chunkByNumber(chunk), bytes, { signal });
      },
      readChunk: async (chunk) => (await output.getBytes(layout.chunkByNumber(chunk), { signal })).bytes,
      signal,
    });
    const { total, invalid, shards, bytes } = summary;
    logger.info('input indexed', { total, invalid, shards, bytes });
    return summary;
  } finally {
    await spill.close();
  }
}

async function readSummary(store: ObjectStore, layout: JobLayout): Promise<IndexSummary | undefined> {
  try {
    return parseSummary((await store.getBytes(layout.summary)).bytes);
  } catch (error) {
    if (error instanceof StoreError && error.code === 'NoSuchKey') return undefined;
    throw error;
  }
}

/** Which shards have a result, and what it counts for. */
async function survey(
  store: ObjectStore,
  layout: JobLayout,
  signal: AbortSignal,
): Promise<IndexOutcome['doneShards']> {
  const shards: number[] = [];
  for await (const { key } of store.list(layout.shardResults, { signal })) {
    shards.push(Number(key.slice(layout.shardResults.length)));
  }
  const done: IndexOutcome['doneShards'] = [];
  const read = async (): Promise<void> => {
    for (let shard = shards.pop(); shard !== undefined; shard = shards.pop()) {
      signal.throwIfAborted();
      const header = await readDecided(store, layout, shard);
      if (header !== undefined) done.push({ shard, done: doneOf(header) });
    }
  };
  await Promise.all(Array.from({ length: SURVEY_CONCURRENCY }, read));
  return done.sort((a, b) => a.shard - b.shard);
}

const reportOf = ({ total, invalid, shards, bytes, firstInvalid }: IndexSummary): IndexReport => ({
  total,
  invalid,
  shards,
  bytes,
  firstInvalid,
});
