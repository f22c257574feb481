import { Agent, request, type Dispatcher } from 'undici';
import type { Access, Credentials, Tls } from './credentials.ts';
import { KubeError } from './contract.ts';
import { kubeErrorOf, noAnswer, redact } from './failures.ts';
import type { Runtime } from './timers.ts';

export type Verb = 'get' | 'list' | 'watch' | 'create' | 'patch' | 'apply' | 'delete' | 'post';

/** One attempt, as counted by metrics. `status` is 0 where no answer came. */
export interface KubeCall {
  verb: Verb;
  resource: string;
  status: number;
  milliseconds: number;
}

export interface HttpRequest {
  verb: Verb;
  /** For metrics and messages. */
  resource: string;
  method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  path: string;
  body?: object | undefined;
  contentType?: string | undefined;
}

/**
 * The connections to one API server: one pool, kept alive, replaced when the server's address, its CA or our
 * certificate changes; the token is asked for with every request.
 */
export class Connection {
  readonly #credentials: Credentials;
  readonly #userAgent: string;
  readonly #runtime: Runtime;
  readonly #onCall: (call: KubeCall) => void;
  #pool: { fingerprint: string; agent: Agent } | undefined;
  #closed = false;

  constructor(options: {
    credentials: Credentials;
    userAgent: string;
    runtime: Runtime;
    onCall: (call: KubeCall) => void;
  }) {
    this.#credentials = options.credentials;
    this.#userAgent = options.userAgent;
    this.#runtime = options.runtime;
    this.#onCall = options.onCall;
  }

  /** One attempt; the whole answer as JSON. Throws KubeError. */
  async exchange(wanted: HttpRequest, limitMilliseconds: number, signal?: AbortSignal): Promise<unknown> {
    return this.#attempt(wanted, limitMilliseconds, signal, async (response) => {
      const text = await response.body.text();
      try {
        return text === '' ? {} : (JSON.parse(text) as unknown);
      } catch {
        // The parser's own words quote the text, which may be a Secret.
        throw new KubeError(
          0,
          'ConnectionLost',
          `${wanted.method}: an answer of ${text.length} characters is no JSON`,
        );
      }
    });
  }

  /**
   * Opens a stream. The limit ends with the answer's headers; from then on `signal` is the way to end it. Breaking
   * off the iteration closes the connection.
   */
  async open(
    wanted: HttpRequest,
    limitMilliseconds: number,
    signal: AbortSignal,
  ): Promise<AsyncIterable<Uint8Array>> {
    return this.#attempt(wanted, limitMilliseconds, signal, (response) => Promise.resolve(response.body));
  }

  refreshCredentials(): void {
    this.#credentials.refresh();
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#pool?.agent.destroy();
  }

  async #attempt<R>(
    wanted: HttpRequest,
    limitMilliseconds: number,
    signal: AbortSignal | undefined,
    read: (response: Dispatcher.ResponseData) => Promise<R>,
  ): Promise<R> {
    const { clock, timers } = this.#runtime;
    const target = `${wanted.method} ${wanted.path.replace(/\?.*/s, '')}`;
    const aborted = (): KubeError =>
      new KubeError(0, 'Aborted', `${target}: given up by the caller`, { cause: signal?.reason });
    if (signal?.aborted) throw aborted();
    if (this.#closed) throw new KubeError(0, 'Aborted', `${target}: the client is closed`);

    const startedAt = clock.monotonic();
    const controller = new AbortController();
    const onAbort = (): void => {
      controller.abort(aborted());
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    const cancelLimit = timers.after(limitMilliseconds, () => {
      controller.abort(
        new KubeError(0, 'Timeout', `${target}: no answer within ${Math.round(limitMilliseconds)} ms`),
      );
    });
    let status = 0;
    let streaming = false;
    try {
      const response = await this.#send(wanted, controller.signal);
      if (response.statusCode >= 300) {
        const error = await errorOf(response, target);
        status = response.statusCode;
        throw error;
      }
      const result = await read(response);
      status = response.statusCode;
      streaming = wanted.verb === 'watch';
      return result;
    } catch (error) {
      // Undici may wrap or replace what it was aborted with.
      throw controller.signal.aborted ? controller.signal.reason : noAnswer(error, target);
    } finally {
      cancelLimit();
      // A stream lives on after its headers and still has to hear of the abort.
      if (!streaming) signal?.removeEventListener('abort', onAbort);
      this.#onCall({
        verb: wanted.verb,
        resource: wanted.resource,
        status,
        milliseconds: clock.monotonic() - startedAt,
      });
    }
  }

  async #send(wanted: HttpRequest, signal: AbortSignal): Promise<Dispatcher.ResponseData> {
    // A plug-in that hangs must not outlive the deadline.
    const access = await unlessAborted(this.#credentials.access(), signal).catch((error: unknown) => {
      signal.throwIfAborted();
      const detail = error instanceof Error ? redact(error.message) : 'unknown failure';
      throw new KubeError(0, 'ConnectionRefused', `no credentials: ${detail}`, { cause: error });
    });
    return request(`${access.server}${wanted.path}`, {
      dispatcher: this.#agentFor(access),
      method: wanted.method,
      signal,
      headers: {
        accept: 'application/json',
        'user-agent': this.#userAgent,
        ...(access.authorization !== undefined && { authorization: access.authorization }),
        ...(wanted.body !== undefined && { 'content-type': wanted.contentType ?? 'application/json' }),
      },
      body: wanted.body === undefined ? null : JSON.stringify(wanted.body),
    });
  }

  #agentFor(access: Access): Agent {
    const fingerprint = JSON.stringify([access.server, access.tls]);
    if (this.#pool?.fingerprint !== fingerprint) {
      const outdated = this.#pool?.agent;
      this.#pool = { fingerprint, agent: newAgent(access.tls) };
      // Calls and watches under way finish on the connections they have.
      void outdated?.close();
    }
    return this.#pool.agent;
  }
}

function unlessAborted<R>(promise: Promise<R>, signal: AbortSignal): Promise<R> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      reject(signal.reason as Error);
    };
    signal.addEventListener('abort', onAbort, { once: true });
    void promise.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', onAbort);
    });
  });
}

function newAgent(tls: Tls): Agent {
  return new Agent({
    // One HTTP/2 connection would take every watch down with it.
    allowH2: false,
    connections: 128,
    pipelining: 1,
    keepAliveTimeout: 30_000,
    // Deadlines are ours: undici's would cut long quiet watches.
    headersTimeout: 0,
    bodyTimeout: 0,
    connect: {
      timeout: 5_000,
      keepAlive: true,
      keepAliveInitialDelay: 30_000,
      ...(tls.ca !== undefined && { ca: tls.ca }),
      ...(tls.cert !== undefined && { cert: tls.cert }),
      ...(tls.key !== undefined && { key: tls.key }),
      ...(tls.servername !== undefined && { servername: tls.servername }),
      ...(tls.rejectUnauthorized !== undefined && { rejectUnauthorized: tls.rejectUnauthorized }),
    },
  });
}

/** More than this no Status has; a proxy's page is not worth reading to its end. */
const longestErrorBodyBytes = 256 * 1024;

async function errorOf(response: Dispatcher.ResponseData, target: string): Promise<KubeError> {
  const header = response.headers['retry-after'];
  const retryAfter = Array.isArray(header) ? header[0] : header;
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of response.body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > longestErrorBodyBytes) break;
    chunks.push(chunk);
  }
  let body: unknown;
  try {
    body = JSON.parse(Buffer.concat(chunks).toString('utf8'));
  } catch {
    body = undefined;
  }
  return kubeErrorOf(response.statusCode, body, target, retryAfter);
}
