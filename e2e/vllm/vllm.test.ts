/** Acceptance on a real vLLM: what the look-alike cannot vouch for. Run with `make e2e-vllm`. */
import { afterEach, expect, test } from '@jest/globals';
import { chatLine, chatLines, TEST_MODEL } from '../harness/input.ts';
import { endedLines } from '../harness/objects.ts';
import { openScenario, type Scenario } from '../harness/scenario.ts';
import { until } from '../harness/until.ts';
import { VLLM_URL_VARIABLE } from './vllm-setup.ts';

const MINUTES = 60_000;
const vllm = process.env[VLLM_URL_VARIABLE] ?? '';

let open: Scenario | undefined;
const scenario = async (title: string): Promise<Scenario> => (open = await openScenario(title));
afterEach(async () => {
  await open?.close();
  open = undefined;
});

/** The value of a metric of the engine, summed over its series. */
async function metric(name: string): Promise<number> {
  const page = await (await fetch(`${vllm}/metrics`)).text();
  const values = page
    .split('\n')
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)));
  if (values.length === 0) throw new Error(`vLLM has no metric ${name}`);
  return values.reduce((sum, value) => sum + value, 0);
}

interface PublishedRecord {
  custom_id: string;
  response: {
    status_code: number;
    body: { usage?: object; error?: { message: string; type: string } };
  } | null;
  error: { code: string } | null;
}

async function published(s: Scenario, uri: string | undefined): Promise<PublishedRecord[]> {
  if (uri === undefined) return [];
  const bytes = await s.bucket.get(uri.slice(uri.indexOf('/', 's3://'.length) + 1));
  return (bytes ?? Buffer.alloc(0))
    .toString()
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as PublishedRecord);
}

/** Generates to the last token, whatever the model says. */
const long = { ignore_eos: true };

test(
  'a job of some hundred chat lines with bad ones: counts, error bodies as vLLM sent them, usage as vLLM counted it',
  async () => {
    const s = await scenario('vllm');
    const before = {
      prompt: await metric('vllm:prompt_tokens_total'),
      generated: await metric('vllm:generation_tokens_total'),
    };
    const lines = chatLines(s.namespace, 300, { body: { temperature: 0 } });
    lines.splice(50, 0, chatLine(s.namespace, 'too-long', { maxTokens: 99_999 }));
    lines.splice(100, 0, chatLine(s.namespace, 'no-such-model', { model: 'nope' }));
    lines.splice(150, 0, '{"custom_id":');
    lines.splice(200, 0, chatLine(s.namespace, 'bad-type', { body: { temperature: 'warm' } }));
    lines.splice(250, 0, chatLine(s.namespace, 'alias', { model: 'test-alias' }));
    const key = await s.putInput('in.jsonl', lines);
    await s.createJob({ keys: [key] });
    const job = await s.untilEnded(180);

    expect(job.status?.state).toBe('Completed');
    expect(job.status?.counts).toEqual({ total: 305, completed: 301, failed: 4, expired: 0, cancelled: 0 });
    const results = await published(s, job.status?.outputs?.results);
    expect(new Set(results.map(({ custom_id }) => custom_id)).size).toBe(301);
    const errors = new Map(
      (await published(s, job.status?.outputs?.errors)).map((record) => [record.custom_id, record]),
    );
    expect(errors.get(`${s.namespace}-too-long`)).toMatchObject({
      error: null,
      response: {
        status_code: 400,
        body: { error: { type: 'BadRequestError', param: 'max_tokens', code: 400 } },
      },
    });
    expect(errors.get(`${s.namespace}-bad-type`)?.response?.status_code).toBe(400);
    expect(errors.get(`${s.namespace}-no-such-model`)).toMatchObject({
      response: null,
      error: { code: 'model_not_found' },
    });
    expect(job.status?.usage).toMatchObject({
      inputTokens: (await metric('vllm:prompt_tokens_total')) - before.prompt,
      outputTokens: (await metric('vllm:generation_tokens_total')) - before.generated,
    });
  },
  5 * MINUTES,
);

test(
  'deleting a job aborts what vLLM runs for it',
  async () => {
    const s = await scenario('vllm-delete');
    const key = await s.putInput('in.jsonl', chatLines(s.namespace, 64, { maxTokens: 3_500, body: long }));
    await s.createJob({ keys: [key] });
    const running = async (): Promise<number> =>
      (await metric('vllm:num_requests_running')) + (await metric('vllm:num_requests_waiting'));
    await until('vLLM runs lines of the job', running, (requests) => requests >= 8);
    await s.deleteJob();
    await until('vLLM runs nothing any more', running, (requests) => requests === 0, { withinSeconds: 10 });
    await s.untilGone(60);
  },
  4 * MINUTES,
);

test(
  'a suspended job leaves the engine idle, and goes on where it was',
  async () => {
    const s = await scenario('vllm-suspend');
    const before = await metric('vllm:request_success_total');
    const key = await s.putInput('in.jsonl', chatLines(s.namespace, 200, { maxTokens: 64, body: long }));
    await s.createJob({ keys: [key] });
    await s.untilJob('some lines are done', (job) => endedLines(job) >= 20, 90);
    await s.patchJob({ suspend: true });
    await s.untilJob('the job is suspended', (job) => job.status?.state === 'Suspended');
    const running = (): Promise<number> => metric('vllm:num_requests_running');
    await until('vLLM is idle', running, (requests) => requests === 0, { withinSeconds: 30 });
    expect(endedLines(await s.job())).toBeLessThan(200);
    await s.patchJob({ suspend: false });
    const job = await s.untilEnded(120);
    expect(job.status?.counts).toMatchObject({ total: 200, completed: 200 });
    // Nothing was sent twice.
    expect((await metric('vllm:request_success_total')) - before).toBe(200);
  },
  5 * MINUTES,
);

test.each([
  ['/v1/completions', { prompt: 'the water rises', max_tokens: 4 }],
  ['/v1/responses', { input: 'the water rises', max_output_tokens: 4 }],
])(
  'serves %s, with its usage',
  async (url, body) => {
    const s = await scenario('vllm-endpoint');
    const line = JSON.stringify({
      custom_id: 'a',
      method: 'POST',
      url,
      body: { model: TEST_MODEL, ...body },
    });
    const key = await s.putInput('in.jsonl', [line]);
    await s.createJob({ keys: [key], spec: { endpoint: url } });
    const job = await s.untilEnded();
    expect(job.status?.counts).toMatchObject({ completed: 1, failed: 0 });
    expect(job.status?.usage).toMatchObject({ outputTokens: 4 });
  },
  2 * MINUTES,
);

test(
  'a route that this model does not serve holds the job, and says so (404 costs no line)',
  async () => {
    const s = await scenario('vllm-route');
    const line = JSON.stringify({
      custom_id: 'a',
      method: 'POST',
      url: '/v1/embeddings',
      body: { model: TEST_MODEL, input: 'the water rises' },
    });
    const key = await s.putInput('in.jsonl', [line]);
    await s.createJob({ keys: [key], spec: { endpoint: '/v1/embeddings' } });
    const job = await s.untilJob('it says that the route is missing', ({ status }) =>
      (status?.conditions ?? []).some(({ reason }) => reason === 'RouteNotFound'),
    );
    expect(job.status?.counts).toMatchObject({ completed: 0, failed: 0 });
  },
  2 * MINUTES,
);
