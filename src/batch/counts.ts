/** Sums of outcomes and usage, and the invariant they must hold. */
import {
  OUTCOMES,
  noOutcomes,
  noUsage,
  type Counts,
  type LineRecord,
  type OutcomeCounts,
  type Usage,
} from './model.ts';

export const addOutcomes = (a: OutcomeCounts, b: OutcomeCounts): OutcomeCounts => ({
  completed: a.completed + b.completed,
  failed: a.failed + b.failed,
  expired: a.expired + b.expired,
  cancelled: a.cancelled + b.cancelled,
});

export const subtractOutcomes = (a: OutcomeCounts, b: OutcomeCounts): OutcomeCounts => ({
  completed: a.completed - b.completed,
  failed: a.failed - b.failed,
  expired: a.expired - b.expired,
  cancelled: a.cancelled - b.cancelled,
});

export const equalOutcomes = (a: OutcomeCounts, b: OutcomeCounts): boolean =>
  OUTCOMES.every((outcome) => a[outcome] === b[outcome]);

/** Records of any outcome. */
export const outcomesSum = (counts: OutcomeCounts): number =>
  OUTCOMES.reduce((sum, outcome) => sum + counts[outcome], 0);

export const addUsage = (a: Usage, b: Usage): Usage => ({
  inputTokens: a.inputTokens + b.inputTokens,
  cachedInputTokens: a.cachedInputTokens + b.cachedInputTokens,
  outputTokens: a.outputTokens + b.outputTokens,
});

export const subtractUsage = (a: Usage, b: Usage): Usage => ({
  inputTokens: a.inputTokens - b.inputTokens,
  cachedInputTokens: a.cachedInputTokens - b.cachedInputTokens,
  outputTokens: a.outputTokens - b.outputTokens,
});

export const equalUsage = (a: Usage, b: Usage): boolean =>
  a.inputTokens === b.inputTokens &&
  a.cachedInputTokens === b.cachedInputTokens &&
  a.outputTokens === b.outputTokens;

export interface Tally {
  counts: OutcomeCounts;
  usage: Usage;
}

/** What these records count for. */
export function tally(records: Iterable<Pick<LineRecord, 'outcome' | 'usage'>>): Tally {
  const counts = noOutcomes();
  let usage = noUsage();
  for (const record of records) {
    counts[record.outcome]++;
    usage = addUsage(usage, record.usage);
  }
  return { counts, usage };
}

/** The invariant of a finished job: each line has exactly one outcome. */
export const isComplete = (counts: Counts): boolean => outcomesSum(counts) === counts.total;
