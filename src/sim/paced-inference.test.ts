import { afterEach, describe, expect, test } from '@jest/globals';
import { request } from 'undici';
import { startEngine, type Engine, type EngineSettings } from './engine.ts';

const engines: Engine[] = [];
afterEach(async () => {
  await Promise.all(engines.splice(0).map((engine) => engine.stop()));
});

async function start(settings: Partial<EngineSettings> = {}): Promise<Engine> {
  const engine = await startEngine({ profile: 'tiny-cpu', timeScale: 20, ...settings });
  engines.push(engine);
  return engine;
}

interface Completion {
  usage: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
  };
}

async function complete(engine: Engine, body: object, signal?: AbortSignal): Promise<Completion> {
  const { body: answer } = await request(`${engine.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'tiny', ignore_eos: true, ...body }),
    ...(signal === undefined ? {} : { signal }),
  });
  return (await answer.json()) as Completion;
}

const gauges = async (engine: Engine) => {
  const page = await (await request(`${engine.url}/metrics`)).body.text();
  const value = (name: string): number =>
    Number(new RegExp(`^vllm:${name}\\{.*\\} (\\S+)$`, 'm').exec(page)?.[1]);
  return {
    running: value('num_requests_running'),
    waiting: value('num_requests_waiting'),
    kv: value('kv_cache_usage_perc'),
    success: [...page.matchAll(/^vllm:request_success_total\{.*\} (\S+)$/gm)].reduce(
      (sum, [, n]) => sum + Number(n),
      0,
    ),
    endToEnd: value('e2e_request_latency_seconds_count'),
    firstTokens: value('time_to_first_token_seconds_count'),
    gaps: value('inter_token_latency_seconds_count'),
    prompt: value('prompt_tokens_total'),
    generated: value('generation_tokens_total'),
    iterations: value('iteration_tokens_total_sum'),
  };
};

async function until(engine: Engine, condition: (now: Awaited<ReturnType<typeof gauges>>) => boolean) {
  for (;;) {
    const now = await gauges(engine);
    if (condition(now)) return now;
  }
}

describe('an engine in real time', () => {
  test('answers many requests and counts every token once', async () => {
    const engine = await start();
    const answers = await Promise.all(
      Array.from({ length: 60 }, (_, i) =>
        complete(engine, { prompt: `${i} `.repeat(50 + i), max_tokens: 5 + i }),
      ),
    );
    const sum = (pick: (completion: Completion) => number) =>
      answers.reduce((total, each) => total + pick(each), 0);
    const prompt = sum(({ usage }) => usage.prompt_tokens);
    const generated = sum(({ usage }) => usage.completion_tokens);
    expect(await gauges(engine)).toEqual({
      running: 0,
      waiting: 0,
      kv: 0,
      success: 60,
      endToEnd: 60,
      firstTokens: 60,
      gaps: generated - 60,
      prompt,
      generated,
      iterations: prompt + generated,
    });
  });

  test('shows who runs and who waits', async () => {
    const engine = await start({ maxNumSeqs: 2, timeScale: 1 });
    const controller = new AbortController();
    const asked = Array.from({ length: 5 }, () =>
      complete(engine, { prompt: 'x', max_tokens: 10_000 }, controller.signal).catch(() => undefined),
    );
    const seen = await until(engine, ({ running, waiting }) => running === 2 && waiting === 3);
    expect(seen.kv).toBeGreaterThan(0);
    controller.abort();
    await Promise.all(asked);
  });

  test('an abort frees places and KV cache within a step, and the aborted are counted nowhere', async () => {
    const engine = await start({ timeScale: 1 });
    const controller = new AbortController();
    const asked = Array.from({ length: 8 }, () =>
      complete(engine, { prompt: 'x'.repeat(400), max_tokens: 20_000 }, controller.signal).catch(
        () => undefined,
      ),
    );
    await until(engine, ({ running, generated }) => running === 8 && generated > 8);
    controller.abort();
    await Promise.all(asked);
    const after = await until(engine, ({ running }) => running === 0);
    expect(after).toMatchObject({ waiting: 0, kv: 0, success: 0, endToEnd: 0 });
    expect(engine.counts()).toMatchObject({ aborted: 8, answered: 0, open: 0 });
    expect((await complete(engine, { prompt: 'y', max_tokens: 2 })).usage.completion_tokens).toBe(2);
  });

  test('a stream says each token when it is there', async () => {
    const engine = await start({ timeScale: 1 });
    const { body } = await request(`${engine.url}/v1/completions`, {
      method: 'POST',
      body: JSON.stringify({ model: 'tiny', prompt: 'x', max_tokens: 10, ignore_eos: true, stream: true }),
    });
    let reads = 0;
    let text = '';
    for await (const chunk of body) {
      reads++;
      text += String(chunk);
    }
    expect(reads).toBeGreaterThan(1);
    expect(text.match(/"text":"\w+ "/g)).toHaveLength(10);
  });

  test('a prompt that was seen before reports its cached tokens', async () => {
    const engine = await start();
    const prompt = 'the same long prompt '.repeat(60);
    await complete(engine, { prompt, max_tokens: 1 });
    const { usage } = await complete(engine, { prompt, max_tokens: 1 });
    expect(usage.prompt_tokens_details.cached_tokens).toBe(Math.floor(usage.prompt_tokens / 128) * 128);
  });

  test('embeddings end with their prefill', async () => {
    const engine = await start();
    const { statusCode } = await request(`${engine.url}/v1/embeddings`, {
      method: 'POST',
      body: JSON.stringify({ model: 'tiny', input: ['a', 'b'] }),
    });
    expect(statusCode).toBe(200);
    expect(await gauges(engine)).toMatchObject({ success: 2, generated: 0 });
  });
});
