/** Tidegate's own roles, and the engine look-alike, as child processes of `node src/main.ts`. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { startChild, startPart, untilReady, type Child, type Part } from './child.ts';
import { nodeBinary, REPOSITORY } from './paths.ts';
import { freePort } from './ports.ts';

/** Changes of durations and sizes by room, as TIDEGATE_SETTINGS takes them. */
export type Settings = Record<string, Record<string, unknown>>;

/**
 * So that a minute shows what happens: a real installation writes progress every 5 s, and a Redis that is empty
 * grants its first places after a lease of 15 s, lest a worker from before the loss still holds some.
 */
export const TRIAL_SETTINGS: Settings = {
  operator: { job: { progressWriteMilliseconds: 1_000 } },
  queue: { leaseMilliseconds: 3_000, leaseMarginMilliseconds: 500, renewMilliseconds: 500 },
};

export interface TidegateOptions {
  role: 'operator' | 'worker';
  name: string;
  /** Logs go to `<dir>/<name>.log`, spilled data below `<dir>/spill`. */
  dir: string;
  kubeconfig: string;
  redisUrl: string;
  settings?: Settings | undefined;
  failPoints?: string | undefined;
  /** What only local trials need; true unless said. */
  allowLoopback?: boolean | undefined;
}

export interface TidegateProcess extends Part {
  readonly role: 'operator' | 'worker';
  /** `/livez`, `/readyz`, `/metrics`. */
  readonly httpUrl: string;
  /** Starts again with these fail points, or with none. */
  restart(options?: { failPoints?: string | undefined }): Promise<void>;
}

const MAIN = join(REPOSITORY, 'src', 'main.ts');

/** What a role must not take over from whoever started the stack. */
const NOT_INHERITED = {
  NODE_OPTIONS: undefined,
  AWS_ACCESS_KEY_ID: undefined,
  AWS_SECRET_ACCESS_KEY: undefined,
  AWS_SESSION_TOKEN: undefined,
  AWS_PROFILE: undefined,
  AWS_ENDPOINT_URL: undefined,
  AWS_REGION: undefined,
};

/** As config/ sets it for the Pods: on a large machine Node would let garbage pile up, and nothing measured here would hold there. */
const HEAP = {
  operator: '--max-old-space-size=256 --max-semi-space-size=8',
  worker: '--max-old-space-size=512 --max-semi-space-size=16',
} as const;

export async function startTidegate(options: TidegateOptions): Promise<TidegateProcess> {
  const { role, name, dir } = options;
  const port = await freePort();
  const httpUrl = `http://127.0.0.1:${port}`;
  const spill = join(dir, 'spill', name);
  mkdirSync(spill, { recursive: true });

  const start = async (failPoints: string | undefined): Promise<Child> => {
    const child = startChild({
      name,
      command: nodeBinary(),
      args: ['--disable-warning=ExperimentalWarning', MAIN, role],
      env: {
        ...NOT_INHERITED,
        NODE_OPTIONS: HEAP[role],
        KUBECONFIG: options.kubeconfig,
        REDIS_URL: options.redisUrl,
        TIDEGATE_HTTP_HOST: '127.0.0.1',
        TIDEGATE_HTTP_PORT: String(port),
        TIDEGATE_ALLOW_LOOPBACK: options.allowLoopback === false ? undefined : '1',
        TIDEGATE_SPILL_DIR: spill,
        TIDEGATE_SETTINGS: JSON.stringify(options.settings ?? {}),
        TIDEGATE_FAIL_POINTS: failPoints,
        POD_NAME: name,
        POD_NAMESPACE: 'tidegate-system',
      },
      cwd: REPOSITORY,
      logFile: join(dir, `${name}.log`),
    });
    // Alive, not ready: a standby, or a role whose Redis is down, must be startable too.
    await untilReady(child, async () => (await statusOf(`${httpUrl}/livez`)) === 200);
    return child;
  };

  let child = await start(options.failPoints);
  const stop = async (): Promise<void> => {
    await child.stop(10_000);
  };
  return {
    name,
    role,
    httpUrl,
    logFile: child.logFile,
    get pid() {
      return child.pid;
    },
    running: () => child.running(),
    kill: (signal) => child.kill(signal),
    restart: async ({ failPoints } = {}) => {
      await stop();
      child = await start(failPoints);
    },
    stop,
  };
}

export interface EngineOptions {
  name: string;
  dir: string;
  /** Names of the models that it serves. */
  models: readonly string[];
  /** Further arguments of `tidegate engine`. */
  args?: readonly string[] | undefined;
  /** Address to listen on. */
  host?: string | undefined;
}

export interface EngineProcess extends Part {
  readonly url: string;
  /** Where faults are switched on and off; reachable also while the engine refuses connections. */
  readonly controlUrl: string;
  /** The engine's own log of calls, over all restarts. */
  readonly callLog: string;
}

/** The vLLM look-alike, echoing. `kill` and `restart` keep its addresses and its log. */
export async function startEngine(options: EngineOptions): Promise<EngineProcess> {
  const { name, dir, models, args = [], host = '127.0.0.1' } = options;
  const [port, controlPort] = [await freePort(host), await freePort(host)];
  const url = `http://${host}:${port}`;
  const callLog = join(dir, `${name}.calls.jsonl`);
  const part = await startPart(
    async () => {
      const child = startChild({
        name,
        command: nodeBinary(),
        args: [
          ...['--disable-warning=ExperimentalWarning', MAIN, 'engine', '--echo'],
          ...['--host', host, '--port', String(port), '--control-port', String(controlPort)],
          ...['--call-log', callLog],
          ...models.flatMap((model) => ['--model', model]),
          ...args,
        ],
        env: NOT_INHERITED,
        cwd: REPOSITORY,
        logFile: join(dir, `${name}.log`),
      });
      await untilReady(child, async () => (await statusOf(`${url}/health`)) === 200);
      return child;
    },
    { graceMilliseconds: 2_000 },
  );
  return Object.defineProperties(part, {
    url: { value: url, enumerable: true },
    controlUrl: { value: `http://${host}:${controlPort}`, enumerable: true },
    callLog: { value: callLog, enumerable: true },
  }) as EngineProcess;
}

async function statusOf(url: string): Promise<number> {
  const answer = await fetch(url, { signal: AbortSignal.timeout(1_000) });
  await answer.arrayBuffer();
  return answer.status;
}
