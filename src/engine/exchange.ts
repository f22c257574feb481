/** One HTTP exchange on one connection: everything that can happen between the first byte and the last, as a value. */
import type { Dispatcher } from 'undici';
import type { ExchangeEnd, Phase } from './exchange-end.ts';
import type { Connection } from './replica-pool.ts';

export interface ExchangeRequest {
  method: 'GET' | 'POST';
  path: string;
  /** Names and values in turn. */
  headers: string[];
  body: Uint8Array | Uint8Array[] | null;
  timeoutMilliseconds: number;
  signal: AbortSignal;
  maxBodyBytes: number;
}

/** The part of an answer beyond the limit that is kept, to show what it looked like. */
const KEPT_OF_TOO_LARGE = 8 * 1024;

/**
 * Sends the request and collects the answer. Aborting, and every end but a whole response, closes the socket.
 * Never rejects. `broken` is true where the connection must not be used again.
 */
export function exchange(
  connection: Connection,
  request: ExchangeRequest,
  monotonic: () => number,
): Promise<{ end: ExchangeEnd; broken: boolean }> {
  return new Promise((resolve) => {
    new Exchange(connection, request, monotonic, (end, broken) => resolve({ end, broken })).start();
  });
}

class Exchange implements Dispatcher.DispatchHandler {
  readonly #connection: Connection;
  readonly #request: ExchangeRequest;
  readonly #monotonic: () => number;
  readonly #finish: (end: ExchangeEnd, broken: boolean) => void;
  #controller: Dispatcher.DispatchController | undefined;
  #phase: Phase = 'Connecting';
  #reused = false;
  #sentAt = 0;
  #bytesReadBefore = 0;
  #status = 0;
  #headers: Record<string, string | string[] | undefined> = {};
  #chunks: Buffer[] = [];
  #bytes = 0;
  #ended = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    connection: Connection,
    request: ExchangeRequest,
    monotonic: () => number,
    finish: (end: ExchangeEnd, broken: boolean) => void,
  ) {
    this.#connection = connection;
    this.#request = request;
    this.#monotonic = monotonic;
    this.#finish = finish;
  }

  start(): void {
    const { method, path, headers, body, signal, timeoutMilliseconds } = this.#request;
    if (signal.aborted) return this.#end({ kind: 'aborted' }, false);
    signal.addEventListener('abort', this.#onAbort);
    this.#timer = setTimeout(this.#onTimeout, timeoutMilliseconds);
    try {
      this.#connection.client.dispatch({ method, path, headers, body: body as Buffer | null }, this);
    } catch (error) {
      this.onResponseError(undefined, error as Error);
    }
  }

  readonly #onAbort = (): void => this.#giveUp({ kind: 'aborted' });
  readonly #onTimeout = (): void => this.#giveUp({ kind: 'timeout', phase: this.#phase });

  /** Before the request was sent there is nothing to abort but the connection itself. */
  #giveUp(end: ExchangeEnd): void {
    if (this.#ended) return;
    const controller = this.#controller;
    this.#end(end, controller === undefined);
    controller?.abort(new Error('given up'));
  }

  #end(end: ExchangeEnd, broken: boolean): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#request.signal.removeEventListener('abort', this.#onAbort);
    this.#finish(end, broken);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#ended) return controller.abort(new Error('given up'));
    this.#controller = controller;
    this.#phase = 'Sent';
    this.#reused = this.#connection.answers > 0;
    this.#sentAt = this.#monotonic();
    this.#bytesReadBefore = this.#connection.bytesRead;
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    this.#phase = 'Answering';
    if (status < 200) return;
    this.#status = status;
    this.#headers = headers;
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#ended) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes <= this.#request.maxBodyBytes) return;
    this.#end(
      this.#response(Buffer.concat(this.#chunks, Math.min(this.#bytes, KEPT_OF_TOO_LARGE)), true),
      false,
    );
    this.#chunks = [];
    controller.abort(new Error('answer too large'));
  }

  onResponseEnd(): void {
    this.#connection.answers++;
    const [first] = this.#chunks;
    const body =
      this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks, this.#bytes);
    this.#end(this.#response(body, false), false);
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    // The pool was destroyed under us, on our own wish.
    const { code } = error as { code?: string };
    if (code === 'UND_ERR_DESTROYED' || code === 'UND_ERR_CLOSED')
      return this.#end({ kind: 'aborted' }, true);
    // A torn status line is the beginning of an answer, though undici has not told us of it.
    if (this.#phase === 'Sent' && this.#connection.bytesRead > this.#bytesReadBefore)
      this.#phase = 'Answering';
    const millisecondsSinceSent = this.#phase === 'Connecting' ? 0 : this.#monotonic() - this.#sentAt;
    this.#end(
      { kind: 'failed', phase: this.#phase, reused: this.#reused, error, millisecondsSinceSent },
      false,
    );
  }

  #response(body: Buffer, tooLarge: boolean): ExchangeEnd {
    return { kind: 'response', status: this.#status, headers: this.#headers, body, tooLarge };
  }
}
