/**
 * All real parts and Tidegate together: Kubernetes under RBAC, Redis, S3 with a bucket, engines, operator and
 * workers. The same code serves the end-to-end tests, `make demo` and `make stack`.
 */
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Part } from './child.ts';
import { EngineFaults } from './engine-faults.ts';
import { installTidegate, optIn } from './install.ts';
import { startKube, type Kube } from './kube.ts';
import { startRedis, type Redis } from './redis.ts';
import { startS3, type S3 } from './s3.ts';
import {
  startEngine,
  startTidegate,
  type EngineProcess,
  type Settings,
  type TidegateProcess,
} from './tidegate.ts';

export interface StackOptions {
  /** Data and logs of everything. */
  dir: string;
  /** An engine of the user's own instead of look-alikes. */
  engineUrl?: string | undefined;
  /** Look-alikes to start, where `addresses` does not say it. */
  engines?: number | undefined;
  /**
   * Addresses of this machine that are no loopback, for S3 and one look-alike each. With them Tidegate runs as in a
   * cluster, without the flag that allows loopback.
   */
  addresses?: { s3: string; engines: readonly string[] } | undefined;
  /** Names of the models that the look-alikes serve. */
  models?: readonly string[] | undefined;
  engineArgs?: readonly string[] | undefined;
  operators?: number | undefined;
  workers?: number | undefined;
  settings?: Settings | undefined;
  /** Namespaces beside `default` that exist from the start and let workers read their Secrets. */
  namespaces?: readonly string[] | undefined;
  /** Called when a part is up. */
  say?: ((line: string) => void) | undefined;
}

/** The name of the bucket, and of the Secret with its credentials in each opted-in namespace. */
export const BUCKET = 'tidegate';
export const CREDENTIALS_SECRET = 's3-credentials';

/** What the look-alikes serve unless told otherwise. */
export const LOCAL_MODEL = 'meta-llama/Llama-3.1-8B-Instruct';

export interface Stack {
  readonly dir: string;
  readonly kube: Kube;
  readonly redis: Redis;
  readonly s3: S3;
  readonly engines: readonly EngineProcess[];
  readonly engineUrls: readonly string[];
  readonly engineFaults: EngineFaults;
  /** Operators and workers now; `addRole` and `removeRole` change it. */
  readonly roles: readonly TidegateProcess[];
  /** Everything that can be killed and restarted, by name. */
  part(name: string): Part | undefined;
  parts(): Part[];
  addRole(
    role: 'operator' | 'worker',
    options?: { failPoints?: string | undefined },
  ): Promise<TidegateProcess>;
  removeRole(name: string): Promise<void>;
  /** Creates the namespace if needed, with the credentials Secret and the RoleBinding for workers. */
  optIn(namespace: string): Promise<void>;
  stop(): Promise<void>;
}

/** Starts everything; what was already started is stopped when a later part fails. */
export async function startStack(options: StackOptions): Promise<Stack> {
  const { dir, addresses, say = () => {}, models = [LOCAL_MODEL] } = options;
  mkdirSync(dir, { recursive: true });
  const started: { stop(): Promise<void> }[] = [];
  const keep = <T extends { stop(): Promise<void> }>(part: T): T => {
    started.unshift(part);
    return part;
  };
  const stopAll = async (): Promise<void> => {
    // Roles first, so that they do not log about parts that are gone.
    for (const part of started.splice(0)) await part.stop();
  };

  try {
    const [redis, s3, kube] = await allStarted([
      startRedis({ dir: join(dir, 'redis'), appendOnly: true }).then(keep),
      startS3({ dir: join(dir, 's3'), host: addresses?.s3 }).then(keep),
      startKube({ dir: join(dir, 'kube'), controllerManager: true }).then(keep),
    ]);
    say(`Redis ${redis.url}, S3 ${s3.endpoint}, Kubernetes ${kube.url}`);

    await all([installTidegate(kube), createBucket(s3, BUCKET)]);
    const optInNamespace = (namespace: string): Promise<void> =>
      optIn(kube, namespace, { name: CREDENTIALS_SECRET, s3 });
    for (const namespace of ['default', ...(options.namespaces ?? [])]) await optInNamespace(namespace);
    say('Resource kinds, accounts and roles installed');

    const engines =
      options.engineUrl === undefined
        ? await allStarted(
            Array.from({ length: addresses?.engines.length ?? options.engines ?? 2 }, async (_, index) =>
              keep(
                await startEngine({
                  ...{ name: `engine-${index}`, dir, models },
                  args: options.engineArgs,
                  host: addresses?.engines[index],
                }),
              ),
            ),
          )
        : [];
    const engineUrls = options.engineUrl === undefined ? engines.map(({ url }) => url) : [options.engineUrl];
    say(`Engine${engineUrls.length > 1 ? 's' : ''} ${engineUrls.join(', ')}`);

    const kubeconfigs = {
      operator: await kube.kubeconfigFor({ namespace: 'tidegate-system', name: 'tidegate-operator' }),
      worker: await kube.kubeconfigFor({ namespace: 'tidegate-system', name: 'tidegate-worker' }),
    };
    const roles: TidegateProcess[] = [];
    const counts = { operator: 0, worker: 0 };
    const addRole: Stack['addRole'] = async (role, { failPoints } = {}) => {
      const name = `${role}-${counts[role]++}`;
      const process = keep(
        await startTidegate({
          ...{ role, name, dir, failPoints },
          kubeconfig: kubeconfigs[role],
          redisUrl: redis.url,
          settings: options.settings,
          allowLoopback: addresses === undefined,
        }),
      );
      roles.push(process);
      return process;
    };
    await allStarted([
      ...Array.from({ length: options.operators ?? 1 }, () => addRole('operator')),
      ...Array.from({ length: options.workers ?? 2 }, () => addRole('worker')),
    ]);
    say(`Tidegate: ${roles.map(({ name }) => name).join(', ')}`);

    const parts = (): Part[] => [
      kube.etcd,
      kube.apiserver,
      ...(kube.controllerManager ? [kube.controllerManager] : []),
      redis,
      s3,
      ...engines,
      ...roles,
    ];
    return {
      ...{ dir, kube, redis, s3, engines, engineUrls, roles, parts, addRole },
      engineFaults: new EngineFaults(engines),
      part: (name) => parts().find((part) => part.name === name),
      removeRole: async (name) => {
        const index = roles.findIndex((role) => role.name === name);
        const [role] = index === -1 ? [] : roles.splice(index, 1);
        await role?.stop();
      },
      optIn: optInNamespace,
      stop: stopAll,
    };
  } catch (error) {
    await stopAll();
    throw error;
  }
}

/** Like Promise.all, but fails only when all have settled: none may come up after the others were stopped. */
async function allStarted<T extends readonly Promise<unknown>[]>(
  starting: readonly [...T],
): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }> {
  await Promise.allSettled(starting);
  return Promise.all(starting);
}

/**
 * As Promise.all, but a failure waits for the others to settle: what they start must be known before it can be
 * stopped.
 */
async function all<T extends readonly unknown[]>(
  promises: T,
): Promise<{ -readonly [P in keyof T]: Awaited<T[P]> }> {
  await Promise.allSettled(promises);
  return Promise.all(promises);
}

/** Creates the bucket unless it exists. */
export async function createBucket(s3: S3, bucket: string): Promise<void> {
  const client = s3ClientFor(s3);
  try {
    await client.send(new CreateBucketCommand({ Bucket: bucket }));
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'BucketAlreadyOwnedByYou') throw error;
  } finally {
    client.destroy();
  }
}

/** A plain client of the SDK for the local store; the caller destroys it. */
export function s3ClientFor(
  s3: Pick<S3, 'endpoint' | 'region' | 'accessKeyId' | 'secretAccessKey'>,
): S3Client {
  return new S3Client({
    endpoint: s3.endpoint,
    region: s3.region,
    forcePathStyle: true,
    credentials: { accessKeyId: s3.accessKeyId, secretAccessKey: s3.secretAccessKey },
  });
}
