/**
 * One connection to Redis that fails in bounded time. Commands are never kept for later: a command that was
 * not sent, or whose answer did not come, is an error of its caller at once, who knows whether to ask again.
 */
import { createHash } from 'node:crypto';
import { Redis, type RedisOptions } from 'ioredis';
import type { Clock, Logger } from '../observability/contract.ts';
import { QueueUnavailable, unavailability } from './errors.ts';
import type { QueueSettings } from './settings.ts';

export interface LinkOptions {
  redisUrl: string;
  /** Shown by CLIENT LIST. */
  connectionName: string;
  clock: Clock;
  logger: Logger;
  settings: QueueSettings;
}

/** A Lua script. `critical` ones also run when Redis is out of memory: they end work rather than start it. */
export interface Script {
  readonly name: string;
  readonly lua: string;
  readonly critical: boolean;
}

interface Server {
  /** Changes when the process behind the address does: restart, failover. */
  runId: string;
  /** Redis ≥ 7 understands script flags. */
  scriptFlags: boolean;
}

/** Repeated faults of one connection are logged at most this often. */
const LOG_EVERY_MILLISECONDS = 30_000;

const reconnectPause = (attempt: number): number =>
  Math.min(50 * 2 ** Math.min(attempt, 6), 1_000) * (0.75 + 0.5 * Math.random());

/** Options that every connection shares. */
export function baseOptions(options: LinkOptions) {
  return {
    connectionName: options.connectionName,
    connectTimeout: Math.max(1_000, options.settings.commandTimeoutMilliseconds),
    maxLoadingRetryTime: 500,
    keepAlive: 10_000,
    protocol: 2,
    retryStrategy: reconnectPause,
    // A replica that was demoted under us: connect again, to whoever is the primary now.
    reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
  } satisfies RedisOptions;
}

export class RedisLink {
  readonly client: Redis;
  readonly #options: LinkOptions;
  readonly #shas = new Map<string, { sha: string; source: string }>();
  readonly #onUp = new Set<() => void>();
  #server: Server | undefined;
  #waiting: (() => void)[] = [];
  #downSince: number;
  #lastAnswer: number | undefined;
  #lastFault: string | undefined;
  #closed = false;

  constructor(options: LinkOptions) {
    this.#options = options;
    this.#downSince = options.clock.monotonic();
    this.client = new Redis(options.redisUrl, {
      ...baseOptions(options),
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      maxRetriesPerRequest: 0,
      commandTimeout: options.settings.commandTimeoutMilliseconds,
      // An answer that never comes also means that the socket is dead, even if nobody closed it.
      socketTimeout: options.settings.commandTimeoutMilliseconds,
    });
    logFaults(this.client, options);
    this.client.on('error', (error: unknown) => (this.#lastFault = messageOf(error)));
    this.client.on('ready', () => void this.#greet());
    this.client.on('close', () => {
      if (this.#server !== undefined) this.#downSince = options.clock.monotonic();
      this.#server = undefined;
    });
  }

  /** Identity of the server process behind this connection; undefined while disconnected. */
  get runId(): string | undefined {
    return this.#server?.runId;
  }

  /** Called at each (re)connection. */
  onUp(listener: () => void): void {
    this.#onUp.add(listener);
  }

  /** True when Redis answered within the last few polls. Something must call regularly. */
  healthy(): boolean {
    const { clock, settings } = this.#options;
    if (this.#closed || this.#server === undefined || this.#lastAnswer === undefined) return false;
    const silence = clock.monotonic() - this.#lastAnswer;
    return silence < 3 * settings.pollMilliseconds + settings.commandTimeoutMilliseconds;
  }

  /**
   * Runs commands. Waits for a connection that is being made, but no longer than the command timeout after it was
   * lost, so that nobody hangs on a Redis that is down. Rejects with QueueUnavailable for every fault of Redis.
   */
  async call<T>(work: (client: Redis) => Promise<T>): Promise<T> {
    try {
      await this.#connected();
      const answer = await this.#bounded(work(this.client));
      this.#lastAnswer = this.#options.clock.monotonic();
      return answer;
    } catch (error) {
      throw this.#closed ? closed() : (unavailability(error) ?? error);
    }
  }

  async run(script: Script, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown> {
    return this.runOnServer(script, () => ({ keys, args }));
  }

  /**
   * Runs a script whose arguments depend on the server that will run it: `make` is called once connected, and what it
   * returns goes to that very server process or nowhere.
   */
  async runOnServer(
    script: Script,
    make: (runId: string) => { keys: readonly string[]; args: readonly (string | number)[] },
  ): Promise<unknown> {
    return this.call(async (client) => {
      const runId = this.runId;
      if (runId === undefined) throw unreachable(this.#lastFault);
      const { keys, args } = make(runId);
      const { sha, source } = this.#compiled(script);
      try {
        return await client.evalsha(sha, keys.length, ...keys, ...args);
      } catch (error) {
        if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error;
        if (this.runId !== runId) throw new QueueUnavailable('Unreachable', 'Redis was replaced meanwhile');
        return client.eval(source, keys.length, ...keys, ...args);
      }
    });
  }

  close(): void {
    this.#closed = true;
    this.#server = undefined;
    this.#release();
    this.client.disconnect();
  }

  #compiled(script: Script): { sha: string; source: string } {
    const flags = script.critical && this.#server?.scriptFlags === true;
    const key = `${script.name} ${flags}`;
    const known = this.#shas.get(key);
    if (known !== undefined) return known;
    const source = flags ? `#!lua flags=allow-oom\n${script.lua}` : script.lua;
    const compiled = { sha: createHash('sha1').update(source).digest('hex'), source };
    this.#shas.set(key, compiled);
    return compiled;
  }

  async #greet(): Promise<void> {
    try {
      const info = await this.client.info('server');
      const field = (name: string): string | undefined =>
        new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1];
      const major = Number.parseInt(field('redis_version') ?? '', 10);
      const runId = field('run_id');
      if (this.#closed || this.client.status !== 'ready') return;
      if (runId === undefined) throw new Error('INFO server names no run_id');
      this.#server = { runId, scriptFlags: major >= 7 };
      this.#lastAnswer = this.#options.clock.monotonic();
      this.#lastFault = undefined;
      this.#release();
      for (const listener of this.#onUp) listener();
    } catch (error) {
      this.#options.logger.warn('redis does not introduce itself', { error: messageOf(error) });
      // Without knowing the server nothing can be granted safely; a new connection asks again.
      this.client.disconnect(true);
    }
  }

  #release(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const wake of waiting) wake();
  }

  async #connected(): Promise<void> {
    if (this.#closed) throw closed();
    if (this.#server !== undefined) return;
    const { clock, settings } = this.#options;
    const patience = this.#downSince + settings.commandTimeoutMilliseconds - clock.monotonic();
    if (patience > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(patience, settings.commandTimeoutMilliseconds));
        this.#waiting.push(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
    if (this.#closed) throw closed();
    if (this.#server === undefined) throw unreachable(this.#lastFault);
  }

  #bounded<T>(work: Promise<T>): Promise<T> {
    const limit = this.#options.settings.commandTimeoutMilliseconds * 2;
    return new Promise<T>((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new QueueUnavailable('Timeout', `Redis did not answer within ${limit} ms`)),
        limit,
      );
      work.then(resolve, reject).finally(() => clearTimeout(timer));
    });
  }
}

/**
 * A connection that only listens. It joins its channels again by itself; what was said meanwhile is lost, which
 * is why everybody polls too.
 */
export class RedisListener {
  readonly #client: Redis;
  readonly #pinger: NodeJS.Timeout;

  constructor(options: LinkOptions, channel: string, listener: (message: string) => void) {
    const { settings } = options;
    this.#client = new Redis(options.redisUrl, {
      ...baseOptions(options),
      maxRetriesPerRequest: null,
      socketTimeout: settings.commandTimeoutMilliseconds,
    });
    logFaults(this.#client, options);
    this.#client.on('message', (_channel: string, message: string) => listener(message));
    this.#client.subscribe(channel).catch(() => undefined);
    this.#pinger = setInterval(() => {
      // Only a question shows that a silent socket is dead (the socket timeout starts with it).
      if (this.#client.status === 'ready') this.#client.ping().catch(() => undefined);
    }, settings.pollMilliseconds * 5);
    this.#pinger.unref();
  }

  close(): void {
    clearInterval(this.#pinger);
    this.#client.disconnect();
  }
}

/** Keeps a connection whose owner queues commands (BullMQ) from waiting on a dead socket for ever. */
export function reconnectWhenSilent(client: Redis, settings: QueueSettings): () => void {
  let asked = false;
  const timer = setInterval(() => {
    if (asked || client.status !== 'ready') return;
    asked = true;
    const limit = setTimeout(() => client.disconnect(true), settings.commandTimeoutMilliseconds);
    client
      .ping()
      .catch(() => undefined)
      .finally(() => {
        asked = false;
        clearTimeout(limit);
      });
  }, settings.pollMilliseconds);
  timer.unref();
  return () => clearInterval(timer);
}

/** Without a listener for it, an 'error' event would end the process. */
export function logFaults(client: Redis, options: LinkOptions): void {
  let loggedAt = -Infinity;
  client.on('error', (error: unknown) => {
    const now = options.clock.monotonic();
    if (now - loggedAt < LOG_EVERY_MILLISECONDS) return;
    loggedAt = now;
    options.logger.warn('redis connection fault', {
      connection: options.connectionName,
      error: messageOf(error),
    });
  });
  client.on('ready', () => (loggedAt = -Infinity));
}

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

const unreachable = (fault: string | undefined): QueueUnavailable =>
  new QueueUnavailable(
    'Unreachable',
    `Redis cannot be reached${fault === undefined ? '' : `: ${fault.slice(0, 120)}`}`,
  );

const closed = (): QueueUnavailable => new QueueUnavailable('Closed', 'this queue client is closed');
