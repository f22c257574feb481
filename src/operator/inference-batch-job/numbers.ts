/** The numbers that a job's status shows: counts, progress, usage, outputs, rates. Pure. */
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import { jobLayout } from '../../batch/layout.ts';
import { kubeTime } from '../../kube/conditions.ts';
import type { IndexReport, JobState as QueueState } from '../../queue/contract.ts';
import type { Context } from './context.ts';
import { forecast, isNoticeable, percentOf, throughputOf } from './progress.ts';
import { recentErrorsOf, usageOf, type Status } from './status.ts';

type Rate = Pick<Partial<Status>, 'throughput' | 'estimatedCompletionTime'>;

export const endedLines = (queue: QueueState): number => {
  const { completed, failed, expired, cancelled } = queue.counts;
  return completed + failed + expired + cancelled;
};

/** How far the job is, once its input is indexed. */
export function numbersOf(context: Context, queue: QueueState, index: IndexReport): Partial<Status> {
  const { job } = context.snapshot;
  const { completed, failed, expired, cancelled } = queue.counts;
  const ended = endedLines(queue);
  const recentErrors = recentErrorsOf(queue.recentErrors);
  return {
    indexedTime: job.status?.indexedTime ?? kubeTime(context.at.now),
    counts: { total: index.total, completed, failed, expired, cancelled },
    progress: `${ended}/${index.total}`,
    percent: percentOf(ended, index.total),
    usage: usageOf(queue.usage),
    ...(recentErrors.length === 0 ? {} : { recentErrors }),
    ...outputsField(job, queue),
  };
}

/** A file is named once it has a record. */
function outputsField(job: InferenceBatchJob, { published }: QueueState): Pick<Status, 'outputs'> {
  if (published === undefined) return {};
  const { bucket, prefix } = job.spec.output.s3;
  const layout = jobLayout(prefix, job.metadata.uid ?? '');
  const outputs = {
    ...job.status?.outputs,
    ...(published.resultsBytes > 0 ? { results: `s3://${bucket}/${layout.results}` } : {}),
    ...(published.errorsBytes > 0 ? { errors: `s3://${bucket}/${layout.errors}` } : {}),
  };
  return Object.keys(outputs).length === 0 ? {} : { outputs };
}

/** Of a job whose lines are not to run. */
export const NO_RATE: Rate = { throughput: undefined, estimatedCompletionTime: undefined };

/** Absent fields stay as they are shown. */
export function rateFields({ snapshot, at, settings }: Context, queue: QueueState | undefined): Rate {
  if (queue?.index === undefined) return {};
  const remaining = queue.index.total - endedLines(queue);
  const { status } = snapshot.job;
  const measured = throughputOf(snapshot.memory.samples, settings.progress);
  // Too little of the past is known, after a restart: what was shown stays.
  if (measured === undefined) return {};
  const shown = status?.throughput;
  const percent = settings.progress.noticeablePercent;
  const pick = (old: number | undefined, value: number): number =>
    old === undefined || isNoticeable(old, value, percent) ? value : old;
  const throughput = {
    recordsPerMinute: pick(shown?.recordsPerMinute, measured.recordsPerMinute),
    tokensPerSecond: pick(shown?.tokensPerSecond, measured.tokensPerSecond),
  };
  const { estimatedCompletionTime } = status ?? {};
  const eta = forecast(
    {
      now: at.now,
      remaining,
      recordsPerMinute: throughput.recordsPerMinute,
      shown: estimatedCompletionTime === undefined ? undefined : Date.parse(estimatedCompletionTime),
    },
    settings.progress,
  );
  return { throughput, estimatedCompletionTime: eta === undefined ? undefined : kubeTime(eta) };
}
