import { afterEach, describe, expect, test } from '@jest/globals';
import { existsSync, mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startEngine, type Engine, type EngineSettings } from './engine.ts';
import type { Call } from './http/call-log.ts';

const engines: Engine[] = [];
afterEach(async () => {
  await Promise.all(engines.splice(0).map((engine) => engine.stop()));
});

async function start(settings: Partial<EngineSettings> = {}): Promise<Engine> {
  const engine = await startEngine(settings);
  engines.push(engine);
  return engine;
}

type Json = Record<string, never> & { [key: string]: Json };

async function post(engine: Engine, path: string, body: unknown, headers: Record<string, string> = {}) {
  const response = await fetch(engine.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text, json: () => JSON.parse(text) as Json };
}

const chat = (content: string, more: object = {}) => ({
  model: 'tiny',
  messages: [{ role: 'user', content }],
  ...more,
});

const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
};

describe('answers', () => {
  test('a chat completion has text, usage and the caller’s request id', async () => {
    const engine = await start();
    const { status, headers, json } = await post(engine, '/v1/chat/completions', chat('hello'), {
      'x-request-id': 'r1',
    });
    expect(status).toBe(200);
    expect(headers.get('x-request-id')).toBe('r1');
    const answer = json();
    expect(answer).toMatchObject({
      object: 'chat.completion',
      model: 'tiny',
      choices: [{ index: 0, message: { role: 'assistant' }, finish_reason: 'stop' }],
    });
    const {
      prompt_tokens: prompt,
      completion_tokens: completion,
      total_tokens: total,
    } = answer['usage'] as unknown as Record<string, number>;
    expect(total).toBe((prompt ?? 0) + (completion ?? 0));
  });

  test('the same request gets the same text', async () => {
    const engine = await start();
    const texts = await Promise.all(
      [1, 2].map(
        async () => (await post(engine, '/v1/completions', { model: 'tiny', prompt: 'x' })).json()['choices'],
      ),
    );
    expect(texts[0]).toEqual(texts[1]);
  });

  test('max_tokens is honoured, and then the reason is length', async () => {
    const engine = await start();
    const { json } = await post(engine, '/v1/chat/completions', chat('hello', { max_tokens: 3 }));
    expect(json()).toMatchObject({ choices: [{ finish_reason: 'length' }], usage: { completion_tokens: 3 } });
  });

  test('each prompt and each of n choices is answered', async () => {
    const engine = await start();
    const { json } = await post(engine, '/v1/completions', {
      model: 'tiny',
      prompt: ['a', 'b'],
      n: 2,
      max_tokens: 2,
    });
    expect(json()).toMatchObject({
      choices: [{ index: 0 }, { index: 1 }, { index: 2 }, { index: 3 }],
      usage: { completion_tokens: 8 },
    });
  });

  test('responses report usage in their own words', async () => {
    const engine = await start({ echo: true });
    const { json } = await post(engine, '/v1/responses', {
      model: 'tiny',
      input: [{ role: 'user', content: [{ type: 'input_text', text: 'say marker:r-1' }] }],
    });
    expect(json()).toMatchObject({
      object: 'response',
      status: 'completed',
      error: null,
      output: [{ type: 'message', content: [{ type: 'output_text', text: 'say marker:r-1' }] }],
      usage: { input_tokens: expect.any(Number) as unknown, input_tokens_details: { cached_tokens: 0 } },
    });
  });

  test('embeddings are one unit vector a text, and the marker stands beside them', async () => {
    const engine = await start({ echo: true });
    const { json } = await post(engine, '/v1/embeddings', { model: 'tiny', input: ['marker:e-1', 'b'] });
    const answer = json() as unknown as { data: { embedding: number[] }[]; echo: string };
    expect(answer.data).toHaveLength(2);
    expect(Math.hypot(...(answer.data[0]?.embedding ?? []))).toBeCloseTo(1);
    expect(answer.echo).toBe('marker:e-1');
  });

  test.each(['/v1/chat/completions', '/v1/completions', '/v1/responses', '/v1/embeddings'])(
    'in echo mode %s says the marker even where the limit is shorter',
    async (path) => {
      const engine = await start({ echo: true });
      const text = `${'long words before it '.repeat(20)} marker:line-123456789 and after`;
      const body = {
        model: 'tiny',
        messages: [{ role: 'user', content: text }],
        prompt: text,
        input: text,
        max_tokens: 2,
        max_output_tokens: 2,
      };
      expect((await post(engine, path, body)).text).toContain('marker:line-123456789');
    },
  );

  test('token ids of /tokenize make the same prompt', async () => {
    const engine = await start({ echo: true });
    const ids = (await post(engine, '/tokenize', { prompt: 'say marker:t-1 ü' })).json()['tokens'];
    expect(
      (await post(engine, '/v1/completions', { model: 'tiny', prompt: ids, max_tokens: 50 })).text,
    ).toContain('say marker:t-1 ü');
  });

  test('a chat stream begins with the role, says all, and ends with usage and DONE', async () => {
    const engine = await start({ echo: true });
    const { text, headers } = await post(
      engine,
      '/v1/chat/completions',
      chat('marker:s-1 in pieces', { stream: true, stream_options: { include_usage: true } }),
    );
    expect(headers.get('content-type')).toContain('text/event-stream');
    const events = text
      .trim()
      .split('\n\n')
      .map((event) => event.replace('data: ', ''));
    expect(events.at(-1)).toBe('[DONE]');
    const chunks = events.slice(0, -1).map(
      (event) =>
        JSON.parse(event) as {
          choices: { delta: { role?: string; content: string }; finish_reason: string | null }[];
          usage?: object;
        },
    );
    expect(chunks[0]?.choices[0]?.delta).toEqual({ role: 'assistant', content: '' });
    expect(chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta.content)).join('')).toBe(
      'marker:s-1 in pieces',
    );
    expect(chunks.at(-2)?.choices[0]?.finish_reason).toBe('stop');
    expect(chunks.at(-1)).toMatchObject({
      choices: [],
      usage: { prompt_tokens: expect.any(Number) as unknown },
    });
  });

  test('a response stream is made of named events', async () => {
    const engine = await start({ echo: true });
    const { text } = await post(engine, '/v1/responses', {
      model: 'tiny',
      input: 'marker:s-2',
      stream: true,
    });
    expect([...text.matchAll(/^event: (.*)$/gm)].map(([, name]) => name)).toEqual(
      expect.arrayContaining(['response.created', 'response.output_text.delta', 'response.completed']),
    );
  });

  test('models are listed', async () => {
    const engine = await start({ models: ['a', 'b'] });
    expect(await (await fetch(`${engine.url}/v1/models`)).json()).toMatchObject({
      data: [{ id: 'a' }, { id: 'b' }],
    });
  });
});

describe('errors are shaped like vLLM’s', () => {
  test.each<[string, string, unknown, number, object]>([
    [
      'an unknown model',
      '/v1/chat/completions',
      { model: 'other', messages: [] },
      404,
      {
        error: {
          message: 'The model `other` does not exist.',
          type: 'NotFoundError',
          param: 'model',
          code: 404,
        },
      },
    ],
    ['bad JSON', '/v1/chat/completions', '{', 400, { error: { type: 'Bad Request', code: 400 } }],
    ['no messages', '/v1/chat/completions', { model: 'tiny' }, 400, { error: { param: 'messages' } }],
    ['no prompt', '/v1/completions', { model: 'tiny' }, 400, { error: { param: 'prompt' } }],
    [
      'too many tokens asked for',
      '/v1/completions',
      { model: 'tiny', prompt: 'x', max_tokens: 100_000 },
      400,
      { error: { type: 'BadRequestError', param: 'max_tokens' } },
    ],
    [
      'too long a prompt',
      '/v1/completions',
      { model: 'tiny', prompt: 'x'.repeat(200_000) },
      400,
      { error: { param: 'input_tokens' } },
    ],
    [
      'a limit of 0',
      '/v1/completions',
      { model: 'tiny', prompt: 'x', max_tokens: 0 },
      400,
      { error: { param: 'max_tokens' } },
    ],
    ['an unknown route', '/v1/chat', {}, 404, { detail: 'Not Found' }],
  ])('%s', async (_name, path, body, status, expected) => {
    const answer = await post(await start(), path, body);
    expect(answer.status).toBe(status);
    expect(answer.json()).toMatchObject(expected);
  });

  test('a wrong method', async () => {
    const engine = await start();
    const response = await fetch(`${engine.url}/v1/completions`);
    expect([response.status, await response.json()]).toEqual([405, { detail: 'Method Not Allowed' }]);
  });

  test('a wrong key, which /health does not ask for', async () => {
    const engine = await start({ apiKey: 'right' });
    expect((await post(engine, '/v1/completions', {})).status).toBe(401);
    expect((await fetch(`${engine.url}/v1/models`)).status).toBe(401);
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
    const headers = { authorization: 'Bearer right' };
    expect((await post(engine, '/v1/chat/completions', chat('x'), headers)).status).toBe(200);
  });
});

describe('faults', () => {
  const ask = async (engine: Engine, text = 'x') => {
    try {
      return (await post(engine, '/v1/chat/completions', chat(text))).status;
    } catch (error) {
      return (error as Error).cause as { code?: string };
    }
  };

  test.each<
    ['401' | '403' | '429' | '500' | '503' | 'model-not-found' | 'route-not-found' | 'bad-request', number]
  >([
    ['401', 401],
    ['403', 403],
    ['429', 429],
    ['500', 500],
    ['503', 503],
    ['model-not-found', 404],
    ['route-not-found', 404],
    ['bad-request', 400],
  ])('%s', async (fault, status) => {
    const engine = await start();
    await engine.control({ set: [{ fault }] });
    expect(await ask(engine)).toBe(status);
    await engine.control({ clear: true });
    expect(await ask(engine)).toBe(200);
  });

  test('429 says when to come again', async () => {
    const engine = await start();
    await engine.control({ set: [{ fault: '429', retryAfterSeconds: 7 }] });
    expect((await post(engine, '/v1/completions', {})).headers.get('retry-after')).toBe('7');
  });

  test.each(['reset', 'reset-before'] as const)('%s breaks the connection', async (fault) => {
    const engine = await start();
    await engine.control({ set: [{ fault }] });
    expect(await ask(engine)).toMatchObject({
      code: expect.stringMatching(/ECONNRESET|UND_ERR_SOCKET/) as unknown,
    });
    expect(engine.counts()).toMatchObject({ arrived: 1, broken: 1, open: 0 });
  });

  test('hang never answers, and the caller’s going away is seen', async () => {
    const engine = await start();
    await engine.control({ set: [{ fault: 'hang' }] });
    const controller = new AbortController();
    const asked = fetch(`${engine.url}/v1/completions`, {
      method: 'POST',
      body: '{}',
      signal: controller.signal,
    });
    await until(() => engine.counts().arrived === 1);
    controller.abort();
    await expect(asked).rejects.toThrow();
    await until(() => engine.counts().aborted === 1);
  });

  test('garbage and an error inside are answers of 200', async () => {
    const engine = await start();
    await engine.control({
      set: [
        { fault: 'garbage', next: 1 },
        { fault: 'error-inside', next: 1 },
      ],
    });
    expect(await post(engine, '/v1/completions', {})).toMatchObject({
      status: 200,
      text: expect.stringContaining('<html>') as unknown,
    });
    expect((await post(engine, '/v1/completions', {})).json()).toMatchObject({ error: { code: 500 } });
  });

  test('huge answers are as long as asked for, and one JSON object', async () => {
    const engine = await start();
    await engine.control({ set: [{ fault: 'huge', bytes: 3_000_000 }] });
    const { text, json } = await post(engine, '/v1/completions', {});
    expect(text).toHaveLength(3_000_000);
    expect(json()).toHaveProperty('huge');
  });

  test('meet the next calls only, every other one, or those with a marker', async () => {
    const engine = await start();
    await engine.control({ set: [{ fault: '500', next: 2 }] });
    expect([await ask(engine), await ask(engine), await ask(engine)]).toEqual([500, 500, 200]);
    await engine.control({ set: [{ fault: '500', every: 2 }] });
    expect([await ask(engine), await ask(engine), await ask(engine), await ask(engine)]).toEqual([
      200, 500, 200, 500,
    ]);
    await engine.control({ set: [{ fault: '500', match: 'marker:bad' }] });
    expect([await ask(engine), await ask(engine, 'marker:bad')]).toEqual([200, 500]);
  });

  test('of the whole server are seen by /v1/models and /health, others are not', async () => {
    const engine = await start();
    const states = async () =>
      Promise.all(['/v1/models', '/health'].map(async (path) => (await fetch(engine.url + path)).status));
    await engine.control({ set: [{ fault: '503' }] });
    expect(await states()).toEqual([503, 503]);
    await engine.control({ set: [{ fault: '401' }] });
    expect(await states()).toEqual([401, 200]);
    await engine.control({ set: [{ fault: '503', match: 'x' }, { fault: 'garbage' }] });
    expect(await states()).toEqual([200, 200]);
    await engine.control({ set: [{ fault: 'model-not-found' }] });
    expect(await (await fetch(`${engine.url}/v1/models`)).json()).toMatchObject({ data: [] });
  });

  test('refuse closes the port for everybody and drops open calls; clear opens the same port', async () => {
    const engine = await start({ controlPort: 0 });
    await engine.control({ set: [{ fault: 'hang' }] });
    const open = ask(engine);
    await until(() => engine.counts().open === 1);
    const { url } = engine;
    await fetch(`${engine.controlUrl}/_control`, { method: 'POST', body: '{"refuse":true}' });
    expect(await open).toMatchObject({ code: expect.any(String) as unknown });
    expect(await ask(engine)).toMatchObject({ code: 'ECONNREFUSED' });
    await fetch(`${engine.controlUrl}/_control`, { method: 'POST', body: '{"clear":true}' });
    expect(engine.url).toBe(url);
    expect(await ask(engine)).toBe(200);
  });

  test('refusing on the only port needs an end', async () => {
    const engine = await start();
    const answer = await post(engine, '/_control', { refuse: true });
    expect([answer.status, answer.text]).toEqual([400, expect.stringContaining('--control-port')]);
    await post(engine, '/_control', { refuse: { milliseconds: 1 } });
    while ((await ask(engine)) !== 200);
  });

  test('a rule nobody knows is refused with the list of those there are', async () => {
    const answer = await post(await start(), '/_control', { set: [{ fault: 'explode' }] });
    expect([answer.status, answer.text]).toEqual([400, expect.stringContaining('error-inside')]);
  });
});

describe('the log of calls', () => {
  test('tells marker, id, times, status and end of each call, with 429 and 503 apart', async () => {
    const engine = await start();
    await post(engine, '/v1/chat/completions', chat('marker:l-1'), { 'x-request-id': 'r1' });
    await engine.control({ set: [{ fault: '503' }] });
    await post(engine, '/v1/chat/completions', chat('marker:l-2'));
    expect(engine.calls()).toMatchObject([
      { n: 1, marker: 'marker:l-1', requestId: 'r1', status: 200, end: 'answered', fault: null },
      { n: 2, marker: 'marker:l-2', status: 503, end: 'turnedAway', fault: '503' },
    ]);
    expect(engine.counts()).toEqual({
      arrived: 2,
      answered: 1,
      turnedAway: 1,
      aborted: 0,
      broken: 0,
      open: 0,
    });
    const read = (await (await fetch(`${engine.url}/_control/calls?since=1`)).json()) as { calls: Call[] };
    expect(read.calls.map(({ n }) => n)).toEqual([2]);
  });

  test('is in the file when the call arrives and before its answer leaves', async () => {
    const file = join(mkdtempSync(join(tmpdir(), 'calls-')), 'calls.jsonl');
    const engine = await start({ callLog: file });
    const lines = () =>
      readFileSync(file, 'utf8')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as Call);
    await post(engine, '/v1/chat/completions', chat('marker:f-1'));
    expect(lines()).toMatchObject([
      { n: 1, end: null },
      { n: 1, end: 'answered', status: 200 },
    ]);
    await engine.control({ set: [{ fault: 'hang' }] });
    void post(engine, '/v1/chat/completions', chat('marker:f-2')).catch(() => undefined);
    await until(() => engine.counts().open === 1);
    expect(lines().at(-1)).toMatchObject({ n: 2, marker: 'marker:f-2', end: null });
  });
});

describe('/metrics', () => {
  const page = async (engine: Engine) => (await fetch(`${engine.url}/metrics`)).text();
  const value = (text: string, start: string) =>
    Number(new RegExp(`^${start.replace(/[{}+]/g, '\\$&')}.* (\\S+)$`, 'm').exec(text)?.[1]);

  const fixture = new URL('../../../shared/fixtures/vllm-0.32.0-busy.prom', import.meta.url);
  const withFixture = existsSync(fixture) ? test : test.skip;

  withFixture('has the names, types and labels of a real vLLM 0.32 page', async () => {
    const engine = await start();
    await post(engine, '/v1/chat/completions', chat('x'));
    const shape = (text: string) => {
      const names = new Map<string, string>();
      for (const [, name = '', type = ''] of text.matchAll(/^# TYPE (vllm:\S+) (\S+)$/gm))
        names.set(name, type);
      const labels = new Map<string, Set<string>>();
      for (const [, name = '', inside = ''] of text.matchAll(/^(vllm:\w+)\{(.*)\} \S+$/gm)) {
        if (name === 'vllm:cache_config_info') continue;
        const found = [...inside.matchAll(/(\w+)="/g)].map(([, label]) => label).join(',');
        labels.set(name, (labels.get(name) ?? new Set()).add(found));
      }
      return { names, labels };
    };
    expect(shape(await page(engine))).toEqual(shape(readFileSync(fixture, 'utf8')));
  });

  withFixture('has the bucket edges of a real page where the longest request is the same', async () => {
    const engine = await start({ maxModelLength: 4_096 });
    const edges = (text: string) =>
      [...text.matchAll(/^(vllm:\w+_bucket)\{.*le="([^"]+)"/gm)].map(([, name, le]) => `${name} ${le}`);
    expect(edges(await page(engine))).toEqual(edges(readFileSync(fixture, 'utf8')));
  });

  test('counts tokens exactly as the answers report them', async () => {
    const engine = await start();
    const usages = await Promise.all(
      ['a', 'bb', 'ccc'.repeat(50)].map(
        async (text) =>
          (await post(engine, '/v1/chat/completions', chat(text))).json()['usage'] as unknown as {
            prompt_tokens: number;
            completion_tokens: number;
          },
      ),
    );
    const text = await page(engine);
    expect(value(text, 'vllm:prompt_tokens_total{')).toBe(
      usages.reduce((sum, usage) => sum + usage.prompt_tokens, 0),
    );
    expect(value(text, 'vllm:generation_tokens_total{')).toBe(
      usages.reduce((sum, usage) => sum + usage.completion_tokens, 0),
    );
    expect(value(text, 'vllm:request_success_total{engine="0",finished_reason="stop"')).toBe(3);
    expect(value(text, 'vllm:e2e_request_latency_seconds_count{')).toBe(3);
  });

  test('refused requests are counted nowhere', async () => {
    const engine = await start();
    await post(engine, '/v1/chat/completions', { model: 'other' });
    expect(value(await page(engine), 'vllm:prompt_tokens_total{')).toBe(0);
  });
});
