/** Builds what vLLM would answer: texts, the JSON of each endpoint, and the chunks of streams. Pure. */
import { hashText, markerIn, proseTokens, textTokens } from '../tokens.ts';
import type { EmbedRequest, GenerateRequest } from './requests.ts';

export interface Generation {
  /** Joined they are the text. */
  tokens: string[];
  finishReason: 'stop' | 'length';
}

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
}

export interface AnswerHead {
  id: string;
  createdSeconds: number;
  model: string;
}

/** What one choice will say: known beforehand, so that the engine only has to spend the time. */
export function generationFor(
  request: GenerateRequest,
  choice: number,
  echo: boolean,
  room: number,
): Generation {
  const limit = Math.min(request.maxTokens ?? room, room);
  if (echo) return echoed(request.said, limit);
  const seed = hashText(request.prompts.map(({ text }) => text).join('\n'), request.seed + choice);
  const natural = request.ignoreEos ? limit : 8 + (seed % 248);
  const count = Math.min(natural, limit);
  return {
    tokens: proseTokens(seed, count),
    finishReason: natural <= limit && !request.ignoreEos ? 'stop' : 'length',
  };
}

/** A marker is never cut, whatever the limit: tests find the line by it. */
function echoed(said: string, limit: number): Generation {
  const tokens = textTokens(said);
  if (tokens.length <= limit) return { tokens: tokens.length > 0 ? tokens : ['-'], finishReason: 'stop' };
  const marker = markerIn(said);
  if (marker === undefined) return { tokens: tokens.slice(0, limit), finishReason: 'length' };
  const kept = textTokens(`${marker} `);
  // A limit smaller than the marker: the last token holds all the rest of it.
  const head = kept.length <= limit ? kept : [...kept.slice(0, limit - 1), kept.slice(limit - 1).join('')];
  return { tokens: [...head, ...tokens.slice(0, limit - head.length)], finishReason: 'length' };
}

const chatUsage = ({ promptTokens, cachedTokens, completionTokens }: Usage): object => ({
  prompt_tokens: promptTokens,
  total_tokens: promptTokens + completionTokens,
  completion_tokens: completionTokens,
  prompt_tokens_details: { cached_tokens: cachedTokens },
});

export function chatAnswer(head: AnswerHead, generations: Generation[], usage: Usage): object {
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.createdSeconds,
    model: head.model,
    choices: generations.map(({ tokens, finishReason }, index) => ({
      index,
      message: { role: 'assistant', content: tokens.join(''), refusal: null, tool_calls: [] },
      logprobs: null,
      finish_reason: finishReason,
      stop_reason: null,
    })),
    usage: chatUsage(usage),
  };
}

export function completionAnswer(head: AnswerHead, generations: Generation[], usage: Usage): object {
  return {
    id: head.id,
    object: 'text_completion',
    created: head.createdSeconds,
    model: head.model,
    choices: generations.map(({ tokens, finishReason }, index) => ({
      index,
      text: tokens.join(''),
      logprobs: null,
      finish_reason: finishReason,
      stop_reason: null,
    })),
    usage: chatUsage(usage),
  };
}

export function responsesAnswer(head: AnswerHead, generation: Generation, usage: Usage): object {
  const complete = generation.finishReason === 'stop';
  const status = complete ? 'completed' : 'incomplete';
  return {
    id: head.id,
    object: 'response',
    created_at: head.createdSeconds,
    status,
    error: null,
    incomplete_details: complete ? null : { reason: 'max_output_tokens' },
    model: head.model,
    output: [
      {
        id: head.id.replace('resp', 'msg'),
        type: 'message',
        role: 'assistant',
        status,
        content: [{ type: 'output_text', text: generation.tokens.join(''), annotations: [], logprobs: null }],
      },
    ],
    usage: {
      input_tokens: usage.promptTokens,
      input_tokens_details: { cached_tokens: usage.cachedTokens },
      output_tokens: usage.completionTokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: usage.promptTokens + usage.completionTokens,
    },
  };
}

const EMBEDDING_DIMENSIONS = 32;

export function embeddingAnswer(head: AnswerHead, request: EmbedRequest, echo: boolean): object {
  const promptTokens = request.prompts.reduce((sum, { tokens }) => sum + tokens, 0);
  const marker = echo ? markerIn(request.prompts.map(({ text }) => text).join(' ')) : undefined;
  return {
    id: head.id,
    object: 'list',
    created: head.createdSeconds,
    model: head.model,
    data: request.prompts.map(({ text }, index) => ({
      index,
      object: 'embedding',
      embedding: embedding(text, request.base64),
    })),
    usage: {
      prompt_tokens: promptTokens,
      total_tokens: promptTokens,
      completion_tokens: 0,
      prompt_tokens_details: null,
    },
    // A vector cannot hold the marker, so echo mode puts it beside.
    ...(marker === undefined ? {} : { echo: marker }),
  };
}

/** A unit vector that depends only on the text. */
function embedding(text: string, base64: boolean): number[] | string {
  const vector = new Float32Array(EMBEDDING_DIMENSIONS);
  for (let i = 0; i < vector.length; i++) vector[i] = hashText(text, i) / 2 ** 31 - 1;
  const length = Math.hypot(...vector) || 1;
  for (let i = 0; i < vector.length; i++) vector[i] = (vector[i] ?? 0) / length;
  return base64 ? Buffer.from(vector.buffer).toString('base64') : [...vector];
}

/** The chunks of a stream, in order: `begin`, then one `token` for each, then `end`. */
export interface StreamShape {
  begin(): string;
  token(choice: number, text: string, sequence: number): string;
  finish(choice: number, generation: Generation): string;
  end(usage: Usage): string;
}

const event = (data: object): string => `data: ${JSON.stringify(data)}\n\n`;
const named = (type: string, data: object): string =>
  `event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`;

export function streamShape(
  head: AnswerHead,
  request: GenerateRequest,
  generations: Generation[],
): StreamShape {
  if (request.path === '/v1/responses')
    return responsesStream(head, generations[0] ?? { tokens: [], finishReason: 'stop' });
  const chat = request.path === '/v1/chat/completions';
  const chunk = (choices: object[], usage?: object): string =>
    event({
      id: head.id,
      object: chat ? 'chat.completion.chunk' : 'text_completion',
      created: head.createdSeconds,
      model: head.model,
      choices,
      ...(usage === undefined ? {} : { usage }),
    });
  const choice = (index: number, content: object, finish: string | null): object => ({
    index,
    ...(chat ? { delta: content } : content),
    logprobs: null,
    finish_reason: finish,
  });
  return {
    // vLLM's first chunk of a chat carries only the role.
    begin: () =>
      chat
        ? chunk(generations.map((_, index) => choice(index, { role: 'assistant', content: '' }, null)))
        : '',
    token: (index, text) => chunk([choice(index, chat ? { content: text } : { text }, null)]),
    finish: (index, { finishReason }) =>
      chunk([choice(index, chat ? { content: '' } : { text: '' }, finishReason)]),
    end: (usage) => `${request.streamUsage ? chunk([], chatUsage(usage)) : ''}data: [DONE]\n\n`,
  };
}

function responsesStream(head: AnswerHead, generation: Generation): StreamShape {
  const itemId = head.id.replace('resp', 'msg');
  const started = {
    id: head.id,
    object: 'response',
    created_at: head.createdSeconds,
    model: head.model,
    status: 'in_progress',
    output: [],
  };
  const item = { id: itemId, type: 'message', role: 'assistant' };
  const at = { item_id: itemId, output_index: 0, content_index: 0 };
  const part = (text: string): object => ({ type: 'output_text', text, annotations: [], logprobs: null });
  let sequence = 0;
  const say = (type: string, data: object): string => named(type, { ...data, sequence_number: sequence++ });
  return {
    begin: () =>
      say('response.created', { response: started }) +
      say('response.in_progress', { response: started }) +
      say('response.output_item.added', {
        output_index: 0,
        item: { ...item, status: 'in_progress', content: [] },
      }) +
      say('response.content_part.added', { ...at, part: part('') }),
    token: (_choice, delta) => say('response.output_text.delta', { ...at, delta }),
    finish: (_choice, { tokens }) => {
      const text = tokens.join('');
      return (
        say('response.output_text.done', { ...at, text }) +
        say('response.content_part.done', { ...at, part: part(text) }) +
        say('response.output_item.done', {
          output_index: 0,
          item: { ...item, status: 'completed', content: [part(text)] },
        })
      );
    },
    end: (usage) => {
      const type = generation.finishReason === 'stop' ? 'response.completed' : 'response.incomplete';
      return say(type, { response: responsesAnswer(head, generation, usage) });
    },
  };
}
