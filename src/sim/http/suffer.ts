/** What each fault does to a call. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Call, CallLog } from './call-log.ts';
import { ApiError, modelNotFound, routeNotFound, unauthorized } from './errors.ts';
import type { FaultRule } from './faults.ts';
import { sendJson } from './wire.ts';

export interface Exchange {
  request: IncomingMessage;
  response: ServerResponse;
  call: Call;
  /** Aborts when the caller goes away. */
  signal: AbortSignal;
}

/** @returns true when the call goes on as if nothing were. */
export async function suffer(
  rule: FaultRule,
  { request, response, call, signal }: Exchange,
  { calls, settings }: { calls: CallLog; settings: { models: readonly string[]; die: () => void } },
): Promise<boolean> {
  const { socket } = request;
  switch (rule.fault) {
    case 'hang':
      return false;
    case 'die':
      settings.die();
      return false;
    case 'slow':
      return pause(rule.delayMilliseconds ?? 1_000, signal);
    case 'reset-before':
      calls.end(call, 'broken', null);
      socket.resetAndDestroy();
      return false;
    case 'reset':
      calls.end(call, 'broken', 200);
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
      // What is written must leave before the reset throws it away.
      response.write('{"id":"cut', () => setTimeout(() => socket.resetAndDestroy(), 5));
      return false;
    case 'garbage':
      calls.end(call, 'answered', 200);
      response.writeHead(200, { 'content-type': 'text/html' }).end('<html>upstream said something</html>');
      return false;
    case 'error-inside':
      calls.end(call, 'answered', 200);
      sendJson(response, 200, {
        error: { message: 'engine worker died', type: 'InternalServerError', param: null, code: 500 },
      });
      return false;
    case 'huge':
      calls.end(call, 'answered', 200);
      await sendHuge(response, rule.bytes ?? 65 * 1024 * 1024);
      return false;
    case '429':
    case '503':
      if (rule.retryAfterSeconds !== undefined)
        response.setHeader('retry-after', String(rule.retryAfterSeconds));
      throw errorOf(rule, settings.models);
    default:
      throw errorOf(rule, settings.models);
  }
}

/** What vLLM, or what stands before it, would answer. */
export function errorOf(rule: FaultRule, models: readonly string[]): ApiError {
  const plain = (status: number, type: string, message: string): ApiError =>
    new ApiError(status, { error: { message, type, param: null, code: status } });
  switch (rule.fault) {
    case '401':
      return unauthorized();
    case '403':
      return new ApiError(403, {});
    case '429':
      return plain(429, 'TooManyRequestsError', 'Too many requests are waiting.');
    case '503':
      return plain(503, 'ServiceUnavailableError', 'The engine is not ready.');
    case 'model-not-found':
      return modelNotFound(models[0] ?? '');
    case 'route-not-found':
      return routeNotFound();
    case 'bad-request':
      return plain(400, 'BadRequestError', 'This request can never work.');
    default:
      return plain(500, 'InternalServerError', 'Internal server error');
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(true), milliseconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve(false);
    });
  });
}

async function sendHuge(response: ServerResponse, bytes: number): Promise<void> {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': bytes });
  const piece = Buffer.alloc(1024 * 1024, 'x');
  response.write('{"huge":"');
  for (let left = bytes - 11; left > 0 && !response.destroyed; left -= piece.length) {
    if (response.write(left < piece.length ? piece.subarray(0, left) : piece)) continue;
    await new Promise((resolve) => {
      response.once('drain', resolve);
      response.once('close', resolve);
    });
  }
  response.end('"}');
}
