/** Rates and forecasts shown in a job's status: rounded, and rewritten only when someone would notice. Pure. */

export interface ProgressSettings {
  /** Rates are measured over this much of the past. */
  rateWindowMilliseconds: number;
  /** Samples are at least this far apart, so that a job keeps a handful of them. */
  sampleMilliseconds: number;
  /** No rate is shown before this much of the past is known (after a restart the old one stays). */
  rateMinimumMilliseconds: number;
  /** A number is rewritten when it moved by more than this. */
  noticeablePercent: number;
}

export interface Sample {
  /** Monotonic milliseconds. */
  at: number;
  records: number;
  tokens: number;
}

/** The samples with this one added and those older than the window dropped, but one to measure from. */
export function addSample(
  samples: readonly Sample[],
  sample: Sample,
  settings: ProgressSettings,
): readonly Sample[] {
  const last = samples.at(-1);
  // Fewer records than before: Redis was lost and counts are being rebuilt. Rates start anew.
  if (last !== undefined && sample.records < last.records) return [sample];
  if (last !== undefined && sample.at - last.at < settings.sampleMilliseconds) return samples;
  const all = [...samples, sample];
  const border = sample.at - settings.rateWindowMilliseconds;
  const firstInside = all.findIndex((each) => each.at >= border);
  return all.slice(Math.max(0, firstInside - 1));
}

export interface Throughput {
  recordsPerMinute: number;
  tokensPerSecond: number;
}

/** undefined while too little of the past is known. */
export function throughputOf(samples: readonly Sample[], settings: ProgressSettings): Throughput | undefined {
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined) return undefined;
  const elapsed = last.at - first.at;
  if (elapsed < settings.rateMinimumMilliseconds) return undefined;
  return {
    recordsPerMinute: roundRate(((last.records - first.records) / elapsed) * 60_000),
    tokensPerSecond: roundRate((Math.max(0, last.tokens - first.tokens) / elapsed) * 1_000),
  };
}

/** Whole, with at most three digits that count. */
export function roundRate(value: number): number {
  return Math.round(value < 1_000 ? value : Number(value.toPrecision(3)));
}

/** Whether the new number differs enough from the one shown to be worth a write. */
export function isNoticeable(shown: number | undefined, value: number, percent: number): boolean {
  if (shown === undefined || (shown === 0) !== (value === 0)) return true;
  return Math.abs(value - shown) * 100 > percent * shown;
}

/**
 * When the job will be done at this rate, epoch milliseconds, in whole seconds; undefined where there is no rate.
 * The forecast that is shown stays while it is off by less than the noticeable share of what remains.
 */
export function forecast(
  input: { now: number; remaining: number; recordsPerMinute: number; shown: number | undefined },
  settings: ProgressSettings,
): number | undefined {
  if (input.recordsPerMinute <= 0 || input.remaining <= 0) return undefined;
  const remainingMilliseconds = (input.remaining / input.recordsPerMinute) * 60_000;
  const value = Math.ceil((input.now + remainingMilliseconds) / 1_000) * 1_000;
  if (input.shown === undefined) return value;
  const tolerance = Math.max(2_000, (remainingMilliseconds * settings.noticeablePercent) / 100);
  return Math.abs(value - input.shown) > tolerance ? value : input.shown;
}

/** Whole percent; 100 only when nothing is left. */
export function percentOf(ended: number, total: number): number {
  if (total <= 0) return 0;
  return ended >= total ? 100 : Math.min(99, Math.floor((ended / total) * 100));
}
