/** What the worker may ask of an inference server, and the six ways an attempt can end. */
import type { Endpoint } from '../batch/model.ts';

export interface EngineRequest {
  /** Base address of the replica, such as `http://10.0.0.7:8000`; also the key of its capacity plan. */
  address: string;
  path: Endpoint;
  /** Sent as they are, one after another, without a copy. */
  body: Uint8Array[];
  apiKey?: string | undefined;
  /** Sent as x-request-id. */
  requestId: string;
  timeoutMilliseconds: number;
  /** Aborting closes the socket, so that the engine stops generating. */
  signal: AbortSignal;
}

/**
 * - `answer`: a definitive answer for this line: 2xx with one JSON object without `error`, or a 4xx that is about the line.
 * - `busy`: 429 or 503; the line waits and loses no attempt.
 * - `fault`: lost connection after sending, 5xx, timeout, or a 200 that is no JSON object or holds an `error`: costs an attempt.
 * - `hold`: the engine's fault, not the line's: refused connection, 401/403, 404 for the route or the model.
 *   `scope` says whether this replica or everything that uses this model deployment is affected. Costs no attempt.
 * - `aborted`: our own signal.
 */
export type EngineOutcome =
  | {
      kind: 'answer';
      status: number;
      requestId: string;
      body: Buffer;
      contentType: string;
      tooLarge?: boolean;
    }
  | { kind: 'busy'; status: number; retryAfterMilliseconds: number | undefined }
  | {
      kind: 'fault';
      status: number | undefined;
      reason: 'ConnectionLost' | 'ServerError' | 'Timeout' | 'InvalidAnswer' | 'ErrorInAnswer';
      message: string;
      body?: Buffer;
      requestId?: string;
    }
  | {
      kind: 'hold';
      scope: 'Replica' | 'Deployment';
      reason: 'ConnectionRefused' | 'Unauthorized' | 'RouteNotFound' | 'ModelNotFound';
      status: number | undefined;
      message: string;
    }
  | { kind: 'aborted' };

export interface EngineClient {
  /** Never throws: every way a call can end is a value. */
  send(request: EngineRequest): Promise<EngineOutcome>;
  /** Cheap question whether a held replica is back: GET /v1/models with the key; never costs a line an attempt. */
  probe(
    address: string,
    apiKey: string | undefined,
    model: string,
    signal: AbortSignal,
  ): Promise<{ ok: true } | { ok: false; reason: string; message: string }>;
  /** Drops the pools of replicas that are gone. */
  retain(addresses: ReadonlySet<string>): void;
  close(): Promise<void>;
}
