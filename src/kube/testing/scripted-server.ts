/** A small HTTP server for the faults that a real API server does not produce on demand. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

export interface Received {
  method: string;
  url: string;
  headers: IncomingMessage['headers'];
  body: string;
  /** Counts connections from 1. */
  connection: number;
}

export type Script = (request: Received, response: ServerResponse) => void;

export class ScriptedServer {
  readonly received: Received[] = [];
  connections = 0;
  /** Answers whatever comes; exchanged at any time. */
  script: Script;
  readonly #server: Server;
  readonly #sockets = new Map<Socket, number>();

  private constructor(script: Script) {
    this.script = script;
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const received = {
          method: request.method ?? '',
          url: request.url ?? '',
          headers: request.headers,
          body: Buffer.concat(chunks).toString('utf8'),
          connection: this.#sockets.get(request.socket) ?? 0,
        };
        this.received.push(received);
        this.script(received, response);
      });
    });
    this.#server.on('connection', (socket) => {
      this.connections += 1;
      this.#sockets.set(socket, this.connections);
      socket.on('close', () => this.#sockets.delete(socket));
    });
  }

  static async start(script: Script, port = 0): Promise<ScriptedServer> {
    const scripted = new ScriptedServer(script);
    await new Promise<void>((resolve, reject) => {
      scripted.#server.once('error', reject);
      scripted.#server.listen(port, '127.0.0.1', resolve);
    });
    return scripted;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get openConnections(): number {
    return this.#sockets.size;
  }

  /** Cuts all connections, as a killed process would. */
  cut(): void {
    for (const socket of this.#sockets.keys()) socket.resetAndDestroy();
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

export function answer(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

export const statusBody = (code: number, reason: string, message: string, details?: object): object => ({
  kind: 'Status',
  apiVersion: 'v1',
  status: 'Failure',
  code,
  reason,
  message,
  details,
});
