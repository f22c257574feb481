/**
 * One test's world: a namespace of its own that has opted in, a prefix of the bucket, a ModelDeployment over the
 * engines, and the jobs in it. Scenarios run side by side on one stack.
 */
import { randomBytes } from 'node:crypto';
import { logTail } from '../../hack/stack/child.ts';
import type { FaultRule } from '../../hack/stack/engine-faults.ts';
import { kubectl } from '../../hack/stack/kubectl.ts';
import { check, type EngineCall, type Expectation, type JobFacts } from '../checker/check.ts';
import type { InputObject } from '../checker/input-lines.ts';
import { openBucket, type Bucket } from './bucket.ts';
import { engineCalls } from './engine-log.ts';
import { jsonl } from './input.ts';
import {
  API_VERSION,
  batchJob,
  hasEnded,
  modelDeployment,
  type JobOptions,
  type LiveJob,
  type Manifest,
} from './objects.ts';
import { testStack, type TestStack } from './run.ts';
import { until } from './until.ts';

const PLURALS: Record<string, string> = {
  InferenceBatchJob: 'inferencebatchjobs',
  ModelDeployment: 'modeldeployments',
};

export interface Scenario {
  readonly stack: TestStack;
  readonly namespace: string;
  readonly bucket: Bucket;
  /** Puts the lines under `<namespace>/<name>` and returns the key. */
  putInput(name: string, lines: readonly string[] | Buffer): Promise<string>;
  /** Creates the object; throws with the API server's words when it refuses. */
  create(manifest: Manifest): Promise<void>;
  createJob(options: Pick<JobOptions, 'keys' | 'spec'> & { name?: string }): Promise<string>;
  /** undefined when there is none. */
  job(name?: string): Promise<LiveJob | undefined>;
  patchJob(spec: Record<string, unknown>, name?: string): Promise<void>;
  deleteJob(name?: string): Promise<void>;
  /** Waits until the job looks like this. */
  untilJob(what: string, holds: (job: LiveJob) => boolean, withinSeconds?: number): Promise<LiveJob>;
  untilEnded(withinSeconds?: number): Promise<LiveJob>;
  untilGone(withinSeconds?: number): Promise<void>;
  kubectl(...args: string[]): Promise<string>;
  /** Faults that the engines show to this scenario's lines only; none switches them off. */
  engineFaults(...rules: FaultRule[]): Promise<void>;
  /** What the engines were asked for this scenario's lines. */
  calls(): EngineCall[];
  /** States of the processes and the ends of their logs, for messages of failed tests. */
  explain(): Promise<string>;
  /** Everything the checker looks at, as it is now. `job` as last seen, where it was deleted. */
  facts(job: LiveJob, input: readonly InputObject[]): Promise<JobFacts>;
  /** The violations of the invariant; the working objects get a while to be removed. */
  violations(
    job: LiveJob,
    inputKeys: readonly string[],
    expectation?: Partial<Expectation>,
  ): Promise<string[]>;
  /** Ends what still runs, without waiting for it. */
  close(): Promise<void>;
}

export interface ScenarioOptions {
  /** Spec fields of the ModelDeployment; `false`: create none. */
  deployment?: Record<string, unknown> | false;
  /** Replicas; all engines of the stack unless said. */
  engineUrls?: readonly string[];
}

export const JOB = 'job';

export async function openScenario(title: string, options: ScenarioOptions = {}): Promise<Scenario> {
  const stack = testStack();
  const { kube, description, control } = stack;
  const namespace = `${title}-${randomBytes(3).toString('hex')}`;
  await control.optIn(namespace);
  const bucket = openBucket(description);

  const collection = (kind: string): string => {
    const plural = PLURALS[kind];
    if (plural === undefined) throw new Error(`the scenario does not know the kind ${kind}`);
    return `/apis/${API_VERSION}/namespaces/${namespace}/${plural}`;
  };
  const jobPath = (name: string): string => `${collection('InferenceBatchJob')}/${name}`;
  const expectStatus = async (
    call: Promise<{ status: number; body: unknown }>,
    what: string,
  ): Promise<void> => {
    const answer = await call;
    if (answer.status < 300) return;
    const { message } = answer.body as { message?: string };
    throw new Error(`${what}: ${answer.status} ${message}`);
  };

  const explain = async (): Promise<string> => {
    const { parts } = await control.describe();
    const logs = parts
      .filter(({ name }) => /^(operator|worker|engine)/.test(name))
      .map((part) => `--- ${part.name} (${part.running ? 'running' : 'ended'})\n${logTail(part.logFile, 8)}`);
    return logs.join('\n');
  };

  const scenario: Scenario = {
    stack,
    namespace,
    bucket,
    putInput: async (name, lines) => {
      const key = `${namespace}/in/${name}`;
      await bucket.put(key, Buffer.isBuffer(lines) ? lines : jsonl(lines));
      return key;
    },
    create: async (manifest) =>
      expectStatus(
        kube('POST', collection(manifest.kind), manifest),
        `create ${manifest.kind} ${manifest.metadata.name}`,
      ),
    createJob: async ({ name = JOB, keys, spec = {} }) => {
      const outputPrefix = `${namespace}/out/${name}/`;
      await scenario.create(batchJob(description, { name, namespace, keys, outputPrefix, spec }));
      return name;
    },
    job: async (name = JOB) => {
      const answer = await kube('GET', jobPath(name));
      if (answer.status === 404) return undefined;
      if (answer.status !== 200) throw new Error(`GET ${jobPath(name)}: ${answer.status}`);
      return answer.body as LiveJob;
    },
    patchJob: async (spec, name = JOB) =>
      expectStatus(kube('PATCH', jobPath(name), { spec }, 'application/merge-patch+json'), `patch ${name}`),
    deleteJob: async (name = JOB) => expectStatus(kube('DELETE', jobPath(name)), `delete ${name}`),
    untilJob: async (what, holds, withinSeconds = 60) => {
      const job = await until(
        `job ${namespace}/${JOB} ${what}`,
        () => scenario.job(),
        (seen) => seen !== undefined && holds(seen),
        { withinSeconds, explain },
      );
      return job!;
    },
    untilEnded: (withinSeconds = 90) => scenario.untilJob('has ended', hasEnded, withinSeconds),
    untilGone: async (withinSeconds = 60) => {
      await until(
        `job ${namespace}/${JOB} is gone`,
        () => scenario.job(),
        (job) => job === undefined,
        {
          withinSeconds,
          explain,
        },
      );
    },
    kubectl: (...args) =>
      kubectl(['--namespace', namespace, ...args], { kubeconfig: description.kubeconfig }),
    engineFaults: (...rules) =>
      control.engineFaults(
        namespace,
        rules.map((rule) => ({ match: `marker:${namespace}_`, ...rule })),
      ),
    calls: () =>
      engineCalls(
        description.engines.map((engine) => engine.callLog),
        namespace,
      ),
    explain,
    facts: async (job, input) => {
      const { prefix } = job.spec.output.s3;
      const [results, errors, manifest, working, uploads] = await Promise.all([
        bucket.get(`${prefix}results.jsonl`),
        bucket.get(`${prefix}errors.jsonl`),
        bucket.get(`${prefix}manifest.json`),
        bucket.keys(`${prefix}_tidegate/`),
        bucket.openUploads(prefix),
      ]);
      const calls = scenario.calls();
      const leftovers = [...working, ...uploads.map((key) => `unfinished upload of ${key}`)];
      return { job, input, results, errors, manifest, calls, leftovers };
    },
    violations: async (job, inputKeys, expectation = {}) => {
      const input = await Promise.all(
        inputKeys.map(async (key) => ({ key, bytes: (await bucket.get(key)) ?? Buffer.alloc(0) })),
      );
      const { prefix } = job.spec.output.s3;
      await until(
        `working objects below ${prefix}_tidegate/ are removed`,
        () => bucket.keys(`${prefix}_tidegate/`),
        (keys) => keys.length === 0,
        { withinSeconds: 30, explain },
      ).catch(() => {
        // The checker names what is left.
      });
      return check(await scenario.facts(job, input), { ending: 'ended', repeatedCalls: 0, ...expectation });
    },
    close: async () => {
      await scenario.engineFaults();
      // A job that is still alive would compete with the next test's; the namespace goes with the stack.
      await kube('DELETE', collection('InferenceBatchJob'));
      bucket.close();
    },
  };

  if (options.deployment !== false) {
    await scenario.create(
      modelDeployment(namespace, options.engineUrls ?? description.engineUrls, options.deployment),
    );
  }
  return scenario;
}
