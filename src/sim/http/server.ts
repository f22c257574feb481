/** The HTTP face of the look-alike: routes, keys, faults and the log of calls around an Inference. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '../../observability/contract.ts';
import { AbortError, type Inference } from '../inference.ts';
import { renderMetrics } from '../metrics-page.ts';
import { detokenize, hashText, markerIn, tokenize } from '../tokens.ts';
import {
  chatAnswer,
  completionAnswer,
  embeddingAnswer,
  generationFor,
  responsesAnswer,
  streamShape,
  type AnswerHead,
  type Generation,
  type Usage,
} from './answers.ts';
import type { CallLog } from './call-log.ts';
import { ApiError, methodNotAllowed, missingField, routeNotFound, unauthorized } from './errors.ts';
import type { FaultTable } from './faults.ts';
import {
  INFERENCE_PATHS,
  parseBody,
  readRequest,
  renderMessages,
  type EmbedRequest,
  type GenerateRequest,
  type InferencePath,
} from './requests.ts';
import { errorOf, suffer, type Exchange } from './suffer.ts';
import { readBody, sendError, sendJson } from './wire.ts';

export interface FaceSettings {
  models: readonly string[];
  apiKey: string | undefined;
  maxModelLength: number;
  echo: boolean;
  maxBodyBytes: number;
  /** What the fault `die` does. */
  die: () => void;
}

export interface FaceParts {
  settings: FaceSettings;
  inference: Inference;
  faults: FaultTable;
  calls: CallLog;
  clock: Clock;
}

const QUESTIONS = new Set(['/health', '/v1/models', '/metrics', '/version', '/ping']);

export function createFace(parts: FaceParts) {
  const { settings, inference, faults, calls, clock } = parts;
  const startedSeconds = clock.now() / 1_000;
  let serial = 0;

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = (request.url ?? '/').split('?', 1)[0] ?? '/';
    const requestId = request.headers['x-request-id'];
    if (typeof requestId === 'string') response.setHeader('x-request-id', requestId);
    try {
      if (QUESTIONS.has(path)) return question(path, request, response);
      if (path.startsWith('/v1/') && !keyIsRight(request)) throw unauthorized();
      if (isInference(path)) {
        if (request.method !== 'POST') throw methodNotAllowed();
        return await infer(path, request, response);
      }
      if (path === '/tokenize' || path === '/detokenize') {
        if (request.method !== 'POST') throw methodNotAllowed();
        const body = parseBody(await readBody(request, settings.maxBodyBytes));
        return sendJson(response, 200, path === '/tokenize' ? tokens(body) : { prompt: textOf(body) });
      }
      throw routeNotFound();
    } catch (error) {
      sendError(response, error);
    }
  }

  const keyIsRight = (request: IncomingMessage): boolean =>
    settings.apiKey === undefined || request.headers.authorization === `Bearer ${settings.apiKey}`;

  function question(path: string, request: IncomingMessage, response: ServerResponse): void {
    if (request.method !== 'GET') throw methodNotAllowed();
    if (path === '/metrics') {
      const page = renderMetrics(inference.metrics, settings.models[0] ?? '', startedSeconds);
      response.writeHead(200, { 'content-type': 'text/plain; version=1.0.0; charset=utf-8' }).end(page);
      return;
    }
    const rule = faults.meetQuestion();
    if (rule?.fault === 'hang') return;
    if (rule?.fault === 'reset-before') return void request.socket.resetAndDestroy();
    if (rule?.fault === '500' || rule?.fault === '503') throw errorOf(rule, settings.models);
    if (path === '/health' || path === '/ping') return void response.writeHead(200).end();
    if (path === '/version') return sendJson(response, 200, { version: '0.32.0' });
    if (!keyIsRight(request) || rule?.fault === '401') throw unauthorized();
    sendJson(response, 200, {
      object: 'list',
      data: (rule === undefined ? settings.models : []).map((id) => ({
        id,
        object: 'model',
        created: Math.floor(startedSeconds),
        owned_by: 'vllm',
        root: id,
        parent: null,
        max_model_len: settings.maxModelLength,
        permission: [],
      })),
    });
  }

  function tokens(body: Record<string, unknown>): object {
    const text =
      body['messages'] === undefined ? body['prompt'] : renderMessages(body['messages'], 'messages').text;
    if (typeof text !== 'string') throw missingField('prompt');
    const ids = tokenize(text);
    return { count: ids.length, max_model_len: settings.maxModelLength, tokens: ids, token_strs: null };
  }

  function textOf(body: Record<string, unknown>): string {
    const ids = body['tokens'];
    if (!Array.isArray(ids) || !ids.every((id) => typeof id === 'number')) throw missingField('tokens');
    return detokenize(ids);
  }

  async function infer(
    path: InferencePath,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const text = await readBody(request, settings.maxBodyBytes);
    const id = request.headers['x-request-id'];
    const call = calls.arrive(path, markerIn(text), typeof id === 'string' ? id : undefined);
    const gone = new AbortController();
    response.once('close', () => {
      if (response.writableFinished) return;
      calls.end(call, 'aborted', null);
      gone.abort();
    });
    const exchange: Exchange = { request, response, call, signal: gone.signal };
    try {
      const rule = faults.meet(text);
      if (rule !== undefined) {
        call.fault = rule.fault;
        if (!(await suffer(rule, exchange, { calls, settings }))) return;
      }
      const read = readRequest(path, parseBody(text), settings);
      if (read.kind === 'embed') await embed(read, exchange);
      else if (read.stream) await stream(read, exchange);
      else await generate(read, exchange);
    } catch (error) {
      if (error instanceof AbortError) return;
      const status = error instanceof ApiError ? error.status : 500;
      calls.end(call, status === 429 || status === 503 ? 'turnedAway' : 'answered', status);
      sendError(response, error);
    }
  }

  const headFor = (kind: string, model: string): AnswerHead => ({
    id: `${kind}-${hashText(String(++serial), serial).toString(16)}${serial}`,
    createdSeconds: Math.floor(clock.now() / 1_000),
    model,
  });

  async function embed(read: EmbedRequest, { response, call, signal }: Exchange): Promise<void> {
    await Promise.all(
      read.prompts.map(({ text, tokens: promptTokens }) =>
        inference.run(
          {
            promptTokens,
            promptText: text,
            outputTokens: 0,
            maxTokens: undefined,
            priority: read.priority,
            finishReason: 'stop',
          },
          signal,
        ),
      ),
    );
    calls.end(call, 'answered', 200);
    sendJson(response, 200, embeddingAnswer(headFor('embd', read.model), read, settings.echo));
  }

  async function generate(read: GenerateRequest, { response, call, signal }: Exchange): Promise<void> {
    const generations = generationsOf(read);
    const usage = await run(read, generations, signal);
    calls.end(call, 'answered', 200);
    sendJson(response, 200, answerOf(read, generations, usage));
  }

  async function stream(read: GenerateRequest, { response, call, signal }: Exchange): Promise<void> {
    const generations = generationsOf(read);
    const shape = streamShape(headFor(idPrefix(read), read.model), read, generations);
    const said = generations.map(() => 0);
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    response.write(shape.begin());
    const usage = await run(read, generations, signal, (choice, count) => {
      const generation = generations[choice];
      if (generation === undefined) return;
      let text = '';
      const from = said[choice] ?? 0;
      for (let at = from; at < from + count; at++)
        text += shape.token(choice, generation.tokens[at] ?? '', at);
      said[choice] = from + count;
      if (from + count >= generation.tokens.length) text += shape.finish(choice, generation);
      response.write(text);
    });
    calls.end(call, 'answered', 200);
    response.end(shape.end(usage));
  }

  const generationsOf = (read: GenerateRequest): Generation[] =>
    read.prompts.flatMap(({ tokens: promptTokens }) =>
      Array.from({ length: read.choices }, (_, choice) =>
        generationFor(read, choice, settings.echo, settings.maxModelLength - promptTokens),
      ),
    );

  /** Each choice of each prompt is a request of its own for the engine, as in vLLM. */
  async function run(
    read: GenerateRequest,
    generations: Generation[],
    signal: AbortSignal,
    onTokens?: (choice: number, count: number) => void,
  ): Promise<Usage> {
    const results = await Promise.all(
      generations.map(({ tokens: output, finishReason }, choice) => {
        const prompt = read.prompts[Math.floor(choice / read.choices)] ?? { text: '', tokens: 0 };
        return inference.run(
          {
            promptTokens: prompt.tokens,
            promptText: prompt.text,
            outputTokens: output.length,
            maxTokens: read.maxTokens,
            priority: read.priority,
            finishReason,
            ...(onTokens === undefined ? {} : { onTokens: (count: number) => onTokens(choice, count) }),
          },
          signal,
        );
      }),
    );
    return {
      promptTokens: read.prompts.reduce((sum, prompt) => sum + prompt.tokens, 0),
      cachedTokens: results[0]?.cachedTokens ?? 0,
      completionTokens: generations.reduce((sum, { tokens: output }) => sum + output.length, 0),
    };
  }

  function answerOf(read: GenerateRequest, generations: Generation[], usage: Usage): object {
    const head = headFor(idPrefix(read), read.model);
    switch (read.path) {
      case '/v1/chat/completions':
        return chatAnswer(head, generations, usage);
      case '/v1/completions':
        return completionAnswer(head, generations, usage);
      case '/v1/responses':
        return responsesAnswer(head, generations[0] ?? { tokens: [], finishReason: 'stop' }, usage);
    }
  }

  return handle;
}

const idPrefix = ({ path }: GenerateRequest): string =>
  ({ '/v1/chat/completions': 'chatcmpl', '/v1/completions': 'cmpl', '/v1/responses': 'resp' })[path];

const isInference = (path: string): path is InferencePath =>
  (INFERENCE_PATHS as readonly string[]).includes(path);
