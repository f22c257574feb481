/** A job that has not ended: what workers shall do for it now, and what people shall see of it. */
import { kubeTime } from '../../kube/conditions.ts';
import type { JobState as QueueState, Problem } from '../../queue/contract.ts';
import { objectionTo, type Objection } from './accept.ts';
import {
  descriptorChange,
  hasFinalizer,
  neverStarted,
  soonest,
  statusPart,
  type Context,
} from './context.ts';
import { eventsOf } from './events.ts';
import { donePrefix, firstNotDone, refeedAfter, windowShards } from './feed.ts';
import { stateOf } from './life.ts';
import { endedLines, NO_RATE, numbersOf, rateFields } from './numbers.ts';
import { addSample } from './progress.ts';
import { publishDueIn } from './publish.ts';
import { retryOf } from './retry.ts';
import type { JobMemory, JobPlan } from './snapshot.ts';
import { liveConditions, standingOf } from './standing.ts';
import { statusWith, type Status } from './status.ts';

/** A publish that was asked for is asked for again after this, in case Redis lost it. */
const PUBLISH_AGAIN_MILLISECONDS = 10_000;

/** What each part adds: actions, what to remember, and when to look again. */
interface Part extends Pick<
  JobPlan,
  'addFinalizer' | 'descriptor' | 'withdraw' | 'clear' | 'tasks' | 'feed'
> {
  memory?: Partial<JobMemory>;
  alarm?: number | undefined;
}

export function decideLive(context: Context): JobPlan {
  const { snapshot, at, settings } = context;
  const objection = objectionTo(snapshot);
  const memory: JobMemory = { ...snapshot.memory, ...observe(context), stoppedAt: undefined };
  const seen: Context = { ...context, snapshot: { ...snapshot, memory } };
  const work = workParts(seen, objection);
  const draft = draftStatus(seen, objection);
  const status = statusPart(seen, draft);
  const events = status.part.status === undefined ? [] : eventsOf(snapshot.job.status, draft);
  return {
    ...joined(work),
    ...status.part,
    ...(events.length === 0 ? {} : { events }),
    requeueAfterMilliseconds: soonest(
      settings.resyncMilliseconds * (0.8 + 0.4 * snapshot.random),
      Date.parse(draft.windowEndTime ?? '') - at.now,
      status.alarm,
      ...work.map((part) => part.alarm),
    ),
    memory: work.reduce((before, part) => ({ ...before, ...part.memory }), memory),
  };
}

function workParts(context: Context, objection: Objection | undefined): Part[] {
  const { queue } = context.snapshot;
  if (queue === undefined) return [];
  return [
    describe(context, objection),
    index(context, queue, objection),
    feed(context, queue, objection),
    publish(context, queue),
    retryOthers(context, queue),
  ];
}

/** Lists are joined; of everything else only one part speaks. */
function joined(parts: readonly Part[]): Omit<Part, 'memory' | 'alarm'> {
  const descriptor = parts.find((part) => part.descriptor !== undefined)?.descriptor;
  const feed = parts.find((part) => part.feed !== undefined)?.feed;
  const tasks = parts.flatMap((part) => part.tasks ?? []);
  const clear = parts.flatMap((part) => part.clear ?? []);
  return {
    ...(parts.some((part) => part.addFinalizer === true) ? { addFinalizer: true } : {}),
    ...(descriptor === undefined ? {} : { descriptor }),
    ...(parts.some((part) => part.withdraw === true) ? { withdraw: true } : {}),
    ...(clear.length === 0 ? {} : { clear }),
    ...(tasks.length === 0 ? {} : { tasks }),
    ...(feed === undefined ? {} : { feed }),
  };
}

/** What is remembered of this look: rates, since when nothing moved, the last problem. */
function observe({ snapshot, at, settings }: Context): Partial<JobMemory> {
  const { queue, memory } = snapshot;
  const { monotonic } = at;
  if (queue === undefined) {
    return { unavailableSince: memory.unavailableSince ?? monotonic };
  }
  const moved: Partial<JobMemory> = {
    unavailableSince: undefined,
    ...observeProblem(queue, memory, at, settings),
  };
  if (queue.index === undefined) return moved;
  const lines = endedLines(queue);
  const { inputTokens, outputTokens } = queue.usage;
  const sample = { at: monotonic, records: lines, tokens: inputTokens + outputTokens };
  return {
    ...moved,
    // A pause is not slowness.
    samples: snapshot.job.spec.suspend ? [] : addSample(memory.samples, sample, settings.progress),
    ended: memory.ended?.lines === lines ? memory.ended : { lines, since: monotonic },
  };
}

function observeProblem(
  queue: QueueState,
  memory: JobMemory,
  { monotonic }: { monotonic: number },
  settings: { problemShownMilliseconds: number },
): Partial<JobMemory> {
  const { problem } = queue;
  if (problem !== undefined && !isHealed(problem, queue)) return { problem: { problem, seenAt: monotonic } };
  const last = memory.problem;
  if (last === undefined) return {};
  const over = isHealed(last.problem, queue) || monotonic - last.seenAt >= settings.problemShownMilliseconds;
  return over ? { problem: undefined } : {};
}

/** A later report of the same task has made the problem history. */
function isHealed(problem: Problem, { index, published }: QueueState): boolean {
  if (problem.task === 'index') return index !== undefined;
  return problem.task === 'publish' && (published?.at ?? 0) > problem.at;
}

function mayWork({ snapshot }: Context, objection: Objection | undefined): boolean {
  return objection === undefined && !snapshot.job.spec.suspend;
}

/** A job that never ran is told of only when it may: one suspended at birth, or without a model, leaves no trace. */
function describe(context: Context, objection: Objection | undefined): Part {
  const allowed = mayWork(context, objection);
  if (!allowed && neverStarted(context.snapshot)) return {};
  const descriptor = descriptorChange(context, allowed ? 'Run' : 'Suspend');
  return {
    // Before anything is written elsewhere, so that no deletion can leave it behind unseen.
    ...(hasFinalizer(context.snapshot.job) ? {} : { addFinalizer: true }),
    ...(descriptor === undefined ? {} : { descriptor }),
  };
}

function index(context: Context, queue: QueueState, objection: Objection | undefined): Part {
  if (queue.index !== undefined || !mayWork(context, objection)) return {};
  const uid = context.snapshot.job.metadata.uid ?? '';
  const task = { task: { kind: 'index' as const, uid }, delayMilliseconds: 0 };
  if (queue.problem?.task !== 'index') return { tasks: [task] };
  const retry = retryOf(queue.problem, context.snapshot.memory, context.at, context.settings);
  if (retry.inMilliseconds > 0) return { alarm: retry.inMilliseconds };
  return { clear: ['problem'], tasks: [task], memory: { retries: retry.retries } };
}

function feed(context: Context, queue: QueueState, objection: Objection | undefined): Part {
  const { snapshot, at, settings } = context;
  const { availability, memory, job } = snapshot;
  const { index } = queue;
  const runs =
    index !== undefined &&
    mayWork(context, objection) &&
    availability !== undefined &&
    availability.blocked === undefined;
  if (!runs) {
    // What waits in the queue would only be taken and handed back; another job could use its turn.
    if (memory.withdrawn === true || neverStarted(snapshot)) return {};
    return { withdraw: true, memory: { withdrawn: true, fed: undefined } };
  }
  const size = windowShards(
    {
      lines: index.total,
      shards: index.shards,
      capacity: availability.limit,
      maxInFlight: job.spec.maxInFlight,
      liveWorkers: snapshot.liveWorkers ?? 0,
    },
    settings.feed,
  );
  const shards = firstNotDone(queue.done, index.shards, size);
  const period = refeedAfter(snapshot.fedJobs, settings.feed);
  const last = memory.fed;
  const whole = last === undefined || at.monotonic - last.at >= period;
  const known = new Set(whole ? [] : last.shards);
  const missing = shards.filter((shard) => !known.has(shard));
  const fedAt = whole ? at.monotonic : last.at;
  return {
    ...(missing.length === 0 ? {} : { feed: missing }),
    memory: { fed: { shards, at: fedAt }, withdrawn: undefined },
    alarm: fedAt + period - at.monotonic,
  };
}

function publish({ snapshot, at, settings }: Context, queue: QueueState): Part {
  const { index, published, problem } = queue;
  if (index === undefined) return {};
  const publishedShards = published?.shards ?? 0;
  const prefix = donePrefix(queue.done, index.shards);
  if (prefix <= publishedShards) return { memory: { publish: undefined } };
  const known = snapshot.memory.publish;
  const tail =
    known?.fromShard === publishedShards ? known : { fromShard: publishedShards, tailSince: at.monotonic };
  const remembered = { memory: { publish: tail } };
  // After a problem the retry decides when it is asked for again.
  if (problem?.task === 'publish' && !isHealed(problem, queue)) return remembered;
  const due = publishDueIn(
    {
      now: at.monotonic,
      donePrefix: prefix,
      doneShards: queue.doneShards,
      doneBytes: queue.resultsBytes + queue.errorsBytes,
      publishedShards,
      publishedBytes: (published?.resultsBytes ?? 0) + (published?.errorsBytes ?? 0),
      tailSince: tail.tailSince,
    },
    settings.publish,
  );
  if (due === undefined || due > 0) return { ...remembered, alarm: due };
  const again = tail.askedAt === undefined ? 0 : tail.askedAt + PUBLISH_AGAIN_MILLISECONDS - at.monotonic;
  if (again > 0) return { ...remembered, alarm: again };
  const uid = snapshot.job.metadata.uid ?? '';
  return {
    tasks: [{ task: { kind: 'publish', uid }, delayMilliseconds: 0 }],
    memory: { publish: { ...tail, askedAt: at.monotonic } },
    alarm: PUBLISH_AGAIN_MILLISECONDS,
  };
}

/** Problems of other tasks than indexing: those of shards heal by feeding, publishing is asked for again. */
function retryOthers({ snapshot, at, settings }: Context, queue: QueueState): Part {
  const { problem } = queue;
  if (problem === undefined) return {};
  if (isHealed(problem, queue)) return { clear: ['problem'] };
  if (problem.task === 'index') return {};
  const retry = retryOf(problem, snapshot.memory, at, settings);
  if (retry.inMilliseconds > 0) return { alarm: retry.inMilliseconds };
  const uid = snapshot.job.metadata.uid ?? '';
  const tasks =
    problem.task === 'publish' ? [{ task: { kind: 'publish' as const, uid }, delayMilliseconds: 0 }] : [];
  return { clear: ['problem'], tasks, memory: { retries: retry.retries } };
}

function draftStatus(context: Context, objection: Objection | undefined): Status {
  const { snapshot, at } = context;
  const { job, queue } = snapshot;
  const standing = standingOf(context, objection);
  return statusWith(job, at.now, {
    state: standing.state ?? stateOf(job.status),
    message: standing.message,
    conditions: liveConditions(context, objection, standing),
    fields: {
      ...(objection === undefined && job.status?.startTime === undefined
        ? { startTime: kubeTime(at.now) }
        : {}),
      ...(queue?.index === undefined ? {} : numbersOf(context, queue, queue.index)),
      ...(job.spec.suspend ? NO_RATE : rateFields(context, queue)),
    },
  });
}
