import { beforeEach, describe, expect, test } from '@jest/globals';
import { KubeError } from '../kube/contract.ts';
import type { JobDescriptor } from '../queue/contract.ts';
import type { S3Connection } from '../storage/contract.ts';
import { Credentials } from './credentials.ts';
import type { ProblemError } from './problems.ts';

const SECRET = 'wJalr-known-secret';
const base64 = (text: string): string => Buffer.from(text).toString('base64');
const keys = (secret = SECRET): Record<string, string> => ({
  AWS_ACCESS_KEY_ID: base64('AKIA-known-id'),
  AWS_SECRET_ACCESS_KEY: base64(secret),
});

describe('credentials of a job', () => {
  /** By `namespace/name`; an Error is thrown, undefined does not exist. */
  let objects: Map<string, Record<string, string> | Error>;
  let reads: string[];
  let opened: S3Connection[];
  let now: number;
  let credentials: Credentials;
  let descriptor: JobDescriptor;

  beforeEach(() => {
    objects = new Map<string, Record<string, string> | Error>([
      ['claims/s3', keys()],
      ['serving/engine', { 'api-key': base64('engine-known-key\n') }],
    ]);
    [reads, opened, now] = [[], [], 0];
    credentials = new Credentials({
      kube: {
        get: (async (_: unknown, namespace: string, name: string) => {
          reads.push(`${namespace}/${name}`);
          const found = objects.get(`${namespace}/${name}`);
          if (found instanceof Error) throw found;
          return found === undefined ? undefined : { metadata: { name }, data: found };
        }) as never,
      },
      openStore: (connection) => {
        opened.push(connection);
        return { bucket: connection.bucket } as never;
      },
      checkEndpoint: () => undefined,
      clock: { now: () => now, monotonic: () => now },
      settings: { credentialsMaxAgeMilliseconds: 60_000, identityNamespaces: ['trusted'] },
    });
    const connection = { bucket: 'claims', credentialsSecretRef: { name: 's3' } };
    descriptor = {
      ...{ uid: 'uid-1', namespace: 'claims', run: 'Run' },
      input: { connection },
      output: { connection },
      authSecretRef: { namespace: 'serving', name: 'engine' },
    } as unknown as JobDescriptor;
  });

  const problem = async (): Promise<ProblemError> => {
    try {
      await credentials.open(descriptor);
    } catch (error) {
      return error as ProblemError;
    }
    throw new Error('nothing was refused');
  };
  const used = (): string | undefined => opened.at(-1)?.credentials?.secretAccessKey;

  test('a Secret is read once a minute, whatever number of calls need it', async () => {
    for (const at of [0, 30_000, 59_999]) {
      now = at;
      await credentials.open(descriptor);
    }
    expect(reads).toEqual(['claims/s3']);
    objects.set('claims/s3', keys('rotated'));
    now = 60_000;
    await credentials.open(descriptor);
    expect(used()).toBe('rotated');
  });

  test('a Secret is read again at once when the store refused what it said', async () => {
    await credentials.open(descriptor);
    objects.set('claims/s3', keys('rotated'));
    credentials.refused(descriptor);
    await credentials.open(descriptor);
    expect(used()).toBe('rotated');
  });

  test('an engine key is read again when the engine refused it, and the store is not asked for', async () => {
    await credentials.open(descriptor);
    expect(await credentials.engineKey(descriptor)).toBe('engine-known-key');
    objects.set('serving/engine', { 'api-key': base64('new-key') });
    expect(await credentials.engineKey(descriptor)).toBe('engine-known-key');
    credentials.engineKeyRefused(descriptor);
    expect(await credentials.engineKey(descriptor)).toBe('new-key');
    await credentials.open(descriptor);
    expect(reads.filter((read) => read === 'claims/s3')).toHaveLength(1);
  });

  test('a Secret that was deleted is a problem within a minute, and none when it is back', async () => {
    await credentials.open(descriptor);
    objects.delete('claims/s3');
    now = 60_000;
    expect(await problem()).toMatchObject({ reason: 'CredentialsNotFound', retryable: true });
    objects.set('claims/s3', keys());
    await credentials.open(descriptor);
    expect(used()).toBe(SECRET);
  });

  test('clean-up of a deleted job goes on with what its Secret said last', async () => {
    await credentials.open(descriptor);
    objects.delete('claims/s3');
    now = 60_000;
    descriptor = { ...descriptor, run: 'Gone' };
    await credentials.open(descriptor);
    expect(used()).toBe(SECRET);
  });

  const forbidden = new KubeError(403, 'Forbidden', 'forbidden');
  const bad: [string, Record<string, string> | Error | undefined, string, string][] = [
    ['without a binding', forbidden, 'SecretAccessMissing', 'kubectl create rolebinding'],
    ['missing', undefined, 'CredentialsNotFound', 'Secret claims/s3 does not exist'],
    ['empty', {}, 'CredentialsInvalid', 'has no key AWS_ACCESS_KEY_ID (it is empty)'],
    [
      'with one key only',
      { AWS_ACCESS_KEY_ID: base64('AKIA-known-id') },
      'CredentialsInvalid',
      'has no key AWS_SECRET_ACCESS_KEY (it has AWS_ACCESS_KEY_ID)',
    ],
    [
      'with an empty value',
      { ...keys(), AWS_SECRET_ACCESS_KEY: base64(' \n') },
      'CredentialsInvalid',
      'has no key AWS_SECRET_ACCESS_KEY',
    ],
    [
      'not readable now',
      new Error('connection refused'),
      'KubernetesUnavailable',
      'cannot read Secret claims/s3',
    ],
  ];
  test.each(bad)(
    'a Secret %s is named, with what to do, and never quoted',
    async (_, object, reason, message) => {
      if (object === undefined) objects.delete('claims/s3');
      else objects.set('claims/s3', object);
      const found = await problem();
      expect(found).toMatchObject({ reason, retryable: true });
      expect(found.message).toContain(message);
      for (const secret of ['AKIA-known-id', SECRET]) expect(found.message).not.toContain(secret);
    },
  );

  test.each([
    ['another namespace', 'claims', undefined, 'may not use the worker'],
    ['a custom endpoint', 'trusted', 'https://s3.example.com', 'never sent to a custom endpoint'],
  ])("the worker's own identity is not lent to %s", async (_, namespace, endpoint, message) => {
    const connection = { bucket: 'b', endpoint };
    descriptor = { ...descriptor, namespace, input: { connection }, output: { connection } } as never;
    expect((await problem()).message).toContain(message);
  });

  test("a namespace that is listed uses the worker's own identity", async () => {
    const connection = { bucket: 'b' };
    descriptor = {
      ...descriptor,
      namespace: 'trusted',
      input: { connection },
      output: { connection },
    } as never;
    await credentials.open(descriptor);
    expect(opened.at(-1)?.credentials).toBeUndefined();
  });
});
