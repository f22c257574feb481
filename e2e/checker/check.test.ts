import { describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { check, recordIdOf, repeatableAfter, type EngineCall, type JobFacts } from './check.ts';
import { inputLines, markerOf } from './input-lines.ts';

const UID = '0f8fad5b-d9cb-469f-a165-70867728950e';
const KEY = 'in/a.jsonl';

const line = (n: number): string =>
  JSON.stringify({
    custom_id: `line-${n}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { messages: [{ role: 'user', content: markerOf('job', n) }] },
  });

const result = (ordinal: number, n: number, marker = markerOf('job', n)): string =>
  JSON.stringify({
    id: recordIdOf(UID, ordinal),
    custom_id: `line-${n}`,
    response: {
      status_code: 200,
      request_id: `r-${n}`,
      body: {
        choices: [{ message: { content: marker } }],
        usage: { prompt_tokens: 10, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } },
      },
    },
    error: null,
  });

const neverRan = (ordinal: number, customId: string | null, at: number, code: string): string =>
  JSON.stringify({
    id: recordIdOf(UID, ordinal),
    custom_id: customId,
    response: null,
    error: { code, message: 'why', param: null, line: at, key: KEY },
  });

const refused = (ordinal: number, n: number): string =>
  JSON.stringify({
    id: recordIdOf(UID, ordinal),
    custom_id: `line-${n}`,
    response: { status_code: 400, request_id: `r-${n}`, body: { error: { message: 'too long' } } },
    error: null,
  });

/** Physical lines 1, 2 run; 3 is blank; 4 is broken; 5 was refused; 6 was cancelled. */
const INPUT = [line(1), line(2), '', '{"custom_id":', line(5), line(6)].join('\n');
const RESULTS = [result(0, 1), result(1, 2)];
const ERRORS = [
  neverRan(2, null, 4, 'invalid_json_line'),
  refused(3, 5),
  neverRan(4, 'line-6', 6, 'batch_cancelled'),
];
const call = (n: number, ending: EngineCall['ending'], arrivedAt = 0, endedAt?: number): EngineCall => ({
  ...{ marker: markerOf('job', n), ending, arrivedAt, endedAt },
});
const answered = (n: number): EngineCall => call(n, 'answered');
const CALLS: EngineCall[] = [answered(1), answered(2), call(5, 'failed')];

const file = (records: readonly string[]): Buffer | undefined =>
  records.length === 0 ? undefined : Buffer.from(records.map((record) => `${record}\n`).join(''));

interface Variation {
  results?: readonly string[];
  errors?: readonly string[];
  input?: string;
  calls?: EngineCall[];
}

/** A job that was cancelled with everything in order, and status and manifest that fit its files. */
function facts({
  results = RESULTS,
  errors = ERRORS,
  input = INPUT,
  calls = CALLS,
}: Variation = {}): JobFacts {
  const all = errors.map((record) => (record.startsWith('{') ? record : '{}'));
  const count = (code: string): number => all.filter((record) => record.includes(`"${code}"`)).length;
  const total = inputLines([{ key: KEY, bytes: Buffer.from(input) }]).length;
  const counts = {
    total,
    completed: results.length,
    failed: errors.length - count('batch_cancelled') - count('batch_expired'),
    expired: count('batch_expired'),
    cancelled: count('batch_cancelled'),
  };
  const usage = {
    inputTokens: 10 * results.length,
    cachedInputTokens: 4 * results.length,
    outputTokens: 2 * results.length,
  };
  const [resultsFile, errorsFile] = [file(results), file(errors)];
  const described = (key: string, bytes: Buffer | undefined, lines: number): object | null =>
    bytes === undefined
      ? null
      : {
          key,
          bytes: bytes.length,
          lines,
          crc32: crc32(bytes).toString(16).padStart(8, '0'),
          segments: [
            {
              shard: 0,
              offset: 0,
              bytes: bytes.length,
              lines,
              sha256: createHash('sha256').update(bytes).digest('hex'),
            },
          ],
        };
  const manifest = {
    job: { uid: UID, name: 'job' },
    counts,
    usage,
    results: described('out/results.jsonl', resultsFile, results.length),
    errors: described('out/errors.jsonl', errorsFile, errors.length),
  };
  return {
    job: {
      metadata: { name: 'job', uid: UID },
      spec: { retry: { maxAttempts: 3 } },
      status: {
        state: 'Cancelled',
        conditions: [{ type: 'Failed', status: 'True', reason: 'Cancelled', message: '' }],
        counts,
        progress: `${total}/${total}`,
        usage,
        outputs: {
          ...(resultsFile ? { results: 's3://b/out/results.jsonl' } : {}),
          ...(errorsFile ? { errors: 's3://b/out/errors.jsonl' } : {}),
          manifest: 's3://b/out/manifest.json',
        },
        completionTime: '2026-11-30T00:00:00Z',
      },
    },
    input: [{ key: KEY, bytes: Buffer.from(input) }],
    results: resultsFile,
    errors: errorsFile,
    manifest: Buffer.from(JSON.stringify(manifest)),
    calls,
    leftovers: [],
  };
}

const violations = (of: JobFacts, repeatedCalls = 0): string =>
  check(of, { ending: 'ended', repeatedCalls }).join('\n');

test('finds nothing where everything is in order', () => {
  expect(violations(facts())).toBe('');
});

describe('finds in the files', () => {
  const cases: [string, Variation, RegExp][] = [
    ['a line without a record', { results: [RESULTS[0]!] }, /in\/a.jsonl:2 \(line-2\) has no record/],
    ['a line with two results', { results: [...RESULTS, RESULTS[1]!] }, /line-2\) has two records/],
    [
      'a line in both files',
      { errors: [neverRan(0, 'line-1', 1, 'batch_cancelled'), ...ERRORS] },
      /line-1\) has two records: results.jsonl:1 and errors.jsonl:1/,
    ],
    [
      'a record of no line',
      { results: [...RESULTS, result(9, 9)] },
      /results.jsonl:3: belongs to no input line/,
    ],
    [
      'an answer to another line',
      { results: [result(0, 1), result(1, 2, markerOf('job', 1))] },
      /lacks its marker/,
    ],
    [
      'an answer that mixes two',
      { results: [result(0, 1), result(1, 2, `${markerOf('job', 2)} ${markerOf('job', 1)}`)] },
      /carries the marker marker:job_1/,
    ],
    ['results out of input order', { results: [...RESULTS].reverse() }, /stands after .*not in input order/],
    [
      'an error record with the id of another line',
      { errors: [ERRORS[0]!, ERRORS[1]!, neverRan(4, 'line-5', 6, 'batch_cancelled')] },
      /custom_id "line-5" is not that of in\/a.jsonl:6 \(line-6\)/,
    ],
    [
      'a record id of another line',
      { results: [result(1, 1), result(0, 2)] },
      /is not that of in\/a.jsonl:1/,
    ],
    [
      'a torn last line',
      { results: [result(0, 1), result(1, 2).slice(0, 40)] },
      /results.jsonl:2: is not JSON/,
    ],
    [
      'an error among the results',
      { results: [...RESULTS, refused(3, 5)], errors: [ERRORS[0]!, ERRORS[2]!] },
      /no good answer \(400\) stands among the results/,
    ],
    [
      'a good answer among the errors',
      { results: [RESULTS[0]!], errors: [result(1, 2), ...ERRORS] },
      /a good answer \(200\) stands among the errors/,
    ],
    [
      'status code 0 (seen live: batch-api.md §5)',
      { errors: [ERRORS[0]!, refused(3, 5).replace('400', '0'), ERRORS[2]!] },
      /status_code is 0/,
    ],
    [
      'a raw line separator that clients split at',
      { results: [RESULTS[0]!, result(1, 2, `${markerOf('job', 2)}\u2028`)] },
      /raw line separator/,
    ],
  ];
  test.each(cases)('%s', (_, variation, message) => {
    expect(violations(facts(variation))).toMatch(message);
  });

  test('a file that exists without records', () => {
    expect(violations({ ...facts(), results: Buffer.alloc(0) })).toMatch(/exists but is empty/);
  });
});

describe('finds in the status', () => {
  const changed = (change: object): JobFacts => {
    const good = facts();
    return { ...good, job: { ...good.job, status: { ...good.job.status, ...change } } };
  };
  const counts = facts().job.status!.counts!;
  test.each<[string, object, RegExp]>([
    ['a wrong total', { counts: { ...counts, total: 6 } }, /counts.total is 6, the input has 5 lines/],
    [
      'a count above the file',
      { counts: { ...counts, completed: 3 } },
      /counts.completed is 3, the files have 2/,
    ],
    ['no end', { conditions: [] }, /exactly one of Complete and Failed/],
    [
      'two ends',
      {
        conditions: ['Complete', 'Failed'].map((type) => ({
          type,
          status: 'True',
          reason: 'x',
          message: '',
        })),
      },
      /exactly one of Complete and Failed/,
    ],
    ['no time of completion', { completionTime: undefined }, /completionTime is missing/],
    ['a state that is no end', { state: 'Finalizing' }, /not how a job ends/],
    ['progress short of its end', { progress: '4/5' }, /progress is 4\/5, not 5\/5/],
    [
      'usage other than the sum',
      { usage: { inputTokens: 1 } },
      /usage.inputTokens is 1, the answers add up to 20/,
    ],
    [
      'an output that is missing',
      { outputs: { manifest: 's3://b/manifest.json' } },
      /outputs.results is undefined/,
    ],
  ])('%s', (_, change, message) => {
    expect(violations(changed(change))).toMatch(message);
  });
});

describe('finds in the manifest', () => {
  const changed = (change: (text: string) => string): JobFacts => {
    const good = facts();
    return { ...good, manifest: Buffer.from(change(good.manifest!.toString())) };
  };
  test.each<[string, (text: string) => string, RegExp]>([
    ['another job', (text) => text.replace(UID, 'x'), /is of job x/],
    ['a wrong checksum of the file', (text) => text.replace(/"crc32":"[^"]*"/, '"crc32":"0"'), /crc32 is 0/],
    [
      'a wrong checksum of a segment',
      (text) => text.replace(/"sha256":"[^"]*"/, '"sha256":"0"'),
      /sha256 differs/,
    ],
    ['a gap between segments', (text) => text.replace('"offset":0', '"offset":1'), /starts at 1, not at 0/],
    ['wrong counts', (text) => text.replace('"completed":2', '"completed":1'), /counts.completed is 1/],
  ])('%s', (_, change, message) => {
    expect(violations(changed(change))).toMatch(message);
  });

  test('that it is missing', () => {
    expect(violations({ ...facts(), manifest: undefined })).toMatch(/no such object/);
  });
});

describe('counts calls of the engine', () => {
  const withCalls = (...more: EngineCall[]): JobFacts => facts({ calls: [...CALLS, ...more] });
  const cut = (n: number): EngineCall => call(n, 'aborted');

  test('a second answer to one line is a repetition, within the bound or beyond it', () => {
    expect(violations(withCalls(answered(1)), 1)).toBe('');
    expect(violations(withCalls(answered(1), answered(2)), 1)).toMatch(
      /2 requests were repeated .* at most 1/,
    );
  });

  test('so is a call that was cut off before the line got its answer', () => {
    expect(violations(withCalls(cut(1)), 1)).toBe('');
    expect(violations(withCalls(cut(1)))).toMatch(/1 requests were repeated/);
  });

  test('the one call of a line that was cancelled in mid-answer is none', () => {
    expect(violations(withCalls(cut(6)))).toBe('');
  });

  test('failed attempts up to maxAttempts are none', () => {
    const failed: EngineCall = call(5, 'failed');
    expect(violations(withCalls(failed, failed))).toBe('');
    expect(violations(withCalls(failed, failed, failed))).toMatch(/1 requests were repeated/);
  });

  test('refused, 429 and 503 calls cost nothing', () => {
    const away: EngineCall = call(1, 'turnedAway');
    expect(violations(withCalls(away, away, away))).toBe('');
  });

  test('an answer that the engine never gave is made up', () => {
    expect(violations(facts({ calls: CALLS.slice(1) }))).toMatch(
      /line-1\) has an answer, but the engine's log/,
    );
  });
});

test('a crash may repeat what was in flight and what ended since the last checkpoint', () => {
  const calls = [
    call(1, 'answered', 0, 100),
    call(2, 'answered', 0, 950),
    call(3, 'answered', 900, 1_200),
    call(4, 'open', 900),
    call(5, 'turnedAway', 900, 950),
    call(6, 'answered', 1_100, 1_200),
  ];
  expect(repeatableAfter(1_000, 100, calls)).toBe(3);
});

test('what is left behind is named', () => {
  expect(violations({ ...facts(), leftovers: ['out/_tidegate/x'] })).toMatch(
    /left behind: out\/_tidegate\/x/,
  );
});

describe('after a deletion', () => {
  const deleted = (of: JobFacts): string => check(of, { ending: 'deleted', repeatedCalls: 0 }).join('\n');
  test('lines without a record are fine', () => {
    expect(deleted({ ...facts({ results: [RESULTS[0]!], errors: [] }), manifest: undefined })).toBe('');
  });
  test('two records of one line are not', () => {
    expect(deleted(facts({ results: [...RESULTS, RESULTS[1]!] }))).toMatch(/two records/);
  });
});

describe('reads the input by itself', () => {
  const read = (text: string | Buffer) => inputLines([{ key: KEY, bytes: Buffer.from(text) }]);
  test.each([
    [
      'keeps physical line numbers across blank lines',
      '\n  \n{"custom_id":"a"}\n\n{"custom_id":"b"}',
      [3, 5],
    ],
    ['drops a BOM and carriage returns', '\uFEFF{"custom_id":"a"}\r\n\r\n{"custom_id":"b"}\r\n', [1, 3]],
    ['does not split at U+2028', '{"custom_id":"a\u2028"}\n{"custom_id":"b"}', [1, 2]],
    ['has no line in an empty object', '', []],
  ])('%s', (_, text, numbers) => {
    expect(read(text).map((each) => each.line)).toEqual(numbers);
  });

  test('the first of two equal ids runs', () => {
    expect(read('{"custom_id":"a"}\n{"custom_id":"a"}').map((each) => each.duplicate)).toEqual([false, true]);
  });

  test('a line that is no UTF-8 is a line', () => {
    expect(read(Buffer.from([0x22, 0xff, 0x22, 0x0a]))).toMatchObject([{ line: 1, customId: undefined }]);
  });
});
