/** Carrying out the end of a job: put it on record, stop its lines, let a worker write what is missing, close. */
import type { JobReason, JobState } from '../../api/inference-batch-job.ts';
import { noOutcomes, type Counts } from '../../batch/model.ts';
import { findCondition, kubeTime } from '../../kube/conditions.ts';
import type { FinalReport, Problem, StopCause } from '../../queue/contract.ts';
import {
  descriptorChange,
  everIndexed,
  hasFinalizer,
  neverStarted,
  soonest,
  statusPart,
  type Context,
} from './context.ts';
import { workPrefixOf } from './descriptor.ts';
import { conditionReason, reasonOf, terminalStateOf, UNPUBLISHED, type Ending } from './ending.ts';
import { eventsOf } from './events.ts';
import { NO_RATE, numbersOf } from './numbers.ts';
import { percentOf } from './progress.ts';
import { retryOf } from './retry.ts';
import type { JobMemory, JobPlan } from './snapshot.ts';
import { indexedValue } from './standing.ts';
import { recentErrorsOf, statusWith, usageOf, type ConditionValues, type Status } from './status.ts';

/** While a worker finalises, losses in Redis are looked for this often. */
const WATCH_MILLISECONDS = 5_000;

/** @param recorded whether the status already says that the job ends this way: nothing final is done before. */
export function carryOutEnding(context: Context, ending: Ending, recorded: boolean): JobPlan {
  const stopped = stopPart(context, ending);
  if (!recorded) return { ...stopped, ...recordPart(context, ending), requeueAfterMilliseconds: 0 };
  const { queue } = context.snapshot;
  const final = queue?.final;
  if (final?.missing !== undefined && final.missing.length > 0) {
    return runAgain(context, ending, final.missing);
  }
  if (final !== undefined) return close(context, ending, outcomeOfReport(final));
  if (nothingToFinalize(context)) return close(context, ending, nothingRan());
  if (queue === undefined) {
    return { requeueAfterMilliseconds: WATCH_MILLISECONDS, memory: stopped.memory };
  }
  if (queue.problem?.task === 'finalize') return afterProblem(context, ending, queue.problem, stopped);
  return { ...stopped, ...finalizePart(context, ending, stopped.memory) };
}

function recordPart(context: Context, ending: Ending): Pick<JobPlan, 'status' | 'events'> {
  const { job, queue } = context.snapshot;
  const { at } = context;
  const message = ending.message;
  const draft = statusWith(job, at.now, {
    state: 'Finalizing',
    message,
    conditions: {
      Running: { status: 'False', reason: reasonOf(ending), message },
      Reconciling: { status: 'True', reason: 'Finalizing', message },
      Stalled: { status: 'False', reason: 'Progressing', message: 'the job is ending' },
    },
    fields: {
      ...(queue?.index === undefined ? {} : numbersOf(context, queue, queue.index)),
      ...NO_RATE,
    },
  });
  return { status: { draft, urgent: true }, events: eventsOf(job.status, draft) };
}

/** Lines stop at once, before the end is on record: an end that is due stays due. */
function stopPart(context: Context, ending: Ending): JobPlan {
  const { queue, memory } = context.snapshot;
  const stoppedAt = memory.stoppedAt ?? context.at.monotonic;
  const remembered: JobMemory = { ...memory, fed: undefined, withdrawn: true, stoppedAt };
  if (queue === undefined || neverStarted(context.snapshot)) {
    return { memory: { ...memory, fed: undefined, stoppedAt } };
  }
  const descriptor = descriptorChange(context, ending.kind === 'Complete' ? 'Run' : 'Stop');
  return {
    ...(hasFinalizer(context.snapshot.job) ? {} : { addFinalizer: true }),
    ...(descriptor === undefined ? {} : { descriptor }),
    ...(memory.withdrawn === true ? {} : { withdraw: true }),
    memory: remembered,
  };
}

function causeOf(ending: Ending): { kind: 'Complete' } | StopCause {
  if (ending.kind !== 'Failed') return { kind: ending.kind };
  return { kind: 'Failed', reason: ending.reason, message: ending.message };
}

function finalizePart(
  { snapshot, at, settings }: Context,
  ending: Ending,
  memory: JobMemory,
): Pick<JobPlan, 'tasks' | 'requeueAfterMilliseconds'> {
  // Finished lines of open shards are checked in first; what is not there then counts as unfinished.
  const { queue } = snapshot;
  const stopped = queue?.descriptor?.run === 'Stop' && queue.openShards === 0;
  const stoppedFor = at.monotonic - (memory.stoppedAt ?? at.monotonic);
  const left = settings.stopGraceMilliseconds - stoppedFor;
  if (ending.kind !== 'Complete' && everIndexed(snapshot) && !stopped && left > 0) {
    return { requeueAfterMilliseconds: left };
  }
  const uid = snapshot.job.metadata.uid ?? '';
  return {
    tasks: [{ task: { kind: 'finalize', uid, cause: causeOf(ending) }, delayMilliseconds: 0 }],
    requeueAfterMilliseconds: WATCH_MILLISECONDS,
  };
}

/** Without an index there are no lines to give records to; waiting for one must not keep a job from ending. */
function nothingToFinalize({ snapshot, at, settings }: Context): boolean {
  if (everIndexed(snapshot)) return false;
  if (neverStarted(snapshot)) return true;
  if (snapshot.queue?.problem?.task === 'finalize') return true;
  const stoppedAt = snapshot.memory.stoppedAt ?? at.monotonic;
  return at.monotonic - stoppedAt >= settings.unindexedEndMilliseconds;
}

function afterProblem(context: Context, ending: Ending, problem: Problem, stopped: JobPlan): JobPlan {
  const { snapshot, at, settings } = context;
  if (!problem.retryable) return closeUnpublished(context, problem);
  const retry = retryOf(problem, snapshot.memory, at, settings);
  const shown = statusWith(snapshot.job, at.now, {
    state: 'Finalizing',
    message: problem.message,
    conditions: {
      Reconciling: { status: 'True', reason: conditionReason(problem.reason), message: problem.message },
    },
  });
  const status = statusPart(context, shown).part;
  if (retry.inMilliseconds > 0) {
    const requeueAfterMilliseconds =
      soonest(retry.inMilliseconds, WATCH_MILLISECONDS) ?? retry.inMilliseconds;
    return { ...stopped, ...status, requeueAfterMilliseconds };
  }
  return {
    ...stopped,
    ...status,
    ...finalizePart(context, ending, stopped.memory),
    clear: ['problem'],
    memory: { ...stopped.memory, retries: retry.retries },
  };
}

/** No further attempt can help. What the files lack stays in the working objects, for a person to fetch. */
function closeUnpublished(context: Context, problem: Problem): JobPlan {
  const { job } = context.snapshot;
  const ending: Ending = {
    kind: 'Failed',
    reason: conditionReason(problem.reason),
    message: `the last records could not be published: ${problem.message}`,
  };
  if (!everIndexed(context.snapshot)) return close(context, ending, outcomeSoFar(context));
  const kept = `what was done is kept under ${workPrefixOf(job)}`;
  const running = { status: 'False' as const, reason: UNPUBLISHED, message: `the job has ended; ${kept}` };
  return close(context, { ...ending, message: `${kept}; ${ending.message}` }, outcomeSoFar(context), {
    Running: running,
  });
}

/** Results were lost, or counted before they were written: those shards are run, or finalised, again. */
function runAgain({ snapshot, at }: Context, ending: Ending, missing: readonly number[]): JobPlan {
  const { job, memory } = snapshot;
  const again: JobPlan = {
    markMissing: missing,
    clear: ['final'],
    requeueAfterMilliseconds: 0,
    memory: { ...memory, fed: undefined, stoppedAt: undefined, withdrawn: undefined },
  };
  if (ending.kind !== 'Complete') return again;
  const message = `the results of ${missing.length} shards are missing; their lines run again`;
  const draft = statusWith(job, at.now, {
    state: 'Running',
    message,
    conditions: {
      Running: { status: 'True', reason: 'Running', message },
      Reconciling: { status: 'True', reason: 'Progressing', message },
    },
  });
  return { ...again, status: { draft, urgent: true } };
}

interface Outcome {
  counts: Counts;
  fields: Pick<Partial<Status>, 'usage' | 'outputs' | 'recentErrors'>;
}

function outcomeOfReport(final: FinalReport): Outcome {
  const { results, errors, manifest } = final;
  return {
    counts: final.counts,
    fields: {
      usage: usageOf(final.usage),
      outputs: {
        ...(results === undefined ? {} : { results }),
        ...(errors === undefined ? {} : { errors }),
        // Empty where the prefix is another job's, which gets no mark of ours.
        ...(manifest === '' ? {} : { manifest }),
      },
      recentErrors: final.recentErrors.length === 0 ? undefined : recentErrorsOf(final.recentErrors),
    },
  };
}

const nothingRan = (): Outcome => ({ counts: { total: 0, ...noOutcomes() }, fields: {} });

/** What was last known, where no report can be had any more: lines without a known record count as failed. */
function outcomeSoFar({ snapshot: { job, queue } }: Context): Outcome {
  const shown = job.status?.counts ?? { total: 0, ...noOutcomes() };
  const total = queue?.index?.total ?? shown.total;
  const outcomes = queue?.index === undefined ? shown : queue.counts;
  const { completed, expired, cancelled } = outcomes;
  return {
    counts: {
      total,
      completed,
      expired,
      cancelled,
      failed: Math.max(0, total - completed - expired - cancelled),
    },
    fields: {},
  };
}

/** Condition, completion time, counts and outputs in one patch; events follow it. */
function close(
  context: Context,
  ending: Ending,
  outcome: Outcome,
  conditions: ConditionValues = {},
): JobPlan {
  const { job, memory } = context.snapshot;
  const { at } = context;
  const { counts } = outcome;
  const ended = counts.completed + counts.failed + counts.expired + counts.cancelled;
  const state: JobState = terminalStateOf(ending);
  const message = closingMessage(ending, counts);
  const draft = statusWith(job, at.now, {
    state,
    message,
    conditions: {
      ...indexedAtEnd(context, ending, counts.total),
      ...terminalConditions(ending, message),
      ...conditions,
    },
    fields: {
      ...outcome.fields,
      counts: {
        total: counts.total,
        completed: counts.completed,
        failed: counts.failed,
        expired: counts.expired,
        cancelled: counts.cancelled,
      },
      progress: `${ended}/${counts.total}`,
      percent: percentOf(ended, counts.total),
      throughput: undefined,
      estimatedCompletionTime: undefined,
      completionTime: kubeTime(at.now),
    },
  });
  return {
    status: { draft, urgent: true },
    events: eventsOf(job.status, draft),
    requeueAfterMilliseconds: 0,
    memory: { ...memory, fed: undefined },
  };
}

function closingMessage(ending: Ending, counts: Counts): string {
  if (counts.total === 0) {
    const beforeIndex = ending.kind === 'Cancelled' || ending.kind === 'Expired';
    return beforeIndex
      ? `${ending.message} before the input was read: no line has run, and none has a record`
      : ending.message;
  }
  const others = (['failed', 'expired', 'cancelled'] as const)
    .filter((outcome) => counts[outcome] > 0)
    .map((outcome) => `, ${counts[outcome]} ${outcome}`);
  const tally = `${counts.completed} of ${counts.total} lines completed${others.join('')}`;
  return ending.kind === 'Complete' ? tally : `${ending.message}; ${tally}`;
}

/** A job that has ended is not being read any more. */
function indexedAtEnd({ snapshot: { job, queue } }: Context, ending: Ending, total: number): ConditionValues {
  const old = findCondition(job.status?.conditions, 'Indexed');
  if (old?.status === 'True') return {};
  if (queue?.index !== undefined && total > 0) return { Indexed: indexedValue(queue.index) };
  const message = 'the job ended before its input was read and checked';
  return { Indexed: { status: 'False', reason: reasonOf(ending), message } };
}

function terminalConditions(ending: Ending, message: string): ConditionValues {
  const finished = (reason: JobReason) => ({
    status: 'False' as const,
    reason,
    message: 'the job has ended',
  });
  if (ending.kind === 'Complete') {
    return {
      Running: finished('Finished'),
      Complete: { status: 'True', reason: 'Completed', message },
      Reconciling: finished('Finished'),
      Stalled: finished('Finished'),
    };
  }
  const reason = reasonOf(ending);
  return {
    Running: finished('Finished'),
    Failed: { status: 'True', reason, message },
    Reconciling: finished('Finished'),
    Stalled: { status: 'True', reason, message },
  };
}
