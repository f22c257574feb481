/** A real S3 server (versitygw over a plain folder) on a free port. Objects can be looked at as files. */
import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild, startPart, untilReady, type Part } from './child.ts';
import { binary } from './paths.ts';
import { freePort } from './ports.ts';

export interface S3Options {
  /** Folder that holds one folder per bucket under `data/`; a new temporary one by default. */
  dir?: string;
  /** Address to listen on. */
  host?: string | undefined;
}

export interface S3 extends Part {
  readonly endpoint: string;
  readonly port: number;
  readonly region: string;
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  /** The objects of bucket `b` lie under `${dataDir}/b`. */
  readonly dataDir: string;
}

export async function startS3(options: S3Options = {}): Promise<S3> {
  const dir = options.dir ?? mkdtempSync(join(tmpdir(), 'tidegate-s3-'));
  const dataDir = join(dir, 'data');
  mkdirSync(dataDir, { recursive: true });
  const { host = '127.0.0.1' } = options;
  const port = await freePort(host);
  const endpoint = `http://${host}:${port}`;
  const credentials = { accessKeyId: 'tidegate-local', secretAccessKey: 'tidegate-local-secret' };
  const region = 'us-east-1';
  const part = await startPart(
    async () => {
      const child = startChild({
        name: 's3',
        command: binary('versitygw'),
        args: [...['--port', `${host}:${port}`, '--region', region, '--quiet'], ...['posix', dataDir]],
        env: { ROOT_ACCESS_KEY: credentials.accessKeyId, ROOT_SECRET_KEY: credentials.secretAccessKey },
        logFile: join(dir, 's3.log'),
      });
      // Any answer, a 403 for the unsigned request, means that it serves.
      await untilReady(child, async () => {
        const answer = await fetch(endpoint, { signal: AbortSignal.timeout(1_000) });
        await answer.arrayBuffer();
        return answer.status < 500;
      });
      return child;
    },
    { graceMilliseconds: 2_000 },
  );
  return Object.defineProperties(part, properties({ endpoint, port, region, ...credentials, dataDir })) as S3;
}

const properties = (values: Record<string, unknown>): PropertyDescriptorMap =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { value, enumerable: true }]));
