/** The whole of Tidegate on real parts, for benchmarks: jobs are created as users do, and processes are looked at. */
import { PutObjectCommand } from '@aws-sdk/client-s3';
import { execFile } from 'node:child_process';
import { createReadStream, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { startChild, untilReady, type Child } from '../../stack/child.ts';
import { nodeBinary } from '../../stack/paths.ts';
import { freePort } from '../../stack/ports.ts';
import {
  BUCKET,
  CREDENTIALS_SECRET,
  s3ClientFor,
  startStack,
  type Stack,
  type StackOptions,
} from '../../stack/stack.ts';
import type { BareLoopResult } from './bare-loop.ts';
import { BENCH_MODEL } from './corpus.ts';

const NAMESPACE = 'default';
const GROUP = `/apis/tidegate.dev/v1alpha1/namespaces/${NAMESPACE}`;
const JOB_WITHIN_MILLISECONDS = 3_600_000;
const POLL_MILLISECONDS = 200;

export interface System {
  readonly stack: Stack;
  /** Scratch folder, removed by `stop`. */
  readonly dir: string;
  putInput(key: string, file: string): Promise<void>;
  createJob(name: string, key: string): Promise<void>;
  /** Calls back about five times a second until the job has ended; throws unless it has an answer to every line. */
  untilCompleted(name: string, lines: number, look?: () => Promise<void>): Promise<void>;
  /** Waits until the job is cleaned up and deletes it. */
  removeJob(name: string): Promise<void>;
  stop(): Promise<void>;
}

interface Job {
  metadata: { finalizers?: string[] };
  status?: { state?: string; message?: string; completionTime?: string; counts?: { completed: number } };
}

/** Starts everything, with a ModelDeployment over the engines that lets this many requests be in flight. */
export async function startSystem(options: Omit<StackOptions, 'dir'>, inFlight: number): Promise<System> {
  const dir = mkdtempSync(join(tmpdir(), 'tidegate-bench-'));
  const stack = await startStack({ dir, models: [BENCH_MODEL], engines: 1, workers: 1, ...options });
  const s3 = s3ClientFor(stack.s3);
  const { endpoint, region } = stack.s3;

  const ask = async (method: string, path: string, body?: object): Promise<unknown> => {
    const answer = await stack.kube.request(method, path, body);
    if (answer.status >= 300)
      throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  };
  const job = async (name: string): Promise<Job> =>
    (await ask('GET', `${GROUP}/inferencebatchjobs/${name}`)) as Job;

  try {
    await ask('POST', `${GROUP}/modeldeployments`, {
      ...{ apiVersion: 'tidegate.dev/v1alpha1', kind: 'ModelDeployment' },
      metadata: { name: 'model', namespace: NAMESPACE },
      spec: {
        model: BENCH_MODEL,
        target: { urls: stack.engineUrls },
        headroom: { maxAsyncInFlightPerReplica: inFlight },
      },
    });
  } catch (error) {
    await stack.stop();
    throw error;
  }

  return {
    stack,
    dir,
    putInput: async (Key, file) => {
      const ContentLength = statSync(file).size;
      await s3.send(
        new PutObjectCommand({ Bucket: BUCKET, Key, Body: createReadStream(file), ContentLength }),
      );
    },
    createJob: async (name, key) => {
      await ask('POST', `${GROUP}/inferencebatchjobs`, {
        ...{ apiVersion: 'tidegate.dev/v1alpha1', kind: 'InferenceBatchJob' },
        metadata: { name, namespace: NAMESPACE },
        spec: {
          modelRef: { name: 'model' },
          endpoint: '/v1/chat/completions',
          input: {
            s3: {
              ...{ bucket: BUCKET, keys: [key], region, endpoint, forcePathStyle: true },
              credentialsSecretRef: { name: CREDENTIALS_SECRET },
            },
          },
          output: { s3: { bucket: BUCKET, prefix: `out/${name}/` } },
        },
      });
    },
    untilCompleted: async (name, lines, look = async () => undefined) => {
      const deadline = performance.now() + JOB_WITHIN_MILLISECONDS;
      for (;;) {
        await look();
        const { status } = await job(name);
        if (status?.completionTime !== undefined) {
          if (status.state === 'Completed' && status.counts?.completed === lines) return;
          throw new Error(`job ${name} ended as ${JSON.stringify(status)}`);
        }
        if (performance.now() > deadline) throw new Error(`job ${name} does not end: ${status?.message}`);
        await delay(POLL_MILLISECONDS);
      }
    },
    removeJob: async (name) => {
      while (((await job(name)).metadata.finalizers ?? []).length > 0) await delay(POLL_MILLISECONDS);
      await ask('DELETE', `${GROUP}/inferencebatchjobs/${name}`);
    },
    stop: async () => {
      s3.destroy();
      await stack.stop();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

export interface BareEngine {
  url: string;
  stop(): Promise<void>;
}

export async function startBareEngine(
  dir: string,
  { delayMilliseconds, answerBytes }: { delayMilliseconds: number; answerBytes: number },
): Promise<BareEngine> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const child: Child = startChild({
    name: 'bare-engine',
    command: nodeBinary(),
    args: [
      join(import.meta.dirname, 'bare-engine.ts'),
      ...[port, delayMilliseconds, answerBytes].map(String),
    ],
    logFile: join(dir, 'bare-engine.log'),
  });
  await untilReady(child, async () => (await fetch(`${url}/v1/models`)).ok);
  return { url, stop: async () => void (await child.stop()) };
}

/** The baseline, in a process of its own. */
export async function bareLoop(
  url: string,
  file: string,
  { inFlight, requests }: { inFlight: number; requests: number },
): Promise<BareLoopResult> {
  const args = [join(import.meta.dirname, 'bare-loop.ts'), url, file, String(inFlight), String(requests)];
  const { stdout } = await promisify(execFile)(nodeBinary(), args);
  return JSON.parse(stdout) as BareLoopResult;
}
