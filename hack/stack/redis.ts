/** A real redis-server on a free port. */
import { mkdirSync, mkdtempSync } from 'node:fs';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild, startPart, untilReady, type Part } from './child.ts';
import { freePort } from './ports.ts';

export interface RedisOptions {
  /** Working directory; a new temporary one by default. */
  dir?: string;
  /** Append-only file, flushed to disk before each answer, so that a restart finds everything. Off: a restart is empty. */
  appendOnly?: boolean;
  /** Further arguments of redis-server, such as `['--maxmemory', '32mb']`. */
  args?: readonly string[];
}

export interface Redis extends Part {
  readonly url: string;
  readonly port: number;
}

export async function startRedis(options: RedisOptions = {}): Promise<Redis> {
  const dir = options.dir ?? mkdtempSync(join(tmpdir(), 'tidegate-redis-'));
  mkdirSync(dir, { recursive: true });
  const port = await freePort();
  const persistence =
    options.appendOnly === true ? ['--appendonly', 'yes', '--appendfsync', 'always'] : ['--appendonly', 'no'];
  const part = await startPart(
    async () => {
      const child = startChild({
        name: 'redis',
        command: 'redis-server',
        args: [
          ...['--bind', '127.0.0.1', '--port', String(port), '--dir', dir, '--save', ''],
          ...['--maxmemory-policy', 'noeviction'],
          ...persistence,
          ...(options.args ?? []),
        ],
        logFile: join(dir, 'redis.log'),
      });
      await untilReady(child, async () => (await inlineCommand(port, 'PING')).startsWith('+PONG'));
      return child;
    },
    { graceMilliseconds: 2_000 },
  );
  return Object.defineProperties(part, {
    url: { value: `redis://127.0.0.1:${port}`, enumerable: true },
    port: { value: port, enumerable: true },
  }) as Redis;
}

/** One command in Redis's inline form, for readiness only; the answer's first bytes. */
function inlineCommand(port: number, command: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ host: '127.0.0.1', port }, () => socket.write(`${command}\r\n`));
    socket.setTimeout(1_000, () => socket.destroy(new Error('no answer within 1 s')));
    socket.once('data', (data) => {
      resolve(data.toString('latin1'));
      socket.destroy();
    });
    socket.once('error', reject);
  });
}
