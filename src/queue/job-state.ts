/** What is kept of one job in Redis, as numbers and JSON, and back. Nothing here is of size per line. */
import { noOutcomes, noUsage, type OutcomeCounts, type RecentError, type Usage } from '../batch/model.ts';
import type {
  FinalReport,
  IndexReport,
  JobDescriptor,
  JobState,
  Problem,
  PublishedReport,
  ShardDone,
} from './contract.ts';
import { COUNT_FIELDS, RECENT_ERRORS_KEPT } from './job-scripts.ts';

export interface StoredJob {
  fields: Record<string, string>;
  done: Uint8Array | null;
  open: readonly string[];
  recent: readonly string[];
  held: readonly string[];
  /** Epoch milliseconds of the server. */
  now: number;
}

/** A field that cannot be read counts as lost: it is rebuilt like everything else here. */
export function parsed<T>(json: string | undefined): T | undefined {
  if (json === undefined) return undefined;
  try {
    return JSON.parse(json) as T;
  } catch {
    return undefined;
  }
}

export function jobStateOf(stored: StoredJob): JobState {
  const { fields } = stored;
  const number = (name: string): number => Number(fields[name] ?? 0);
  const counts = noOutcomes();
  const usage = noUsage();
  addCounts(counts, usage, COUNT_FIELDS.map(number));
  for (const live of stored.open) addCounts(counts, usage, live.split(',').map(Number));
  const open = stored.held.map(heldOf).filter(({ expiry }) => expiry > stored.now);
  return {
    descriptor: parsed<JobDescriptor>(fields['descriptor']),
    index: parsed<IndexReport>(fields['index']),
    done: stored.done ?? new Uint8Array(0),
    doneShards: number('doneShards'),
    counts,
    usage,
    resultsBytes: number('resultsBytes'),
    errorsBytes: number('errorsBytes'),
    recentErrors: stored.recent
      .map((json) => parsed<RecentError>(json))
      .filter((error): error is RecentError => error !== undefined),
    published: parsed<PublishedReport>(fields['published']),
    final: parsed<FinalReport>(fields['final']),
    cleaned: fields['cleaned'] !== undefined,
    problem: parsed<Problem>(fields['problem']),
    openShards: open.length,
    openForMilliseconds: Math.max(0, ...open.map(({ since }) => stored.now - since)),
  };
}

function heldOf(stored: string): { since: number; expiry: number } {
  const [since = 0, expiry = 0] = stored.split('|').map(Number);
  return { since, expiry };
}

/** The arguments of the script shardsDone for one shard. */
export function doneArguments(shard: number, done: ShardDone): (string | number)[] {
  const { counts, usage } = done;
  const recent = done.recentErrors.slice(-RECENT_ERRORS_KEPT);
  return [
    shard,
    ...liveCounts(counts, usage),
    done.resultsBytes,
    done.errorsBytes,
    recent.length,
    ...recent.map((error) => JSON.stringify(error)),
  ];
}

/** In the order of COUNT_FIELDS, without the bytes. */
export function liveCounts(counts: OutcomeCounts, usage: Usage): number[] {
  return [
    counts.completed,
    counts.failed,
    counts.expired,
    counts.cancelled,
    usage.inputTokens,
    usage.cachedInputTokens,
    usage.outputTokens,
  ];
}

function addCounts(counts: OutcomeCounts, usage: Usage, values: readonly number[]): void {
  const [completed, failed, expired, cancelled, input, cached, output] = values.map((value) =>
    Number.isFinite(value) ? value : 0,
  );
  counts.completed += completed ?? 0;
  counts.failed += failed ?? 0;
  counts.expired += expired ?? 0;
  counts.cancelled += cancelled ?? 0;
  usage.inputTokens += input ?? 0;
  usage.cachedInputTokens += cached ?? 0;
  usage.outputTokens += output ?? 0;
}

/** Far above any job (10 M lines are 40,000 shards); a number beyond it would make Redis allocate a huge bitmap. */
export const MAX_SHARDS = 8_000_000;

/** Throws RangeError: such a number is a defect of the caller, not a state of Redis. */
export function checkShard(shard: number): number {
  if (Number.isInteger(shard) && shard >= 0 && shard < MAX_SHARDS) return shard;
  throw new RangeError(`shard number ${shard} is not an integer in [0, ${MAX_SHARDS})`);
}
