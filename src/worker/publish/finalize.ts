/**
 * The end of a job, whatever its cause: every line gets its one record, all is published, and the manifest is
 * written last. May run again from any point, also beside another run of itself.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { outcomesSum } from '../../batch/counts.ts';
import { crc32Text } from '../../batch/crc.ts';
import { parseSummary } from '../../batch/index-format.ts';
import { ManifestBuilder, type ManifestJob } from '../../batch/manifest.ts';
import { noOutcomes, noUsage, type IndexSummary, type RecentError } from '../../batch/model.ts';
import { MAX_RECENT_ERRORS } from '../../batch/shard-result.ts';
import type { FinalReport, StopCause } from '../../queue/contract.ts';
import { claimPrefix, refuseForeignOutput } from './claim.ts';
import { ifThere, uriOf, type PublishContext, JOB_UID } from './context.ts';
import { PublishError } from './errors.ts';
import { allPins, readHeader } from './pins.ts';
import { FILES, readPublishedFiles, type PublishedFiles } from './position.ts';
import { publish } from './publish.ts';
import { finishShards } from './unfinished.ts';

export interface FinalizeOptions {
  context: PublishContext;
  job: Omit<ManifestJob, 'uid' | 'ending'>;
  cause: { kind: 'Complete' } | StopCause;
}

/**
 * @returns the counts as they stand in the files. With `missing`, nothing was finalised: the job was thought complete
 * and is not. `manifest` is empty where none could be written because the prefix is another job's.
 * @throws PublishError (not Superseded, unless that lasts); StoreError.
 */
export async function finalize(options: FinalizeOptions): Promise<FinalReport> {
  const { context, cause } = options;
  const summary = await readSummary(context);
  if (summary === undefined) return finalizeWithoutIndex(options);

  const unfinished = await shardsWithoutResult(context, summary.shards);
  if (unfinished.length > 0) {
    if (cause.kind === 'Complete') return { ...nothing(context, summary.total), missing: unfinished };
    await finishShards(context, summary, unfinished, cause);
  }
  await context.failPoint('finalize.results-complete');
  await publishAll(context, summary.shards);
  await context.failPoint('finalize.published');
  return writeManifest(options, summary);
}

/** Ended before its input was indexed: no lines are known, no files exist, but there is a manifest that says so. */
async function finalizeWithoutIndex(options: FinalizeOptions): Promise<FinalReport> {
  const { context, cause } = options;
  if (cause.kind === 'Complete') {
    throw new PublishError('IndexMissing', `${uriOf(context.store, context.layout.summary)} is missing`);
  }
  try {
    await claimPrefix(context, options.job);
  } catch (error) {
    // A job that failed because the prefix is another's must not leave its mark there.
    if (error instanceof PublishError && error.code === 'OutputExists')
      return { ...nothing(context, 0), manifest: '' };
    throw error;
  }
  return writeManifest(options, undefined);
}

async function readSummary({ store, layout, signal }: PublishContext): Promise<IndexSummary | undefined> {
  const read = await ifThere(store.getBytes(layout.summary, { signal }));
  return read === undefined ? undefined : parseSummary(read.bytes);
}

async function shardsWithoutResult(context: PublishContext, shards: number): Promise<number[]> {
  const { store, layout, signal } = context;
  const done = new Uint8Array(shards);
  for await (const { key } of store.list(layout.shardResults, { signal })) {
    const shard = Number(key.slice(layout.shardResults.length));
    if (Number.isInteger(shard) && shard < shards) done[shard] = 1;
  }
  const missing: number[] = [];
  for (const [shard, isDone] of done.entries()) if (isDone === 0) missing.push(shard);
  return missing;
}

async function publishAll(context: PublishContext, shards: number): Promise<void> {
  const { settings, signal } = context;
  for (let lost = 0; ;) {
    try {
      const { shards: published } = await publish(context);
      if (published >= shards) return;
    } catch (error) {
      if (
        !(error instanceof PublishError) ||
        error.code !== 'Superseded' ||
        ++lost > settings.supersededRetries
      )
        throw error;
      context.logger.info('another publisher is at work', { job: context.jobUID, error: error.message });
      const longest = settings.supersededPauseMilliseconds * lost;
      await pause(longest * (0.25 + 0.75 * context.random()), undefined, { signal });
    }
  }
}

async function writeManifest(
  { context, job, cause }: FinalizeOptions,
  summary: IndexSummary | undefined,
): Promise<FinalReport> {
  const { store, layout, jobUID, signal } = context;
  const shards = summary?.shards ?? 0;
  const builder = new ManifestBuilder({ results: layout.results, errors: layout.errors });
  const failedShards: number[] = [];
  for await (const { shard, header } of allPins(context, 0, shards)) {
    builder.add(header);
    if (header.counts.failed > 0 && failedShards.push(shard) > MAX_RECENT_ERRORS) failedShards.shift();
  }
  const manifestJob = { ...job, uid: jobUID, ending: cause.kind };
  const files = await readPublishedFiles(context);
  checkFiles(context, builder, files, manifestJob);
  const total = outcomesSum(builder.counts);
  if (total !== (summary?.total ?? 0)) {
    throw new PublishError(
      'PublishedDamaged',
      `the results of job ${jobUID} have ${total} records; its index has ${summary?.total ?? 0} lines`,
    );
  }
  await refuseForeignOutput(context);
  await context.failPoint('finalize.checked');
  await store.put(layout.manifest, Buffer.concat([...builder.encode(manifestJob)]), {
    metadata: { [JOB_UID]: jobUID },
    contentType: 'application/json',
    signal,
  });
  await context.failPoint('finalize.manifest-written');
  return {
    counts: { total, ...builder.counts },
    usage: builder.usage,
    recentErrors: await lastErrors(context, failedShards),
    ...(files.results === undefined ? {} : { results: uriOf(store, layout.results) }),
    ...(files.errors === undefined ? {} : { errors: uriOf(store, layout.errors) }),
    manifest: uriOf(store, layout.manifest),
  };
}

/** The files were summed up by whoever appended to them; the pins must come to the same. */
function checkFiles(
  context: PublishContext,
  builder: ManifestBuilder,
  files: PublishedFiles,
  job: ManifestJob,
): void {
  const manifest = builder.build(job);
  for (const file of FILES) {
    const expected = manifest[file];
    const found = files[file];
    const crc = found === undefined ? undefined : crc32Text(found.crc32);
    if (expected?.bytes === found?.bytes && expected?.lines === found?.lines && expected?.crc32 === crc)
      continue;
    throw new PublishError(
      'PublishedDamaged',
      `${uriOf(context.store, context.layout[file])} has ${found?.lines ?? 0} lines, ${found?.bytes ?? 0} bytes, CRC ${crc}; ` +
        `its shard results have ${expected?.lines ?? 0} lines, ${expected?.bytes ?? 0} bytes, CRC ${expected?.crc32}`,
    );
  }
}

async function lastErrors(context: PublishContext, shards: readonly number[]): Promise<RecentError[]> {
  const errors: RecentError[] = [];
  for (const shard of shards.toReversed()) {
    const pin = await readHeader(context, shard);
    errors.unshift(...(pin?.header.recentErrors ?? []));
    if (errors.length >= MAX_RECENT_ERRORS) break;
  }
  return errors.slice(-MAX_RECENT_ERRORS);
}

const nothing = ({ store, layout }: PublishContext, total: number): FinalReport => ({
  counts: { total, ...noOutcomes() },
  usage: noUsage(),
  recentErrors: [],
  manifest: uriOf(store, layout.manifest),
});
