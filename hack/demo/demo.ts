/**
 * `make demo`: from nothing to a finished job, with real Kubernetes, Redis and S3 on this machine. Builds what is
 * missing, starts everything, sends a job of a few thousand lines through, shows it, and stops everything.
 */
import { GetObjectCommand, PutObjectCommand, type S3Client } from '@aws-sdk/client-s3';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { buildParts } from '../build-parts.ts';
import { logTail } from '../stack/child.ts';
import { kubectl } from '../stack/kubectl.ts';
import { CACHE, REPOSITORY } from '../stack/paths.ts';
import {
  BUCKET,
  CREDENTIALS_SECRET,
  LOCAL_MODEL,
  s3ClientFor,
  startStack,
  type Stack,
} from '../stack/stack.ts';
import { TRIAL_SETTINGS } from '../stack/tidegate.ts';
import { demoInput } from './input.ts';
import { grouped, progressLine, Rate, stateLine, type ProgressView } from './progress.ts';

const DIR = join(CACHE, 'demo');
const NAMESPACE = 'demo';
const LINES = 3_000;
const GIVE_UP_MILLISECONDS = 180_000;

interface Job {
  status?: {
    state?: string;
    message?: string;
    completionTime?: string;
    counts?: { total: number; completed: number; failed: number; expired: number; cancelled: number };
    outputs?: { results?: string; errors?: string; manifest?: string };
  };
}

const interactive = process.stdout.isTTY && process.env['CI'] === undefined;
const heading = (text: string): void => console.log(interactive ? `\n\x1b[1m${text}\x1b[0m` : `\n${text}`);
const path = (absolute: string): string => absolute.replace(`${REPOSITORY}/`, '');

async function demo(): Promise<void> {
  await buildParts();

  heading('Starting the parts (logs in .cache/demo)');
  rmSync(DIR, { recursive: true, force: true });
  mkdirSync(DIR, { recursive: true });
  const stack = await startStack({
    dir: DIR,
    namespaces: [NAMESPACE],
    settings: TRIAL_SETTINGS,
    say: (line) => console.log(`  ${line}`),
  });
  const interrupt = (): void => {
    console.log('\nStopping everything');
    void stack.stop().finally(() => process.exit(130));
  };
  process.once('SIGINT', interrupt);
  process.once('SIGTERM', interrupt);
  try {
    await runJob(stack);
  } finally {
    await stack.stop();
    process.removeListener('SIGINT', interrupt);
    process.removeListener('SIGTERM', interrupt);
  }
  console.log('\nEverything is stopped. "make stack" starts the same parts and keeps them running.');
}

async function runJob(stack: Stack): Promise<void> {
  const s3 = s3ClientFor(stack.s3);
  try {
    heading(`Writing ${grouped(LINES)} requests to s3://${BUCKET}/in/claims.jsonl`);
    const input = demoInput(LINES, LOCAL_MODEL);
    await s3.send(new PutObjectCommand({ Bucket: BUCKET, Key: 'in/claims.jsonl', Body: input }));
    console.log(`  ${input.slice(0, input.indexOf('\n'))}`);

    const manifest = join(DIR, 'job.yaml');
    writeFileSync(manifest, manifests(stack));
    heading(`$ kubectl apply -f ${path(manifest)}`);
    process.stdout.write(await run(stack, 'apply', '-f', manifest));

    heading('$ kubectl get ibj claims --watch');
    const job = await follow(stack);

    heading('$ kubectl get inference');
    process.stdout.write(await run(stack, 'get', 'inference'));
    heading('$ kubectl describe ibj claims   (its events)');
    const described = await run(stack, 'describe', 'ibj', 'claims');
    console.log(described.slice(described.lastIndexOf('Events:')).trimEnd());

    await showFiles(stack, s3, job);
  } finally {
    s3.destroy();
  }
}

/** Shows progress until the job has ended. Throws when it does not end in time, or not as it should. */
async function follow(stack: Stack): Promise<Job> {
  const rate = new Rate(4_000);
  const started = performance.now();
  let lastLine = '';
  let drawn = false;
  for (;;) {
    const answer = await stack.kube.request(
      'GET',
      `/apis/tidegate.dev/v1alpha1/namespaces/${NAMESPACE}/inferencebatchjobs/claims`,
    );
    const job = answer.body as Job;
    const view = viewOf(job, rate);
    if (interactive) {
      const width = process.stdout.columns || 100;
      if (drawn) process.stdout.write('\x1b[2A');
      process.stdout.write(`\x1b[2K  ${progressLine(view, 30)}\n\x1b[2K  ${stateLine(view, width - 4)}\n`);
      drawn = true;
    } else {
      const line = `  ${progressLine(view, 30)}  ${stateLine(view, 100)}`;
      if (line !== lastLine) console.log(line);
      lastLine = line;
    }
    if (job.status?.completionTime !== undefined) {
      const seconds = (performance.now() - started) / 1000;
      const { counts } = job.status;
      if (job.status.state !== 'Completed' || counts === undefined) {
        throw new Error(`the job ended as ${job.status.state}: ${job.status.message}`);
      }
      console.log(
        `  ${grouped(counts.completed)} answers and ${grouped(counts.failed)} errors ` +
          `in ${seconds.toFixed(1)} s (${grouped(Math.round(counts.total / seconds))} lines/s)`,
      );
      return job;
    }
    if (performance.now() - started > GIVE_UP_MILLISECONDS) {
      const logs = stack.roles.map(({ name, logFile }) => `--- ${name}\n${logTail(logFile, 5)}`);
      throw new Error(`the job did not end within ${GIVE_UP_MILLISECONDS / 1000} s\n${logs.join('\n')}`);
    }
    await delay(interactive ? 100 : 500);
  }
}

function viewOf(job: Job, rate: Rate): ProgressView {
  const { counts, state = 'Pending', message = '' } = job.status ?? {};
  const total = counts?.total ?? 0;
  const completed = counts?.completed ?? 0;
  const failed = (counts?.failed ?? 0) + (counts?.expired ?? 0) + (counts?.cancelled ?? 0);
  const ended = completed + failed;
  const linesPerSecond = total > 0 && ended < total ? rate.add(performance.now(), ended) : undefined;
  const secondsLeft =
    linesPerSecond !== undefined && linesPerSecond > 0 ? (total - ended) / linesPerSecond : undefined;
  return { state, message, total, completed, failed, linesPerSecond, secondsLeft };
}

async function showFiles(stack: Stack, s3: S3Client, job: Job): Promise<void> {
  const { outputs = {} } = job.status ?? {};
  for (const [file, uri, lines] of [
    ['results.jsonl', outputs.results, 2],
    ['errors.jsonl', outputs.errors, 3],
  ] as const) {
    if (uri === undefined) continue;
    heading(`First records of ${file}`);
    const key = uri.replace(`s3://${BUCKET}/`, '');
    const answer = await s3.send(new GetObjectCommand({ Bucket: BUCKET, Key: key, Range: 'bytes=0-65535' }));
    const text = (await answer.Body?.transformToString()) ?? '';
    for (const line of text.split('\n').slice(0, lines)) if (line !== '') console.log(`  ${line}`);
  }
  heading('Where everything is');
  const folder = join(stack.s3.dataDir, BUCKET);
  for (const uri of [outputs.results, outputs.errors, outputs.manifest]) {
    if (uri !== undefined)
      console.log(`  ${uri}\n    ${path(join(folder, uri.replace(`s3://${BUCKET}/`, '')))}`);
  }
  console.log(`  the objects applied: ${path(join(DIR, 'job.yaml'))}`);
  console.log(`  logs of all parts:   ${path(DIR)}/*.log, ${path(DIR)}/*/*.log`);
}

/** As in manifests/, with the addresses of this stack. */
function manifests(stack: Stack): string {
  const { s3 } = stack;
  return `apiVersion: tidegate.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: llama-3-8b
  namespace: ${NAMESPACE}
spec:
  model: ${LOCAL_MODEL}
  aliases: [llama-8b]
  engine: vLLM
  target:
    urls: [${stack.engineUrls.join(', ')}]
  headroom:
    maxAsyncInFlightPerReplica: 32
---
apiVersion: tidegate.dev/v1alpha1
kind: InferenceBatchJob
metadata:
  name: claims
  namespace: ${NAMESPACE}
spec:
  modelRef: { name: llama-3-8b }
  endpoint: /v1/chat/completions
  input:
    s3:
      bucket: ${BUCKET}
      keys: [in/claims.jsonl]
      region: ${s3.region}
      endpoint: ${s3.endpoint}
      forcePathStyle: true
      credentialsSecretRef: { name: ${CREDENTIALS_SECRET} }
  output:
    s3: { bucket: ${BUCKET}, prefix: out/claims/ }
  priorityClassName: batch
`;
}

const run = (stack: Stack, ...args: string[]): Promise<string> =>
  kubectl(['--namespace', NAMESPACE, ...args], { kubeconfig: stack.kube.adminKubeconfig });

try {
  await demo();
} catch (error) {
  console.error(`\n${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
