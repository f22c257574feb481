/**
 * The invariant, tested after every fault: each input line has exactly one record, in exactly one of results and
 * errors, with its own custom_id, and the counts in status equal the lines in the files.
 *
 * `check` is pure: facts in, violations out. harness/scenario.ts reads the facts from the real store, API server and engine.
 */
import type { EngineCall, JobFacts, JobStatus } from './facts.ts';
import { inputLines, markersIn, type InputLine } from './input-lines.ts';
import { checkManifest } from './manifest.ts';
import { publishedRecords, type Outcome, type PublishedRecord } from './published-records.ts';

export type { EngineCall, JobFacts, JobObject, JobStatus } from './facts.ts';

export interface Expectation {
  /** deleted: "at most one record a line", and neither status nor manifest is looked at. */
  ending: 'ended' | 'deleted';
  /**
   * How many requests beyond one a line may have reached the engine; see `repeatableAfter`. Failed attempts up to
   * `retry.maxAttempts` are allowed besides.
   */
  repeatedCalls: number;
}

/**
 * What a crash at this time may repeat at most: the lines in flight, and those finished since the last checkpoint,
 * which is at most so long ago.
 */
export function repeatableAfter(
  crashAt: number,
  sinceCheckpointMilliseconds: number,
  calls: readonly EngineCall[],
): number {
  return calls.filter(
    ({ ending, arrivedAt, endedAt }) =>
      ending !== 'turnedAway' &&
      arrivedAt <= crashAt &&
      (endedAt === undefined || endedAt >= crashAt - sinceCheckpointMilliseconds),
  ).length;
}

/** Every departure from the invariant, in words; empty when it holds. At most 30, the rest counted. */
export function check(facts: JobFacts, expectation: Expectation): string[] {
  const violations: string[] = [];
  const violation = (message: string): void => void violations.push(message);
  const lines = inputLines(facts.input);
  const results = facts.results ? publishedRecords('results.jsonl', facts.results, violation) : [];
  const errors = facts.errors ? publishedRecords('errors.jsonl', facts.errors, violation) : [];
  const records = [...results, ...errors];

  checkOneRecordEach(lines, records, facts.job.metadata.uid, expectation, violation);
  for (const file of [results, errors]) checkOrder(lines, file, violation);
  checkAnswers(lines, results, violation);
  checkCalls(lines, results, facts, expectation, violation);
  if (expectation.ending === 'ended') {
    checkStatus(lines, results, errors, facts.job.status ?? {}, violation);
    checkManifest(facts, { total: lines.length, results, errors }, violation);
  }
  for (const key of facts.leftovers) violation(`left behind: ${key}`);
  return shortened(violations);
}

type Report = (message: string) => void;

const name = (line: InputLine): string =>
  `${line.key}:${line.line}${line.customId === undefined ? '' : ` (${line.customId})`}`;

/** The id that docs/reference/records.md promises: from the job's UID and the line's position alone. */
export const recordIdOf = (uid: string | undefined, ordinal: number): string =>
  `batch_req_${uid?.replaceAll('-', '')}${ordinal.toString(16).padStart(8, '0')}`;

/** Which input line a record is about: by line and key where it says so, otherwise by custom_id. */
function lineFinder(lines: readonly InputLine[]): (record: PublishedRecord) => InputLine | undefined {
  const byPlace = new Map(lines.map((line) => [`${line.key}:${line.line}`, line]));
  const byId = new Map<string, InputLine>();
  for (const line of lines) if (line.customId !== undefined && !line.duplicate) byId.set(line.customId, line);
  const onlyKey = new Set(lines.map((line) => line.key)).size === 1 ? lines[0]?.key : undefined;
  return ({ error, customId }) => {
    if (error?.line !== undefined) return byPlace.get(`${error.key ?? onlyKey}:${error.line}`);
    return customId === null ? undefined : byId.get(customId);
  };
}

function checkOneRecordEach(
  lines: readonly InputLine[],
  records: readonly PublishedRecord[],
  uid: string | undefined,
  { ending }: Expectation,
  violation: Report,
): void {
  const find = lineFinder(lines);
  const recordOf = new Map<InputLine, PublishedRecord>();
  const ids = new Map<string, PublishedRecord>();
  for (const record of records) {
    const where = `${record.file}:${record.at}`;
    const twin = ids.get(record.id);
    if (twin) violation(`${where}: the id ${record.id} is also that of ${twin.file}:${twin.at}`);
    ids.set(record.id, record);
    const line = find(record);
    if (line === undefined) {
      violation(`${where}: belongs to no input line (custom_id ${JSON.stringify(record.customId)})`);
      continue;
    }
    const earlier = recordOf.get(line);
    if (earlier) violation(`${name(line)} has two records: ${earlier.file}:${earlier.at} and ${where}`);
    recordOf.set(line, record);
    const id = recordIdOf(uid, line.ordinal);
    if (uid !== undefined && record.id !== id) {
      violation(`${where}: the id ${record.id} is not that of ${name(line)}, ${id}`);
    }
    if (record.customId !== (line.customId ?? null) && !mayBeUnreadable(line, record)) {
      violation(`${where}: custom_id ${JSON.stringify(record.customId)} is not that of ${name(line)}`);
    }
  }
  if (ending === 'deleted') return;
  for (const line of lines) if (!recordOf.has(line)) violation(`${name(line)} has no record`);
}

/** A custom_id that breaks the rules (too long, control characters) need not be repeated. */
const mayBeUnreadable = (line: InputLine, record: PublishedRecord): boolean =>
  record.customId === null &&
  record.error !== null &&
  /custom_id/.test(record.text) &&
  line.customId !== undefined;

function checkOrder(
  lines: readonly InputLine[],
  records: readonly PublishedRecord[],
  violation: Report,
): void {
  const find = lineFinder(lines);
  let last: InputLine | undefined;
  for (const record of records) {
    const line = find(record);
    if (line === undefined) continue;
    if (last !== undefined && line.ordinal < last.ordinal) {
      violation(`${record.file}:${record.at}: ${name(line)} stands after ${name(last)}, not in input order`);
    }
    last = line;
  }
}

function checkAnswers(
  lines: readonly InputLine[],
  results: readonly PublishedRecord[],
  violation: Report,
): void {
  const find = lineFinder(lines);
  for (const record of results) {
    const line = find(record);
    if (line?.marker === undefined) continue;
    const found = new Set(markersIn(record.text));
    if (!found.has(line.marker)) {
      violation(`${record.file}:${record.at}: the answer to ${name(line)} lacks its marker ${line.marker}`);
    }
    found.delete(line.marker);
    for (const foreign of found) {
      violation(`${record.file}:${record.at}: the answer to ${name(line)} carries the marker ${foreign}`);
    }
  }
}

function checkCalls(
  lines: readonly InputLine[],
  results: readonly PublishedRecord[],
  { job, calls }: JobFacts,
  { repeatedCalls }: Expectation,
  violation: Report,
): void {
  const byMarker = new Map<string, EngineCall[]>();
  for (const call of calls) {
    if (call.marker === undefined || call.ending === 'turnedAway') continue;
    byMarker.set(call.marker, [...(byMarker.get(call.marker) ?? []), call]);
  }
  const completed = new Set(results.map((record) => record.customId));
  const attempts = job.spec.retry?.maxAttempts ?? 5;
  let repeated = 0;
  for (const line of lines) {
    if (line.marker === undefined) continue;
    const own = byMarker.get(line.marker) ?? [];
    const answered = own.filter(({ ending }) => ending === 'answered').length;
    const failed = own.filter(({ ending }) => ending === 'failed').length;
    const cut = own.length - answered - failed;
    // Of the calls that ended by themselves one answer, or all attempts, are what the line is worth.
    repeated +=
      Math.max(0, answered - 1) +
      Math.max(0, failed - attempts) +
      (answered > 0 ? cut : Math.max(0, cut - 1));
    if (line.duplicate) {
      if (own.length > 0 && !lines.some((other) => other !== line && other.marker === line.marker))
        violation(`${name(line)} is a duplicate but was sent to the engine`);
    } else if (line.customId !== undefined && completed.has(line.customId) && answered === 0) {
      violation(`${name(line)} has an answer, but the engine's log knows of none`);
    }
  }
  if (repeated > repeatedCalls) {
    violation(`${repeated} requests were repeated without need; at most ${repeatedCalls} may be`);
  }
}

function checkStatus(
  lines: readonly InputLine[],
  results: readonly PublishedRecord[],
  errors: readonly PublishedRecord[],
  status: JobStatus,
  violation: Report,
): void {
  const outcomes: Record<Outcome, number> = { completed: 0, failed: 0, expired: 0, cancelled: 0 };
  for (const record of [...results, ...errors]) outcomes[record.outcome] += 1;
  const { counts } = status;
  if (counts === undefined) {
    violation('status.counts is missing');
  } else {
    if (counts.total !== lines.length)
      violation(`status.counts.total is ${counts.total}, the input has ${lines.length} lines`);
    for (const outcome of ['completed', 'failed', 'expired', 'cancelled'] as const) {
      if (counts[outcome] !== outcomes[outcome])
        violation(`status.counts.${outcome} is ${counts[outcome]}, the files have ${outcomes[outcome]}`);
    }
    const progress = `${lines.length}/${lines.length}`;
    if (status.progress !== progress) violation(`status.progress is ${status.progress}, not ${progress}`);
  }

  const isTrue = (type: string): boolean =>
    status.conditions?.some((condition) => condition.type === type && condition.status === 'True') ?? false;
  if (isTrue('Complete') === isTrue('Failed')) {
    violation(`exactly one of Complete and Failed must be true: ${JSON.stringify(status.conditions)}`);
  }
  if (status.completionTime === undefined) violation('status.completionTime is missing');
  if (!['Completed', 'Cancelled', 'Expired', 'Failed'].includes(status.state ?? '')) {
    violation(`status.state is ${status.state}, which is not how a job ends`);
  }
  if (isTrue('Complete') !== (status.state === 'Completed')) {
    violation(`status.state ${status.state} and the condition Complete disagree`);
  }

  for (const [output, records] of [
    ['results', results],
    ['errors', errors],
  ] as const) {
    const uri = status.outputs?.[output];
    if (records.length > 0 !== (uri !== undefined))
      violation(`status.outputs.${output} is ${uri}, and the file has ${records.length} records`);
    if (uri !== undefined && !uri.endsWith(`/${output}.jsonl`))
      violation(`status.outputs.${output} is ${uri}`);
  }
  checkUsage([...results, ...errors], status, violation);
}

interface EngineUsage {
  prompt_tokens?: number;
  input_tokens?: number;
  completion_tokens?: number;
  output_tokens?: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
  input_tokens_details?: { cached_tokens?: number } | null;
}

function checkUsage(records: readonly PublishedRecord[], status: JobStatus, violation: Report): void {
  const sum = { inputTokens: 0, cachedInputTokens: 0, outputTokens: 0 };
  for (const { response } of records) {
    const usage = (response?.body as { usage?: EngineUsage } | undefined)?.usage ?? {};
    sum.inputTokens += usage.prompt_tokens ?? usage.input_tokens ?? 0;
    sum.outputTokens += usage.completion_tokens ?? usage.output_tokens ?? 0;
    sum.cachedInputTokens +=
      usage.prompt_tokens_details?.cached_tokens ?? usage.input_tokens_details?.cached_tokens ?? 0;
  }
  for (const field of ['inputTokens', 'cachedInputTokens', 'outputTokens'] as const) {
    if ((status.usage?.[field] ?? 0) !== sum[field])
      violation(`status.usage.${field} is ${status.usage?.[field]}, the answers add up to ${sum[field]}`);
  }
}

function shortened(violations: string[]): string[] {
  const most = 30;
  if (violations.length <= most) return violations;
  return [...violations.slice(0, most), `… and ${violations.length - most} more`];
}
