/** The client to inference servers: contract.ts on undici. How an exchange is judged stands in classify.ts. */
import type { AddressPolicy } from '../api/address-rules.ts';
import { shortMessage } from '../batch/answer.ts';
import { MAX_ANSWER_BYTES } from '../batch/model.ts';
import type { Clock } from '../observability/contract.ts';
import { classify, unauthorized, type Sent } from './classify.ts';
import type { EngineClient, EngineOutcome, EngineRequest } from './contract.ts';
import type { ExchangeEnd } from './exchange-end.ts';
import { exchange, type ExchangeRequest } from './exchange.ts';
import { AddressRefused, guardedConnector, type Lookup } from './guarded-connector.ts';
import { Connection, ReplicaPool, type PoolSettings } from './replica-pool.ts';

export interface EngineClientSettings extends PoolSettings {
  connectTimeoutMilliseconds: number;
  /** A kept socket that dies this soon after a request was put on it had been closed by the other side before. */
  keepAliveRaceMilliseconds: number;
  probeTimeoutMilliseconds: number;
  maxAnswerBytes: number;
}

export const defaultEngineClientSettings: EngineClientSettings = {
  maxConnections: 1_024,
  maxConnecting: 64,
  keepAliveMilliseconds: 4_000,
  connectTimeoutMilliseconds: 5_000,
  keepAliveRaceMilliseconds: 1_000,
  probeTimeoutMilliseconds: 5_000,
  maxAnswerBytes: MAX_ANSWER_BYTES,
};

/** For metrics: how one call ended. */
export interface EngineCall {
  address: string;
  path: string;
  outcome: EngineOutcome['kind'];
  status: number | undefined;
  durationMilliseconds: number;
  /** The keep-alive race was met. */
  retried: boolean;
}

export interface EngineClientOptions extends AddressPolicy {
  settings?: Partial<EngineClientSettings>;
  clock: Clock;
  /** Called after each call; must not throw. */
  onCall?: (call: EngineCall) => void;
  /** Instead of the system's DNS. */
  lookup?: Lookup;
}

/** Bodies up to this size are joined: copying them costs less than a second write to the socket. */
const JOIN_BYTES = 64 * 1024;

export function createEngineClient(options: EngineClientOptions): EngineClient {
  const settings = { ...defaultEngineClientSettings, ...options.settings };
  const { clock } = options;
  const monotonic = () => clock.monotonic();
  const replicas = new Map<string, Replica>();

  /** @throws AddressRefused */
  function replicaOf(address: string): Replica {
    const existing = replicas.get(address);
    if (existing !== undefined) return existing;
    const connector = guardedConnector(address, {
      allowLoopback: options.allowLoopback,
      connectTimeoutMilliseconds: settings.connectTimeoutMilliseconds,
      lookup: options.lookup,
    });
    const { origin, pathname } = new URL(address);
    const replica = { pool: new ReplicaPool(origin, connector, settings), prefix: prefixOf(pathname) };
    replicas.set(address, replica);
    return replica;
  }

  async function exchangeOnce(replica: Replica, request: ExchangeRequest): Promise<Tries> {
    const acquired = replica.pool.acquire(request.signal);
    const connection = acquired instanceof Promise ? await acquired : acquired;
    if (!(connection instanceof Connection)) return { end: connection, retried: false };
    const started = clock.monotonic();
    let { end, broken } = await exchange(connection, request, monotonic);
    const first = end;
    const retried = !broken && metKeepAliveRace(end, settings.keepAliveRaceMilliseconds);
    if (retried) {
      // Its socket is gone, so the same connection opens a fresh one: other kept sockets may be as dead.
      const timeoutMilliseconds = Math.max(1, request.timeoutMilliseconds - (clock.monotonic() - started));
      ({ end, broken } = await exchange(connection, { ...request, timeoutMilliseconds }, monotonic));
    }
    if ((end.kind === 'failed' || end.kind === 'timeout') && end.phase === 'Connecting') {
      replica.pool.connectFailed(end);
    }
    replica.pool.release(connection, broken);
    // The engine died of the first try rather than of idleness: that must cost an attempt, or a line that kills
    // its engine would be sent for ever.
    const killed = retried && (end.kind === 'failed' || end.kind === 'timeout') && end.phase === 'Connecting';
    return { end: killed ? first : end, retried };
  }

  async function send(request: EngineRequest): Promise<EngineOutcome> {
    const { address, path, signal } = request;
    const started = clock.monotonic();
    let retried = false;
    let outcome: EngineOutcome;
    try {
      const replica = replicaOf(address);
      const tries = await exchangeOnce(replica, {
        method: 'POST',
        path: replica.prefix + path,
        headers: headersFor(request),
        body: joined(request.body),
        timeoutMilliseconds: request.timeoutMilliseconds,
        signal,
        maxBodyBytes: settings.maxAnswerBytes,
      });
      retried = tries.retried;
      outcome = classify(tries.end, request, clock.now());
      if (outcome.kind === 'answer' && outcome.status === 403) {
        outcome = (await keyIsRefused(replica, request)) ?? outcome;
      }
    } catch (error) {
      outcome = unusable(address, error);
    }
    options.onCall?.({
      address,
      path,
      outcome: outcome.kind,
      status: 'status' in outcome ? outcome.status : undefined,
      durationMilliseconds: clock.monotonic() - started,
      retried,
    });
    return outcome;
  }

  /** 403 is said of keys and of single requests (content rules of a gateway); a request without content tells which. */
  async function keyIsRefused(replica: Replica, request: EngineRequest): Promise<EngineOutcome | undefined> {
    const { end } = await listModels(replica, request.apiKey, request.signal);
    if (end.kind === 'aborted' && request.signal.aborted) return { kind: 'aborted' };
    if (end.kind !== 'response' || (end.status !== 401 && end.status !== 403)) return undefined;
    return unauthorized(end, request);
  }

  const listModels = (replica: Replica, apiKey: string | undefined, signal: AbortSignal): Promise<Tries> =>
    exchangeOnce(replica, {
      method: 'GET',
      path: `${replica.prefix}/v1/models`,
      headers: apiKey === undefined ? [] : ['authorization', `Bearer ${apiKey}`],
      body: null,
      timeoutMilliseconds: settings.probeTimeoutMilliseconds,
      signal,
      maxBodyBytes: settings.maxAnswerBytes,
    });

  return {
    send,
    async probe(address, apiKey, model, signal) {
      try {
        const { end } = await listModels(replicaOf(address), apiKey, signal);
        const timeoutMilliseconds = settings.probeTimeoutMilliseconds;
        return judgeProbe(
          end,
          { address, path: '/v1/models', requestId: '', timeoutMilliseconds },
          model,
          clock.now(),
        );
      } catch (error) {
        return { ok: false, ...reasonOf(unusable(address, error)) };
      }
    },
    retain(addresses) {
      for (const [address, { pool }] of replicas) {
        if (addresses.has(address)) continue;
        pool.retire();
        replicas.delete(address);
      }
    },
    async close() {
      const pools = [...replicas.values()].map(({ pool }) => pool);
      replicas.clear();
      await Promise.all(pools.map((pool) => pool.destroy()));
    },
  };
}

interface Replica {
  pool: ReplicaPool;
  /** Path of the base address, without `/v1` and without a slash at its end. */
  prefix: string;
}

interface Tries {
  end: ExchangeEnd;
  retried: boolean;
}

/** People write the address with and without the `/v1` that is part of every path. */
const prefixOf = (pathname: string): string => pathname.replace(/\/+$/, '').replace(/\/v1$/, '');

function headersFor(request: EngineRequest): string[] {
  let bytes = 0;
  for (const part of request.body) bytes += part.length;
  const headers = [
    'content-type',
    'application/json',
    'content-length',
    String(bytes),
    'x-request-id',
    request.requestId,
  ];
  if (request.apiKey !== undefined) headers.push('authorization', `Bearer ${request.apiKey}`);
  return headers;
}

function joined(parts: Uint8Array[]): Uint8Array | Uint8Array[] {
  const [only] = parts;
  if (parts.length === 1 && only !== undefined) return only;
  let bytes = 0;
  for (const part of parts) bytes += part.length;
  return bytes <= JOIN_BYTES ? Buffer.concat(parts, bytes) : parts;
}

const LOST = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE', 'ECONNABORTED']);

/** Servers close idle sockets at a moment of their own; a request already on its way then dies unread. */
const metKeepAliveRace = (end: ExchangeEnd, withinMilliseconds: number): boolean =>
  end.kind === 'failed' &&
  end.phase === 'Sent' &&
  end.reused &&
  LOST.has(end.error.code ?? '') &&
  end.millisecondsSinceSent <= withinMilliseconds;

/** The address cannot be used at all, before anything was tried. */
const unusable = (address: string, error: unknown): EngineOutcome => ({
  kind: 'hold',
  scope: 'Replica',
  reason: 'ConnectionRefused',
  status: undefined,
  message:
    error instanceof AddressRefused
      ? error.message
      : `cannot use ${address}: ${error instanceof Error ? error.message : String(error)}`,
});

type Probe = Awaited<ReturnType<EngineClient['probe']>>;

/**
 * A replica is back when it answers and does not say that key or model are wrong. A server without a list of
 * models cannot say so: then the next line has to find out.
 */
function judgeProbe(end: ExchangeEnd, sent: Sent, model: string, now: number): Probe {
  if (end.kind !== 'response') return { ok: false, ...reasonOf(classify(end, sent, now)) };
  if (end.status === 401 || end.status === 403) return { ok: false, ...reasonOf(unauthorized(end, sent)) };
  if (end.status === 429 || end.status >= 500) {
    return {
      ok: false,
      reason: 'NotReady',
      message: `${sent.address} answered ${end.status} to GET ${sent.path}`,
    };
  }
  const models = end.status === 200 ? modelsIn(end.body) : undefined;
  if (models === undefined || models.includes(model)) return { ok: true };
  const served = models.slice(0, 10).join(', ') || 'none';
  return {
    ok: false,
    reason: 'ModelNotFound',
    message: shortMessage(`${sent.address} does not serve model ${model}; it serves ${served}`),
  };
}

function modelsIn(body: Uint8Array): string[] | undefined {
  try {
    const { data } = JSON.parse(Buffer.from(body).toString()) as { data?: unknown };
    if (!Array.isArray(data)) return undefined;
    return data.map((entry: unknown) => String((entry as { id?: unknown } | null)?.id));
  } catch {
    return undefined;
  }
}

function reasonOf(outcome: EngineOutcome): { reason: string; message: string } {
  if (outcome.kind === 'hold' || outcome.kind === 'fault') {
    return { reason: outcome.reason, message: outcome.message };
  }
  return { reason: 'Aborted', message: 'the question was given up' };
}
