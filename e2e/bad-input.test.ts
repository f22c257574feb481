/** Bad input: each kind gets a clear error, in the condition or in the line's record, and nothing else stops. */
import { afterAll, describe, expect, test } from '@jest/globals';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { chatLine, chatLines, jsonl, TEST_MODEL, type LineOptions } from './harness/input.ts';
import { batchJob, conditionOf, type LiveJob, type Manifest } from './harness/objects.ts';
import { openScenario, type Scenario, type ScenarioOptions } from './harness/scenario.ts';
import { until } from './harness/until.ts';

const MINUTE = 60_000;
const open: Scenario[] = [];
afterAll(async () => {
  await Promise.all(open.splice(0).map((each) => each.close()));
});

const scenario = async (title: string, options?: ScenarioOptions): Promise<Scenario> => {
  const opened = await openScenario(title, options);
  open.push(opened);
  return opened;
};

interface WrittenRecord {
  custom_id: string | null;
  error: { code: string; message: string; param: string | null; line: number; key: string } | null;
  response: { status_code: number; body: { error?: { message: string } } } | null;
}

async function recordsOf(s: Scenario, job: LiveJob, file: 'results' | 'errors'): Promise<WrittenRecord[]> {
  const bytes = await s.bucket.get(`${job.spec.output.s3.prefix}${file}.jsonl`);
  if (bytes === undefined) return [];
  return bytes
    .toString('utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as WrittenRecord);
}

describe('a bad line gets its own record', () => {
  const bytes = (...parts: (string | Buffer)[]): Buffer =>
    Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)));

  type Case = [what: string, line: Buffer | string, code: string, named: RegExp];
  const casesOf = (job: string, good: (n: number, change?: LineOptions) => string): Case[] => [
    ['is no JSON', '{"custom_id": "x"', 'invalid_json_line', /JSON/],
    ['is null', 'null', 'invalid_json_line', /object/],
    ['is a list', '[1]', 'invalid_json_line', /object/],
    ['is a string', '"x"', 'invalid_json_line', /object/],
    ['is not UTF-8', bytes('{"custom_id":"', Buffer.from([0xff, 0xfe]), '"}'), 'invalid_json_line', /UTF-8/],
    [
      'has no custom_id',
      good(1).replace(/"custom_id":"[^"]*",/, ''),
      'missing_required_parameter',
      /custom_id/,
    ],
    ['has an empty custom_id', good(1, { customId: '' }), 'invalid_value', /custom_id/],
    ['has a number as custom_id', good(1).replace(`"${job}-1"`, '7'), 'invalid_type', /custom_id/],
    ['has a custom_id over 512 bytes', good(1, { customId: 'x'.repeat(513) }), 'invalid_value', /512/],
    ['has a control character in custom_id', good(1, { customId: 'a\u0000b' }), 'invalid_value', /control/],
    ['has no method', good(1).replace('"method":"POST",', ''), 'missing_required_parameter', /method/],
    ['has another method', good(1, { method: 'GET' }), 'invalid_method', /GET/],
    [
      'has another url',
      good(1, { url: '/v1/embeddings' }),
      'invalid_url',
      /\/v1\/chat\/completions.*\/v1\/embeddings/,
    ],
    [
      'has no body',
      '{"custom_id":"b","method":"POST","url":"/v1/chat/completions"}',
      'missing_required_parameter',
      /body/,
    ],
    [
      'has a string as body',
      '{"custom_id":"b","method":"POST","url":"/v1/chat/completions","body":"x"}',
      'invalid_type',
      /body/,
    ],
    ['asks for a stream', good(1, { body: { stream: true } }), 'streaming_unsupported', /stream/],
    ['names a model of somebody else', good(1, { model: 'gpt-9' }), 'model_not_found', /gpt-9/],
    ['repeats a custom_id', good(1, { customId: `${job}-first` }), 'duplicate_custom_id', /first/],
  ];

  test(
    'named by line and field, and the lines around it run',
    async () => {
      const s = await scenario('bad-lines');
      const job = s.namespace;
      const good = (n: number, change: LineOptions = {}): string => chatLine(job, n, change);
      const cases = casesOf(job, good);
      const parts: Buffer[] = [Buffer.from(`${good(0, { customId: `${job}-first` })}\n`)];
      for (const [index, [, line]] of cases.entries()) {
        parts.push(bytes(line, '\n'), Buffer.from(`${good(100 + index)}\n`));
      }
      const key = await s.putInput('a.jsonl', Buffer.concat(parts));
      await s.createJob({ keys: [key] });
      const ended = await s.untilEnded();

      const errors = await recordsOf(s, ended, 'errors');
      const found = errors.map(({ error }) => [error?.line, error?.code, error?.key]);
      expect(found).toEqual(cases.map(([, , code], index) => [2 + 2 * index, code, key]));
      for (const [index, [, , , named]] of cases.entries()) {
        expect(`${errors[index]?.error?.param} ${errors[index]?.error?.message}`).toMatch(named);
      }
      expect(ended.status?.counts).toMatchObject({ completed: cases.length + 1, failed: cases.length });
      expect(ended.status?.recentErrors?.length).toBeLessThanOrEqual(10);
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    2 * MINUTE,
  );

  test(
    'unless invalidLines is Fail: then nothing runs, and the lines are listed',
    async () => {
      const s = await scenario('strict');
      const key = await s.putInput('a.jsonl', [...chatLines(s.namespace, 20), '{"custom_id":', 'null']);
      await s.create(strictJob(s, [key]));
      const ended = await s.untilEnded();
      expect(conditionOf(ended, 'Failed')).toMatchObject({ status: 'True', reason: 'InvalidInput' });
      expect(conditionOf(ended, 'Failed')?.message).toMatch(/21/);
      expect(ended.status?.recentErrors).toMatchObject([{ line: 21 }, { line: 22 }]);
      expect(s.calls()).toEqual([]);
    },
    2 * MINUTE,
  );
});

function strictJob(s: Scenario, keys: string[]): Manifest {
  const manifest = batchJob(s.stack.description, {
    name: 'job',
    namespace: s.namespace,
    keys,
    outputPrefix: `${s.namespace}/out/job/`,
  });
  const input = manifest.spec['input'] as Record<string, unknown>;
  return { ...manifest, spec: { ...manifest.spec, input: { ...input, invalidLines: 'Fail' } } };
}

describe('odd but valid input runs', () => {
  const variants: [string, (lines: string[]) => Buffer][] = [
    ['with a BOM, CRLF and blank lines', (lines) => Buffer.from(`\uFEFF${lines.join('\r\n\r\n  \r\n')}\r\n`)],
    ['without a last line break', (lines) => Buffer.from(lines.join('\n'))],
    [
      'with raw U+2028, U+2029 and U+0085 in strings (cases: node#62785)',
      (lines) => jsonl(lines.map((line) => line.replace('Please', 'Please\u2028\u2029\u0085'))),
    ],
    [
      'packed with gzip, in two members',
      (lines) => Buffer.concat([gzipSync(jsonl(lines.slice(0, 3))), gzipSync(jsonl(lines.slice(3)))]),
    ],
    ['packed with zstd', (lines) => zstdCompressSync(jsonl(lines))],
  ];
  test.each(variants)(
    '%s',
    async (_, pack) => {
      const s = await scenario('odd');
      const packed = pack(chatLines(s.namespace, 8));
      const key = await s.putInput('a.bin', packed);
      await s.createJob({ keys: [key] });
      const ended = await s.untilEnded();
      expect(ended.status?.counts).toMatchObject({ total: 8, completed: 8 });
    },
    2 * MINUTE,
  );

  test(
    'with an alias as model: the engine sees its own name',
    async () => {
      const s = await scenario('alias');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 5, { model: 'test-alias' }));
      await s.createJob({ keys: [key] });
      const ended = await s.untilEnded();
      expect(await s.violations(ended, [key])).toEqual([]);
      const [first] = await recordsOf(s, ended, 'results');
      expect(first?.response?.body).toMatchObject({ model: TEST_MODEL });
    },
    2 * MINUTE,
  );

  test(
    'spread over several keys, in their order',
    async () => {
      const s = await scenario('keys');
      const b = await s.putInput(
        'b.jsonl',
        Array.from({ length: 6 }, (_, n) => chatLine(s.namespace, n)),
      );
      const a = await s.putInput(
        'a.jsonl',
        Array.from({ length: 6 }, (_, n) => chatLine(s.namespace, 50 + n)),
      );
      await s.createJob({ keys: [b, a] });
      const ended = await s.untilEnded();
      expect(await s.violations(ended, [b, a])).toEqual([]);
    },
    2 * MINUTE,
  );
});

describe('an input that cannot be read', () => {
  const failures: [string, (lines: string[]) => Buffer, string, RegExp][] = [
    ['is empty', () => Buffer.alloc(0), 'EmptyInput', /line/],
    ['has only blank lines', () => Buffer.from('\n  \n\n'), 'EmptyInput', /line/],
    [
      'is cut off in its gzip',
      (lines) => gzipSync(jsonl(lines)).subarray(0, -12),
      'InvalidInput',
      /gzip.*truncated/i,
    ],
  ];
  test.each(failures)(
    'because it %s fails the job',
    async (_, make, reason, message) => {
      const s = await scenario('unreadable');
      const key = await s.putInput('a.jsonl', make(chatLines(s.namespace, 50)));
      await s.createJob({ keys: [key] });
      const ended = await s.untilEnded();
      expect(conditionOf(ended, 'Failed')).toMatchObject({ status: 'True', reason });
      expect(conditionOf(ended, 'Failed')?.message).toMatch(message);
    },
    2 * MINUTE,
  );
});

describe('what may come by itself is waited for, with a reason', () => {
  test(
    'an input object that is not there yet',
    async () => {
      const s = await scenario('no-key');
      const name = `${s.namespace}/in/a.jsonl`;
      await s.createJob({ keys: [name] });
      const waiting = await s.untilJob(
        'waits for the object',
        (job) => conditionOf(job, 'Indexed')?.reason === 'NoSuchKey',
      );
      expect(conditionOf(waiting, 'Indexed')?.message).toContain(name);
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 3));
      const ended = await s.untilEnded(120);
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    3 * MINUTE,
  );

  test.each<[string, string[], string, RegExp]>([
    [
      'a Secret that is missing',
      ['delete', 'secret', 's3-credentials'],
      'CredentialsNotFound',
      /s3-credentials/,
    ],
    [
      'a Secret without the keys',
      [
        'patch',
        'secret',
        's3-credentials',
        '--type=json',
        '-p',
        '[{"op":"remove","path":"/data/AWS_ACCESS_KEY_ID"}]',
      ],
      'CredentialsInvalid',
      /AWS_ACCESS_KEY_ID/,
    ],
    [
      'a wrong key',
      ['patch', 'secret', 's3-credentials', '-p', '{"stringData":{"AWS_SECRET_ACCESS_KEY":"wrong"}}'],
      'CredentialsInvalid',
      /refuse|signature|credentials/i,
    ],
    [
      'the right to read Secrets',
      ['delete', 'rolebinding', 'tidegate-worker'],
      'SecretAccessMissing',
      /kubectl .*(rolebinding|apply)/,
    ],
  ])(
    '%s',
    async (_, breaking, reason, message) => {
      const s = await scenario('secret');
      await s.kubectl(...breaking);
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 3));
      await s.createJob({ keys: [key] });
      const waiting = await s.untilJob(
        `waits with ${reason}`,
        (job) => conditionOf(job, 'Indexed')?.reason === reason,
      );
      expect(conditionOf(waiting, 'Indexed')?.message).toMatch(message);
      expect(JSON.stringify(waiting.status)).not.toContain(s.stack.description.s3.secretAccessKey);
      await s.stack.control.optIn(s.namespace);
      const ended = await s.untilEnded(150);
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    4 * MINUTE,
  );
});

describe('the output', () => {
  test(
    'of another job is never overwritten',
    async () => {
      const s = await scenario('twice');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 5));
      await s.createJob({ keys: [key] });
      const first = await s.untilEnded();
      const before = await s.bucket.get(`${first.spec.output.s3.prefix}results.jsonl`);
      await s.deleteJob();
      await s.untilGone();

      await s.createJob({ keys: [key] });
      const second = await s.untilEnded();
      expect(conditionOf(second, 'Failed')).toMatchObject({ status: 'True', reason: 'OutputExists' });
      expect(conditionOf(second, 'Failed')?.message).toContain('results.jsonl');
      expect(await s.bucket.get(`${first.spec.output.s3.prefix}results.jsonl`)).toEqual(before);
    },
    3 * MINUTE,
  );
});

describe('the engine', () => {
  test(
    'that does not know the model puts the job on hold; no line fails',
    async () => {
      const s = await scenario('no-model');
      await s.engineFaults({ fault: 'model-not-found' });
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 20));
      await s.createJob({ keys: [key] });
      await s.untilJob('is held', (job) => conditionOf(job, 'Running')?.reason === 'ModelNotFound', 90);
      await s.engineFaults();
      const ended = await s.untilEnded(120);
      expect(ended.status?.counts).toMatchObject({ completed: 20, failed: 0 });
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    4 * MINUTE,
  );

  test(
    'that is busy (429, 503) costs no attempt',
    async () => {
      const s = await scenario('busy');
      await s.engineFaults({ fault: '503', every: 3 }, { fault: '429', every: 4 });
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 100));
      await s.createJob({ keys: [key], spec: { retry: { maxAttempts: 1 } } });
      const ended = await s.untilEnded(120);
      expect(ended.status?.counts).toMatchObject({ completed: 100, failed: 0 });
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    3 * MINUTE,
  );

  test.each([
    ['500', 0],
    ['reset', 0],
    // Looks like the keep-alive race, so each of the three attempts may be sent once more (mechanics.md, 5.2).
    ['reset-before', 3],
    ['garbage', 0],
    ['error-inside', 0],
  ] as const)(
    'that answers with "%s" gets the line again, until its attempts are used up',
    async (fault, repeatedCalls) => {
      const s = await scenario('faulty');
      const poison = chatLine(s.namespace, 'poison', { customId: 'poison' });
      await s.engineFaults(
        { fault, match: `marker:${s.namespace}_poison` },
        // Each engine counts for itself, so this line may fail twice.
        { fault, match: `marker:${s.namespace}_7 `, next: 1 },
      );
      const key = await s.putInput('a.jsonl', [...chatLines(s.namespace, 20), poison]);
      await s.createJob({
        keys: [key],
        spec: { retry: { maxAttempts: 3, initialBackoffSeconds: 0, maxBackoffSeconds: 0 } },
      });
      const ended = await s.untilEnded(120);
      expect(ended.status?.counts).toMatchObject({ completed: 20, failed: 1 });
      const [record] = await recordsOf(s, ended, 'errors');
      expect(record?.custom_id).toBe('poison');
      expect(await s.violations(ended, [key], { repeatedCalls })).toEqual([]);
    },
    3 * MINUTE,
  );

  test(
    'that refuses a line is believed: its words stand in the record',
    async () => {
      const s = await scenario('refused');
      await s.engineFaults({ fault: 'bad-request', match: `marker:${s.namespace}_3 ` });
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 5));
      await s.createJob({ keys: [key] });
      const ended = await s.untilEnded();
      const records = await recordsOf(s, ended, 'errors');
      expect(records).toHaveLength(1);
      expect(records[0]?.response?.status_code).toBe(400);
      expect(records[0]?.response?.body.error?.message).toBeTruthy();
      expect(await s.violations(ended, [key])).toEqual([]);
    },
    2 * MINUTE,
  );
});

test(
  'an input that is replaced while the job runs fails it with what is done',
  async () => {
    const s = await scenario('replaced');
    await s.engineFaults({ fault: 'slow', delayMilliseconds: 300 });
    // More shards than workers hold open: those have their input already.
    const lines = chatLines(s.namespace, 5_000);
    const key = await s.putInput('a.jsonl', lines);
    await s.createJob({ keys: [key], spec: { maxInFlight: 20 } });
    await until(
      'lines are answered',
      async () => s.calls().length,
      (calls) => calls > 40,
    );
    await s.putInput('a.jsonl', [...lines, chatLine(s.namespace, 9_999)]);
    await s.engineFaults();
    const ended = await s.untilEnded(120);
    expect(conditionOf(ended, 'Failed')).toMatchObject({ status: 'True', reason: 'InputChanged' });
    expect(ended.status?.counts).toMatchObject({ total: 5_000 });
    await s.putInput('a.jsonl', lines);
    expect(await s.violations(ended, [key])).toEqual([]);
  },
  4 * MINUTE,
);
