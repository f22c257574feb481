/**
 * The connections to one replica. Each is an undici Client with one request at a time, so that we know whether a
 * request travels on a fresh socket or on a kept one (only there the keep-alive race exists), and so that finding
 * a free one does not depend on how many there are. The most recently used goes first: the others grow cold and
 * close by themselves.
 */
import type { Socket } from 'node:net';
import { Client, type buildConnector } from 'undici';
import type { ExchangeEnd } from './exchange-end.ts';

export interface PoolSettings {
  /** Sockets, and therefore requests in flight, to one replica. */
  maxConnections: number;
  /** New sockets being opened at a time: a thousand at once would block the event loop for a second. */
  maxConnecting: number;
  /** Below the 5 s after which uvicorn closes an idle socket. */
  keepAliveMilliseconds: number;
}

/** What waiting for a connection leads to: one, or the end of the exchange before it began. */
export type Turn = Connection | ExchangeEnd;

const ABORTED: ExchangeEnd = { kind: 'aborted' };

export class Connection {
  readonly client: Client;
  /** A socket is open, as far as we know. */
  connected = false;
  /** Exchanges finished on the present socket; 0 = it is fresh. */
  answers = 0;
  /** Counts against maxConnecting. */
  connecting = false;
  #socket: Socket | undefined;

  constructor(
    origin: string,
    connector: buildConnector.connector,
    settings: PoolSettings,
    onSocket: (connection: Connection) => void,
  ) {
    this.client = new Client(origin, {
      pipelining: 1,
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: settings.keepAliveMilliseconds,
      keepAliveMaxTimeout: settings.keepAliveMilliseconds,
      connect: (options, callback) => {
        connector(options, (...result: buildConnector.CallbackArgs) => {
          this.connected = result[0] === null;
          this.answers = 0;
          this.#socket = result[1] ?? undefined;
          onSocket(this);
          callback(...result);
        });
      },
    });
    this.client.on('disconnect', () => {
      this.connected = false;
    });
  }

  /** Bytes the present socket has received so far. */
  get bytesRead(): number {
    return this.#socket?.bytesRead ?? 0;
  }
}

export class ReplicaPool {
  readonly #make: () => Connection;
  readonly #settings: PoolSettings;
  readonly #all = new Set<Connection>();
  readonly #busy = new Set<Connection>();
  readonly #warm: Connection[] = [];
  readonly #cold: Connection[] = [];
  readonly #waiting = new Set<(turn: Turn) => void>();
  #connecting = 0;
  #retired = false;

  constructor(origin: string, connector: buildConnector.connector, settings: PoolSettings) {
    this.#settings = settings;
    this.#make = () => new Connection(origin, connector, settings, (connection) => this.#settled(connection));
  }

  /** A connection for one exchange, now or when one is free. */
  acquire(signal: AbortSignal): Turn | Promise<Turn> {
    if (signal.aborted) return ABORTED;
    const connection = this.#take();
    if (connection !== undefined) return connection;
    return new Promise((resolve) => {
      const settle = (turn: Turn): void => {
        signal.removeEventListener('abort', giveUp);
        resolve(turn);
      };
      const giveUp = (): void => {
        this.#waiting.delete(settle);
        settle(ABORTED);
      };
      this.#waiting.add(settle);
      signal.addEventListener('abort', giveUp, { once: true });
    });
  }

  /** Gives it back. A connection whose exchange did not even start is broken: its socket may still be opening. */
  release(connection: Connection, broken: boolean): void {
    this.#busy.delete(connection);
    // An exchange that was refused before it began never asked for a socket.
    this.#settled(connection);
    if (broken || this.#retired) this.#drop(connection);
    else (connection.connected ? this.#warm : this.#cold).push(connection);
    this.#serveWaiting();
  }

  /**
   * No connection could be opened. Where none is open either, those that wait would only find out the same, a few at
   * a time: against an address that swallows packets that takes minutes.
   */
  connectFailed(end: ExchangeEnd): void {
    for (const connection of this.#all) if (connection.connected) return;
    this.#endWaiting(end);
  }

  /** Takes no new requests; those in flight finish. */
  retire(): void {
    this.#retired = true;
    for (const connection of this.#all) if (!this.#busy.has(connection)) this.#drop(connection);
    this.#endWaiting(ABORTED);
  }

  /** Closes every socket, those in use included. */
  async destroy(): Promise<void> {
    this.retire();
    await Promise.all([...this.#all].map((connection) => connection.client.destroy()));
    this.#all.clear();
  }

  #take(): Connection | undefined {
    if (this.#retired) return undefined;
    for (let connection = this.#warm.pop(); connection !== undefined; connection = this.#warm.pop()) {
      if (connection.connected) return this.#use(connection);
      this.#cold.push(connection);
    }
    if (this.#connecting >= this.#settings.maxConnecting) return undefined;
    const cold = this.#cold.pop();
    if (cold !== undefined) return this.#use(cold);
    if (this.#all.size >= this.#settings.maxConnections) return undefined;
    const made = this.#make();
    this.#all.add(made);
    return this.#use(made);
  }

  #use(connection: Connection): Connection {
    this.#busy.add(connection);
    if (!connection.connected) {
      connection.connecting = true;
      this.#connecting++;
    }
    return connection;
  }

  /** Its socket opened or failed: another may open one. */
  #settled(connection: Connection): void {
    if (!connection.connecting) return;
    connection.connecting = false;
    this.#connecting--;
    // After a failure whoever had it says first what became of it: see connectFailed.
    if (connection.connected) this.#serveWaiting();
  }

  #drop(connection: Connection): void {
    this.#all.delete(connection);
    connection.client.destroy().catch(() => undefined);
    this.#settled(connection);
  }

  #endWaiting(end: ExchangeEnd): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const settle of waiting) settle(end);
  }

  #serveWaiting(): void {
    for (const settle of this.#waiting) {
      const connection = this.#take();
      if (connection === undefined) return;
      this.#waiting.delete(settle);
      settle(connection);
    }
  }
}
