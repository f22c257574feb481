/** Free ports on 127.0.0.1. */
import { createServer } from 'node:net';

/**
 * Ports are drawn from below the range the kernel gives to outgoing connections, so that a part that is killed
 * and restarted finds its port still free.
 */
const FIRST = 18_000;
const LAST = 31_999;

/** A port nothing listens on now, on `host`. Drawn at random, so that two processes asking at once rarely meet. */
export async function freePort(host = '127.0.0.1'): Promise<number> {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = FIRST + Math.floor(Math.random() * (LAST - FIRST + 1));
    if (await canListen(host, port)) return port;
  }
  throw new Error(`no free port found between ${FIRST} and ${LAST} on ${host}`);
}

function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve(true)));
  });
}
