/** Builders for input lines. Each prompt carries a marker that the echoing engine must bring back. */
import { markerOf } from '../checker/input-lines.ts';

export const TEST_MODEL = 'test-model';

export interface LineOptions {
  customId?: string;
  model?: string;
  url?: string;
  method?: string;
  /** Merged into the body. */
  body?: Record<string, unknown>;
  maxTokens?: number;
}

/** A valid chat line number `n` of `job`. */
export function chatLine(job: string, n: number | string, options: LineOptions = {}): string {
  return JSON.stringify({
    custom_id: options.customId ?? `${job}-${n}`,
    method: options.method ?? 'POST',
    url: options.url ?? '/v1/chat/completions',
    body: {
      model: options.model ?? TEST_MODEL,
      max_tokens: options.maxTokens ?? 8,
      messages: [{ role: 'user', content: `Please repeat ${markerOf(job, n)} now.` }],
      ...options.body,
    },
  });
}

export const chatLines = (job: string, count: number, options: LineOptions = {}): string[] =>
  Array.from({ length: count }, (_, index) => chatLine(job, index + 1, options));

export const jsonl = (lines: readonly string[]): Buffer => Buffer.from(`${lines.join('\n')}\n`);

/** Lines that must get an error record each, by what is wrong with them. */
export function invalidLines(job: string): Record<string, string> {
  const line = (name: string, change: LineOptions = {}): string =>
    chatLine(job, 0, { customId: `${job}-${name}`, ...change });
  return {
    'no JSON': '{"custom_id": "broken"',
    'a list': '[1, 2]',
    'no custom_id': line('x').replace(/"custom_id":"[^"]*",/, ''),
    'no body': JSON.stringify({ custom_id: `${job}-no-body`, method: 'POST', url: '/v1/chat/completions' }),
    'another url': line('url', { url: '/v1/embeddings' }),
    'another method': line('method', { method: 'GET' }),
    'another model': line('model', { model: 'somebody-elses-model' }),
    streaming: line('stream', { body: { stream: true } }),
    'a custom_id that stood before': chatLine(job, 0, { customId: `${job}-1` }),
  };
}
