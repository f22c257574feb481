/** What an exchange means for the line that was sent: the one place that knows (contract.ts, EngineOutcome). Pure. */
import { errorInside, hasErrorInside, isJsonObject, shortMessage } from '../batch/answer.ts';
import type { EngineOutcome } from './contract.ts';
import type { ExchangeEnd, Phase } from './exchange-end.ts';
import { retryAfterMilliseconds } from './retry-after.ts';

type Response = Extract<ExchangeEnd, { kind: 'response' }>;
type Hold = Extract<EngineOutcome, { kind: 'hold' }>;
type Fault = Extract<EngineOutcome, { kind: 'fault' }>;

export interface Sent {
  address: string;
  path: string;
  requestId: string;
  timeoutMilliseconds: number;
}

/** @param now epoch milliseconds, for Retry-After dates. */
export function classify(end: ExchangeEnd, sent: Sent, now: number): EngineOutcome {
  switch (end.kind) {
    case 'aborted':
      return { kind: 'aborted' };
    case 'timeout':
      return timedOut(end.phase, sent);
    case 'failed':
      return failed(end, sent);
    case 'response':
      return answered(end, sent, now);
  }
}

function answered(response: Response, sent: Sent, now: number): EngineOutcome {
  const { status } = response;
  if (status === 429 || status === 503) {
    const retryAfter = headerOf(response, 'retry-after');
    return { kind: 'busy', status, retryAfterMilliseconds: retryAfterMilliseconds(retryAfter, now) };
  }
  if (status >= 500) return fault(response, sent, 'ServerError', `answered ${status}${detailOf(response)}`);
  if (status === 401) return unauthorized(response, sent);
  if (status === 404) return notFound(response, sent);
  if (status >= 400) return answer(response, sent);
  if (status >= 300) {
    const to = headerOf(response, 'location') ?? 'nowhere';
    return routeNotFound(response, sent, `redirects POST ${sent.path} to ${shortMessage(to)}`);
  }
  return succeeded(response, sent);
}

function succeeded(response: Response, sent: Sent): EngineOutcome {
  const { body, status, tooLarge } = response;
  if (tooLarge) return answer(response, sent);
  if (!isJsonObject(body)) {
    const type = headerOf(response, 'content-type') ?? 'no content type';
    return fault(
      response,
      sent,
      'InvalidAnswer',
      `answered ${status} with ${body.length} bytes of ${type} that are not one JSON object`,
    );
  }
  if (mayHoldError(body) && hasErrorInside(body)) {
    return fault(
      response,
      sent,
      'ErrorInAnswer',
      `answered ${status} with an error inside${detailOf(response)}`,
    );
  }
  return answer(response, sent);
}

/** A search for bytes costs far less than a scan. A key can be spelled in two ways only: plain, or with escapes. */
const mayHoldError = (body: Buffer): boolean => body.includes('"error"') || body.includes('\\u');

function answer(response: Response, sent: Sent): EngineOutcome {
  return {
    kind: 'answer',
    status: response.status,
    requestId: headerOf(response, 'x-request-id') ?? sent.requestId,
    body: response.body,
    contentType: headerOf(response, 'content-type') ?? '',
    ...(response.tooLarge ? { tooLarge: true } : {}),
  };
}

function fault(response: Response, sent: Sent, reason: Fault['reason'], what: string): Fault {
  return {
    kind: 'fault',
    status: response.status,
    reason,
    message: `${sent.address} ${what}`,
    body: response.body,
    requestId: headerOf(response, 'x-request-id') ?? sent.requestId,
  };
}

/** The key belongs to the deployment, so it is wrong for all its replicas. */
export function unauthorized(response: Response, sent: Pick<Sent, 'address'>): Hold {
  const { status } = response;
  return {
    kind: 'hold',
    scope: 'Deployment',
    reason: 'Unauthorized',
    status,
    message: `${sent.address} answered ${status} to the engine key${detailOf(response)}`,
  };
}

function routeNotFound(response: Response, sent: Sent, what: string): Hold {
  const { status } = response;
  const message = `${sent.address} ${what}`;
  return { kind: 'hold', scope: 'Replica', reason: 'RouteNotFound', status, message };
}

/**
 * Three different things share this status: no such route, no such model (both are the engine's fault, and of this
 * replica only, since replicas change one after another), and an error about something that the line names, such
 * as `previous_response_id`.
 */
function notFound(response: Response, sent: Sent): EngineOutcome {
  const error = errorFields(response.body);
  if (error === undefined || ROUTE_ERROR.test(error.message)) {
    return routeNotFound(response, sent, `has no route POST ${sent.path} (404${detailOf(response)})`);
  }
  if (error.code === 'model_not_found' || error.param === 'model' || MODEL_ERROR.test(error.message)) {
    const message = `${sent.address} answered 404: ${shortMessage(error.message)}`;
    return { kind: 'hold', scope: 'Replica', reason: 'ModelNotFound', status: 404, message };
  }
  return answer(response, sent);
}

const ROUTE_ERROR =
  /^$|^(404 )?(page )?not found\.?$|invalid url|no route|(route|url|path|endpoint|page)\b.*\bnot found/i;
const MODEL_ERROR = /\bmodel\b.*\b(does not exist|not found|not exist|not available|not loaded|not served)/is;

interface ErrorFields {
  message: string;
  code: unknown;
  param: unknown;
}

/** `{error:{…}}` as OpenAI and vLLM write it, or the flat `{object:"error",…}` of older vLLM. */
function errorFields(body: Uint8Array): ErrorFields | undefined {
  if (body.length > MAX_ERROR_BYTES || !isJsonObject(body)) return undefined;
  const object = JSON.parse(Buffer.from(body).toString()) as Record<string, unknown>;
  const error = object['object'] === 'error' ? object : object['error'];
  if (typeof error === 'string') return { message: error, code: undefined, param: undefined };
  if (typeof error !== 'object' || error === null) return undefined;
  const { message, code, param } = error as Record<string, unknown>;
  return { message: typeof message === 'string' ? message : '', code, param };
}

const MAX_ERROR_BYTES = 64 * 1024;

function detailOf(response: Response): string {
  const message =
    response.body.length > MAX_ERROR_BYTES ? undefined : errorInside(response.status, response.body)?.message;
  return message === undefined || message === '' ? '' : `: ${shortMessage(message)}`;
}

function timedOut(phase: Phase, sent: Sent): EngineOutcome {
  const within = `within ${sent.timeoutMilliseconds} ms`;
  if (phase === 'Connecting') return unreachable(sent, `no connection ${within}`);
  const what = phase === 'Sent' ? 'no answer' : 'no complete answer';
  return {
    kind: 'fault',
    status: undefined,
    reason: 'Timeout',
    message: `${sent.address}: ${what} ${within}`,
  };
}

function failed(end: Extract<ExchangeEnd, { kind: 'failed' }>, sent: Sent): EngineOutcome {
  const { error, phase } = end;
  if (error.code === 'UND_ERR_INVALID_ARG') {
    // Only the key and the request id come from outside, and the id is ours.
    return {
      kind: 'hold',
      scope: 'Deployment',
      reason: 'Unauthorized',
      status: undefined,
      message: 'the engine key holds characters that cannot stand in an HTTP header',
    };
  }
  if (phase === 'Connecting') return unreachable(sent, describe(error));
  const garbage =
    /^(HPE_|UND_ERR_HEADERS_OVERFLOW)/.test(error.code ?? '') || error.name === 'HTTPParserError';
  const when = phase === 'Sent' ? 'before its answer' : 'in the middle of its answer';
  return {
    kind: 'fault',
    status: undefined,
    reason: garbage ? 'InvalidAnswer' : 'ConnectionLost',
    message: garbage
      ? `${sent.address} answered what is not HTTP: ${describe(error)}`
      : `${sent.address} closed the connection ${when}: ${describe(error)}`,
  };
}

const unreachable = (sent: Sent, why: string): Hold => ({
  kind: 'hold',
  scope: 'Replica',
  reason: 'ConnectionRefused',
  status: undefined,
  message: `cannot connect to ${sent.address}: ${why}`,
});

/** Node reports several attempts (IPv4, IPv6) as one AggregateError without a text of its own. */
function describe(error: Error & { code?: string }): string {
  const first: unknown = error instanceof AggregateError ? error.errors[0] : undefined;
  const text = error.message || (first instanceof Error ? first.message : error.name);
  return error.code === undefined || text.includes(error.code) ? text : `${text} (${error.code})`;
}

export function headerOf(response: Pick<Response, 'headers'>, name: string): string | undefined {
  const value = response.headers[name];
  return Array.isArray(value) ? value[0] : value;
}
