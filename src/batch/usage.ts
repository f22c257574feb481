/** Tokens as each endpoint reports them. */
import { noUsage, type Endpoint, type Usage } from './model.ts';

/** A count the engine reports; anything but a whole number from 0 counts as none. */
const count = (value: unknown): number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : 0;

const part = (value: unknown, key: string): unknown =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[key] : undefined;

/** Maps the `usage` object of an answer; one that is absent or malformed counts nothing. */
export function usageFrom(endpoint: Endpoint, usage: unknown): Usage {
  if (typeof usage !== 'object' || usage === null) return noUsage();
  switch (endpoint) {
    case '/v1/responses':
      return {
        inputTokens: count(part(usage, 'input_tokens')),
        cachedInputTokens: count(part(part(usage, 'input_tokens_details'), 'cached_tokens')),
        outputTokens: count(part(usage, 'output_tokens')),
      };
    case '/v1/chat/completions':
    case '/v1/completions':
    case '/v1/embeddings':
      return {
        inputTokens: count(part(usage, 'prompt_tokens')),
        cachedInputTokens: count(part(part(usage, 'prompt_tokens_details'), 'cached_tokens')),
        outputTokens: count(part(usage, 'completion_tokens')),
      };
  }
}
