/** A way to a real server that can be cut, blocked and made silent without the server's knowing. */
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

export class TcpProxy {
  readonly #server: Server;
  readonly #pairs = new Set<[Socket, Socket]>();
  /** What becomes of new connections. */
  mode: 'forward' | 'refuse' = 'forward';
  accepted = 0;

  private constructor(targetPort: number) {
    this.#server = createServer((near) => {
      if (this.mode === 'refuse') {
        near.resetAndDestroy();
        return;
      }
      this.accepted += 1;
      const far = connect(targetPort, '127.0.0.1');
      const pair: [Socket, Socket] = [near, far];
      this.#pairs.add(pair);
      near.pipe(far);
      far.pipe(near);
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        one.on('error', () => other.destroy());
        one.on('close', () => {
          other.destroy();
          this.#pairs.delete(pair);
        });
      }
    });
  }

  static async start(targetPort: number): Promise<TcpProxy> {
    const proxy = new TcpProxy(targetPort);
    await new Promise<void>((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get open(): number {
    return this.#pairs.size;
  }

  /** The connections there are stay open and carry nothing more, as when a router forgets them. */
  blackHole(): void {
    for (const [near, far] of this.#pairs) {
      near.unpipe(far);
      far.unpipe(near);
    }
  }

  cut(): void {
    for (const [near] of this.#pairs) near.resetAndDestroy();
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
