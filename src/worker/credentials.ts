/**
 * Opens a job's input and output with the credentials its namespace lends. Secrets are read one by one (`get` is all
 * a worker may do), kept for a minute, and read again when the store or the engine refuses them.
 */
import type { KubeClient, KubeObject, Resource } from '../kube/contract.ts';
import { KubeError } from '../kube/contract.ts';
import type { Clock } from '../observability/contract.ts';
import type { ConnectionRef, JobDescriptor } from '../queue/contract.ts';
import type { ObjectStore, S3Connection } from '../storage/contract.ts';
import { ProblemError } from './problems.ts';

/** A Secret or ConfigMap. */
interface WithData extends KubeObject {
  data?: Record<string, string>;
}

/** How many Secrets and ConfigMaps are remembered for clean-ups. */
const LAST_KNOWN_LIMIT = 1_000;

const SECRETS: Resource<WithData> = {
  group: '',
  version: 'v1',
  plural: 'secrets',
  kind: 'Secret',
  namespaced: true,
};
const CONFIG_MAPS: Resource<WithData> = {
  group: '',
  version: 'v1',
  plural: 'configmaps',
  kind: 'ConfigMap',
  namespaced: true,
};

export interface CredentialsDependencies {
  kube: Pick<KubeClient, 'get'>;
  openStore: (connection: S3Connection) => ObjectStore;
  /** Throws a ProblemError for an endpoint this worker must not talk to. */
  checkEndpoint: (endpoint: string) => void;
  clock: Clock;
  settings: { credentialsMaxAgeMilliseconds: number; identityNamespaces: readonly string[] };
}

export interface JobStores {
  input: ObjectStore;
  output: ObjectStore;
}

export class Credentials {
  readonly #deps: CredentialsDependencies;
  readonly #cache = new Map<string, { readAt: number; value: Promise<WithData> }>();
  /** What was read last, for the clean-up after a deletion that took the Secret along. */
  readonly #lastKnown = new Map<string, WithData>();

  constructor(deps: CredentialsDependencies) {
    this.#deps = deps;
  }

  /** Throws ProblemError: CredentialsNotFound, CredentialsInvalid, SecretAccessMissing, AddressRefused. */
  async open(descriptor: JobDescriptor): Promise<JobStores> {
    const { input, output } = descriptor;
    return {
      input: this.#deps.openStore(await this.#connection(descriptor, input.connection)),
      output: this.#deps.openStore(await this.#connection(descriptor, output.connection)),
    };
  }

  /** The engine's key, or undefined where the deployment names none. */
  async engineKey(descriptor: JobDescriptor): Promise<string | undefined> {
    const reference = descriptor.authSecretRef;
    if (reference === undefined) return undefined;
    const secret = await this.#read(SECRETS, reference.namespace, reference.name);
    return required(decode(secret.data), 'api-key', reference);
  }

  /** The engine refused its key: the Secret is read again, and nothing else. */
  engineKeyRefused({ authSecretRef }: JobDescriptor): void {
    if (authSecretRef !== undefined)
      this.#cache.delete(`${SECRETS.plural} ${authSecretRef.namespace}/${authSecretRef.name}`);
  }

  /** Forgets what was read for this job: the store or the engine refused it. */
  refused(descriptor: JobDescriptor): void {
    const namespaces = [descriptor.namespace, descriptor.authSecretRef?.namespace];
    for (const key of [...this.#cache.keys()]) {
      if (namespaces.some((namespace) => namespace !== undefined && key.includes(` ${namespace}/`)))
        this.#cache.delete(key);
    }
  }

  async #connection(descriptor: JobDescriptor, reference: ConnectionRef): Promise<S3Connection> {
    const { bucket, region, endpoint, forcePathStyle } = reference;
    if (endpoint !== undefined) this.#deps.checkEndpoint(endpoint);
    return {
      bucket,
      region,
      endpoint,
      forcePathStyle,
      credentials: await this.#credentials(descriptor, reference),
      caBundle: await this.#caBundle(descriptor, reference.caBundleRef),
    };
  }

  async #credentials(
    descriptor: JobDescriptor,
    reference: ConnectionRef,
  ): Promise<S3Connection['credentials']> {
    const { namespace } = descriptor;
    if (reference.credentialsSecretRef === undefined) {
      this.#requireIdentityAllowed(namespace, reference.endpoint);
      return undefined;
    }
    const name = reference.credentialsSecretRef.name;
    const values = decode((await this.#read(SECRETS, namespace, name, isGone(descriptor))).data);
    return {
      accessKeyId: required(values, 'AWS_ACCESS_KEY_ID', { namespace, name }),
      secretAccessKey: required(values, 'AWS_SECRET_ACCESS_KEY', { namespace, name }),
      sessionToken: values.get('AWS_SESSION_TOKEN'),
    };
  }

  #requireIdentityAllowed(namespace: string, endpoint: string | undefined): void {
    if (endpoint !== undefined) {
      throw new ProblemError(
        'CredentialsInvalid',
        `s3.endpoint ${endpoint} is set without credentialsSecretRef: the worker's own identity is never sent to a custom endpoint; name a Secret`,
        true,
      );
    }
    if (this.#deps.settings.identityNamespaces.includes(namespace)) return;
    throw new ProblemError(
      'CredentialsInvalid',
      `s3.credentialsSecretRef is missing and namespace ${namespace} may not use the worker's own identity; name a Secret, or add the namespace to the worker's --identity-namespaces`,
      true,
    );
  }

  async #caBundle(
    descriptor: JobDescriptor,
    reference: ConnectionRef['caBundleRef'],
  ): Promise<string | undefined> {
    if (reference === undefined) return undefined;
    const { namespace } = descriptor;
    const map = await this.#read(CONFIG_MAPS, namespace, reference.name, isGone(descriptor));
    const pem = map.data?.[reference.key];
    if (pem !== undefined && pem.includes('BEGIN CERTIFICATE')) return pem;
    throw new ProblemError(
      'CredentialsInvalid',
      `ConfigMap ${namespace}/${reference.name} has no PEM certificate under key ${reference.key}`,
      true,
    );
  }

  /** @param orLastKnown the object may be gone already, and what it said last is better than nothing */
  async #read(
    resource: Resource<WithData>,
    namespace: string,
    name: string,
    orLastKnown = false,
  ): Promise<WithData> {
    const key = `${resource.plural} ${namespace}/${name}`;
    const now = this.#deps.clock.monotonic();
    const cached = this.#cache.get(key);
    if (cached !== undefined && now - cached.readAt < this.#deps.settings.credentialsMaxAgeMilliseconds) {
      return cached.value;
    }
    this.#forgetOld(now);
    const value = this.#fetch(resource, namespace, name);
    this.#cache.set(key, { readAt: now, value });
    try {
      this.#remember(key, await value);
    } catch (error) {
      // A failed read is not kept: the next caller asks again.
      if (this.#cache.get(key)?.value === value) this.#cache.delete(key);
      const lastKnown = orLastKnown ? this.#lastKnown.get(key) : undefined;
      if (lastKnown !== undefined) return lastKnown;
      throw error;
    }
    return value;
  }

  /** Secrets of jobs that are over do not stay in memory for ever. */
  #forgetOld(now: number): void {
    for (const [key, { readAt }] of this.#cache) {
      if (now - readAt >= this.#deps.settings.credentialsMaxAgeMilliseconds) this.#cache.delete(key);
    }
  }

  #remember(key: string, value: WithData): void {
    this.#lastKnown.delete(key);
    this.#lastKnown.set(key, value);
    const oldest = this.#lastKnown.keys().next().value;
    if (this.#lastKnown.size > LAST_KNOWN_LIMIT && oldest !== undefined) this.#lastKnown.delete(oldest);
  }

  async #fetch(resource: Resource<WithData>, namespace: string, name: string): Promise<WithData> {
    const what = `${resource.kind} ${namespace}/${name}`;
    let object: WithData | undefined;
    try {
      object = await this.#deps.kube.get(resource, namespace, name);
    } catch (error) {
      if (error instanceof KubeError && error.status === 403) {
        throw new ProblemError(
          'SecretAccessMissing',
          `workers may not read ${what}; allow it with: kubectl create rolebinding tidegate-worker -n ${namespace} ` +
            `--clusterrole=tidegate-secret-reader --serviceaccount=tidegate-system:tidegate-worker`,
          true,
          { cause: error },
        );
      }
      throw new ProblemError(
        'KubernetesUnavailable',
        `cannot read ${what}: ${(error as Error).message}`,
        true,
        { cause: error },
      );
    }
    if (object === undefined) throw new ProblemError('CredentialsNotFound', `${what} does not exist`, true);
    return object;
  }
}

/** A deleted namespace takes the job's Secret along before the job's own objects are removed. */
const isGone = (descriptor: JobDescriptor): boolean => descriptor.run === 'Gone';

function decode(data: Record<string, string> | undefined): Map<string, string> {
  return new Map(
    Object.entries(data ?? {}).map(([key, value]) => [
      key,
      Buffer.from(value, 'base64').toString('utf8').trim(),
    ]),
  );
}

function required(
  values: ReadonlyMap<string, string>,
  key: string,
  secret: { namespace: string; name: string },
): string {
  const value = values.get(key);
  if (value !== undefined && value !== '') return value;
  const found = values.size === 0 ? 'it is empty' : `it has ${[...values.keys()].sort().join(', ')}`;
  throw new ProblemError(
    'CredentialsInvalid',
    `Secret ${secret.namespace}/${secret.name} has no key ${key} (${found})`,
    true,
  );
}
