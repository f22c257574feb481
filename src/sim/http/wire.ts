/** Reading bodies and writing answers. */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { ApiError } from './errors.ts';

/** Resolves with the body once all of it is there. */
export function readBody(request: IncomingMessage, maxBytes: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > maxBytes) reject(new ApiError(413, { detail: 'Request Entity Too Large' }));
      else chunks.push(chunk);
    });
    request.on('end', () => resolve(Buffer.concat(chunks, bytes).toString()));
    request.on('error', reject);
  });
}

export function sendJson(response: ServerResponse, status: number, body: object): void {
  const text = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': text.length }).end(text);
}

export function sendError(response: ServerResponse, error: unknown): void {
  if (response.destroyed) return;
  if (response.headersSent) return void response.destroy();
  if (!(error instanceof ApiError)) {
    const body = {
      error: { message: 'Internal server error', type: 'InternalServerError', param: null, code: 500 },
    };
    return sendJson(response, 500, body);
  }
  if (Object.keys(error.body).length === 0) return void response.writeHead(error.status).end();
  sendJson(response, error.status, error.body);
}

/** Closes idle connections after 5 s, as uvicorn does: who keeps them longer meets the keep-alive race. */
export function likeUvicorn(server: Server): Server {
  server.keepAliveTimeout = 5_000;
  server.requestTimeout = 0;
  server.headersTimeout = 60_000;
  return server;
}
