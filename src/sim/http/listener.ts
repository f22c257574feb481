import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A port that can be closed, dropping every connection, and opened again under the same number. */
export class Listener {
  readonly #server: Server;
  readonly #host: string;
  #port: number;
  #changing: Promise<void> = Promise.resolve();

  /** @param port 0 picks a free one at the first opening. */
  constructor(server: Server, host: string, port: number) {
    this.#server = server;
    this.#host = host;
    this.#port = port;
  }

  get port(): number {
    return this.#port;
  }

  get url(): string {
    return `http://${this.#host.includes(':') ? `[${this.#host}]` : this.#host}:${this.#port}`;
  }

  open(): Promise<void> {
    return this.#after(async () => {
      if (this.#server.listening) return;
      await new Promise<void>((resolve, reject) => {
        this.#server.once('error', reject);
        this.#server.listen(this.#port, this.#host, () => {
          this.#server.off('error', reject);
          resolve();
        });
      });
      this.#port = (this.#server.address() as AddressInfo).port;
    });
  }

  close(): Promise<void> {
    return this.#after(async () => {
      if (!this.#server.listening) return;
      await new Promise<void>((resolve) => {
        this.#server.close(() => resolve());
        this.#server.closeAllConnections();
      });
    });
  }

  /** Opening and closing take turns, in the order they were asked for. */
  #after(change: () => Promise<void>): Promise<void> {
    const changed = this.#changing.then(change);
    this.#changing = changed.catch(() => undefined);
    return changed;
  }
}
