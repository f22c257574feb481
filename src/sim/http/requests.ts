/** Reads the bodies of the four endpoints, with vLLM's complaints, into one shape. Pure. */
import { countTokens, detokenize } from '../tokens.ts';
import {
  badRequest,
  invalidJson,
  missingField,
  modelNotFound,
  outputTooLong,
  promptTooLong,
} from './errors.ts';

export type GeneratingPath = '/v1/chat/completions' | '/v1/completions' | '/v1/responses';
export type InferencePath = GeneratingPath | '/v1/embeddings';
export const INFERENCE_PATHS: readonly InferencePath[] = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/responses',
  '/v1/embeddings',
];

export interface Prompt {
  text: string;
  tokens: number;
}

interface Common {
  model: string;
  priority: number;
}

export interface GenerateRequest extends Common {
  kind: 'generate';
  path: GeneratingPath;
  prompts: Prompt[];
  /** What echo mode says back. */
  said: string;
  maxTokens: number | undefined;
  choices: number;
  stream: boolean;
  streamUsage: boolean;
  ignoreEos: boolean;
  seed: number;
}

export interface EmbedRequest extends Common {
  kind: 'embed';
  prompts: Prompt[];
  base64: boolean;
}

export interface ReadLimits {
  models: readonly string[];
  maxModelLength: number;
}

type Body = Record<string, unknown>;

export function parseBody(text: string): Body {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (error) {
    throw invalidJson(error instanceof Error ? error.message : 'invalid');
  }
  if (typeof body !== 'object' || body === null || Array.isArray(body)) throw invalidJson('not an object');
  return body as Body;
}

/** @throws ApiError as vLLM would answer */
export function readRequest(
  path: InferencePath,
  body: Body,
  limits: ReadLimits,
): GenerateRequest | EmbedRequest {
  const model = body['model'];
  // A request without a model goes to the only one there is, as with vLLM.
  const name = typeof model === 'string' ? model : (limits.models[0] ?? '');
  if (!limits.models.includes(name)) throw modelNotFound(name);
  const common: Common = { model: name, priority: numberOr(body['priority'], 0) };
  switch (path) {
    case '/v1/chat/completions':
      return readChat(body, common, limits);
    case '/v1/completions':
      return readCompletion(body, common, limits);
    case '/v1/responses':
      return readResponses(body, common, limits);
    case '/v1/embeddings':
      return readEmbedding(body, common, limits);
  }
}

function readChat(body: Body, common: Common, limits: ReadLimits): GenerateRequest {
  const messages = body['messages'];
  if (messages === undefined) throw missingField('messages');
  const { text, said } = renderMessages(messages, 'messages');
  const maxTokens = optionalCount(body['max_completion_tokens'] ?? body['max_tokens'], 'max_tokens');
  return generate('/v1/chat/completions', [text], said, maxTokens, body, common, limits);
}

function readCompletion(body: Body, common: Common, limits: ReadLimits): GenerateRequest {
  if (body['prompt'] === undefined) throw missingField('prompt');
  const prompts = readInputs(body['prompt'], 'prompt');
  const maxTokens = optionalCount(body['max_tokens'], 'max_tokens') ?? 16;
  return generate('/v1/completions', prompts, prompts.join(' '), maxTokens, body, common, limits);
}

function readResponses(body: Body, common: Common, limits: ReadLimits): GenerateRequest {
  const input = body['input'];
  if (input === undefined) throw missingField('input');
  const { text, said } =
    typeof input === 'string' ? { text: input, said: input } : renderMessages(input, 'input');
  const instructions = typeof body['instructions'] === 'string' ? `${body['instructions']}\n` : '';
  const maxTokens = optionalCount(body['max_output_tokens'], 'max_output_tokens');
  return generate('/v1/responses', [instructions + text], said, maxTokens, body, common, limits);
}

function readEmbedding(body: Body, common: Common, limits: ReadLimits): EmbedRequest {
  if (body['input'] === undefined) throw missingField('input');
  const prompts = readInputs(body['input'], 'input').map((text) => prompt(text, limits));
  return { ...common, kind: 'embed', prompts, base64: body['encoding_format'] === 'base64' };
}

function generate(
  path: GeneratingPath,
  texts: string[],
  said: string,
  maxTokens: number | undefined,
  body: Body,
  common: Common,
  limits: ReadLimits,
): GenerateRequest {
  const prompts = texts.map((text) => prompt(text, limits));
  for (const { tokens } of prompts) {
    if (maxTokens !== undefined && tokens + maxTokens > limits.maxModelLength) {
      throw outputTooLong(limits.maxModelLength, tokens, maxTokens);
    }
  }
  const n = optionalCount(body['n'], 'n') ?? 1;
  if (n < 1 || n > 128) throw badRequest(`n must be between 1 and 128, got ${n}.`, 'n');
  const options = body['stream_options'] as Body | null | undefined;
  return {
    ...common,
    kind: 'generate',
    path,
    prompts,
    said,
    maxTokens,
    choices: path === '/v1/responses' ? 1 : n,
    stream: body['stream'] === true,
    streamUsage: options?.['include_usage'] === true,
    ignoreEos: body['ignore_eos'] === true,
    seed: numberOr(body['seed'], 0),
  };
}

function prompt(text: string, limits: ReadLimits): Prompt {
  const tokens = countTokens(text);
  if (tokens >= limits.maxModelLength) throw promptTooLong(limits.maxModelLength, tokens);
  return { text, tokens };
}

/** The text a chat template would make, and what the last message says. */
export function renderMessages(messages: unknown, field: string): { text: string; said: string } {
  if (!Array.isArray(messages)) throw badRequest(`${field} must be a list`, field);
  let text = '';
  let said = '';
  for (const message of messages as unknown[]) {
    const { role, content } = (typeof message === 'object' && message !== null ? message : {}) as Body;
    if (typeof role !== 'string') throw missingField(`${field}', 0, 'role`);
    said = contentText(content);
    text += `<|${role}|>\n${said}\n`;
  }
  return { text: `${text}<|assistant|>\n`, said };
}

function contentText(content: unknown): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return (content as unknown[])
    .map((part) => (part as { text?: unknown } | null)?.text)
    .filter((text) => typeof text === 'string')
    .join('\n');
}

/** A text, a list of texts, a list of token ids, or a list of such lists. */
function readInputs(input: unknown, field: string): string[] {
  const list: unknown[] = Array.isArray(input) && !isIds(input) ? (input as unknown[]) : [input];
  if (list.length === 0) throw badRequest(`${field} must not be empty`, field);
  return list.map((each) => {
    if (typeof each === 'string') return each;
    if (Array.isArray(each) && isIds(each)) return detokenize(each);
    throw badRequest(`${field} must be a text, token ids, or a list of them`, field);
  });
}

const isIds = (list: unknown[]): list is number[] =>
  list.length > 0 && list.every((id) => typeof id === 'number');

function optionalCount(value: unknown, field: string): number | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 1) {
    throw badRequest(`${field} must be at least 1, got ${JSON.stringify(value)}.`, field);
  }
  return value;
}

const numberOr = (value: unknown, otherwise: number): number =>
  typeof value === 'number' ? value : otherwise;
