/** What every object store must do for Tidegate, asked of a real S3 server. */
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { startS3, type S3 } from '../../hack/stack/s3.ts';
import { silentLogger } from '../observability/logger.ts';
import { StoreError, type ObjectInfo, type ObjectStore, type S3Connection } from './contract.ts';
import { StoreProvider } from './provider.ts';

const MiB = 1024 * 1024;
const bucket = 'conformance';

let s3: S3;
let provider: StoreProvider;
let store: ObjectStore;

const connection = (overrides: Partial<S3Connection> = {}): S3Connection => ({
  bucket,
  endpoint: s3.endpoint,
  region: s3.region,
  credentials: { accessKeyId: s3.accessKeyId, secretAccessKey: s3.secretAccessKey },
  ...overrides,
});

beforeAll(async () => {
  s3 = await startS3();
  const { endpoint, region, accessKeyId, secretAccessKey } = s3;
  const client = new S3Client({
    ...{ endpoint, region, credentials: { accessKeyId, secretAccessKey }, forcePathStyle: true },
  });
  await client.send(new CreateBucketCommand({ Bucket: bucket }));
  client.destroy();
  provider = new StoreProvider({
    logger: silentLogger,
    settings: { allowLoopback: true, initialBackoffMilliseconds: 1, maxBackoffMilliseconds: 5 },
  });
  store = provider.open(connection());
}, 60_000);

afterAll(async () => {
  provider.close();
  await s3.stop();
});

describe('objects', () => {
  test('keep bytes, ETag, size, content type and metadata', async () => {
    const key = freshKey();
    const bytes = randomBytes(3000);
    const { etag } = await store.put(key, bytes, {
      metadata: { 'tidegate-job-uid': 'u-1', 'tidegate-counts': '{"completed":1}' },
      contentType: 'application/jsonl',
    });
    const info = await store.head(key);
    expect(info).toEqual({
      ...{ key, etag, bytes: 3000 },
      metadata: { 'tidegate-job-uid': 'u-1', 'tidegate-counts': '{"completed":1}' },
    });
    expect(await store.getBytes(key)).toEqual({ info, bytes });
  });

  test.each([
    ['empty', 0],
    ['one byte', 1],
    ['a little over a socket buffer', 64 * 1024 + 1],
    ['several MiB', 7 * MiB + 13],
  ])('are read back whole: %s', async (_name, size) => {
    const key = freshKey();
    const bytes = randomBytes(size);
    await store.put(key, bytes);
    const read = await store.getBytes(key);
    expect(read.info.bytes).toBe(size);
    expect(sha(read.bytes)).toBe(sha(bytes));
  });

  test.each([
    'plain.jsonl',
    'with space and + plus & amp',
    'percent%20encoded?query#hash',
    'naïve/日本語/🚀.jsonl',
    'quotes\'"and<angle>',
    '00000001',
  ])('may have the key %s, also as the source of a copy', async (name) => {
    const key = `${randomUUID()}/${name}`;
    const bytes = randomBytes(5 * MiB);
    const { etag } = await store.put(key, bytes);
    const upload = await store.createMultipart(`${key}-copy`);
    await upload.copyPart(1, key, { start: 0, end: bytes.length }, etag);
    await upload.complete();
    expect(sha((await store.getBytes(`${key}-copy`)).bytes)).toBe(sha(bytes));
    expect(await keysOf(store.list(key))).toEqual([key, `${key}-copy`]);
  });

  test('are gone after a delete, and deleting again is no error', async () => {
    const key = freshKey();
    await store.put(key, Buffer.from('x'));
    await store.delete(key);
    await store.delete(key);
    expect(await codeOf(store.head(key))).toBe('NoSuchKey');
  });

  test('are deleted in one go beyond the limit of one request, absent ones among them', async () => {
    const prefix = `${randomUUID()}/`;
    const keys = Array.from({ length: 1005 }, (_, n) => `${prefix}${String(n).padStart(5, '0')}`);
    await inBatches(keys, (key) => store.put(key, Buffer.from(key)));
    await store.deleteMany([...keys, `${prefix}never-there`]);
    expect(await keysOf(store.list(prefix))).toEqual([]);
    await store.deleteMany([]);
  }, 30_000);
});

describe('ranges', () => {
  const bytes = randomBytes(300_000);
  let key: string;
  let etag: string;
  beforeAll(async () => {
    key = freshKey();
    ({ etag } = await store.put(key, bytes));
  });

  test.each([
    ['the first byte', 0, 1],
    ['the middle', 1234, 200_000],
    ['the last byte', 299_999, 300_000],
    ['all', 0, 300_000],
    ['past the end, clipped', 299_000, 999_999],
    ['nothing', 77, 77],
    ['nothing, at the end', 300_000, 300_000],
  ])('give exactly %s, and the size of the whole object', async (_name, start, end) => {
    const read = await store.getBytes(key, { range: { start, end }, ifMatch: etag });
    expect(read.info).toMatchObject({ etag, bytes: 300_000 });
    expect(read.bytes.equals(bytes.subarray(start, end))).toBe(true);
  });

  test('that start past the end are refused', async () => {
    expect(await codeOf(store.get(key, { range: { start: 300_000, end: 300_001 } }))).toBe('InvalidRequest');
  });

  test.each([
    ['a range', { start: 0, end: 10 }],
    ['an empty range', { start: 0, end: 0 }],
  ])('are refused for %s when the object is another one than expected', async (_name, range) => {
    const other = freshKey();
    const before = await store.put(other, Buffer.from('before, this object'));
    await store.put(other, Buffer.from('after'));
    expect(await codeOf(store.get(other, { range, ifMatch: before.etag }))).toBe('PreconditionFailed');
  });
});

describe('conditional writes', () => {
  test('let exactly one of 20 concurrent creators win', async () => {
    const key = freshKey();
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        codeOf(store.put(key, Buffer.from(`creator ${n}`), { ifNoneMatch: true })),
      ),
    );
    expect(outcomes.filter((each) => each === undefined)).toHaveLength(1);
    expect(new Set(outcomes)).toEqual(new Set([undefined, 'PreconditionFailed']));
    const winner = outcomes.indexOf(undefined);
    expect((await store.getBytes(key)).bytes.toString()).toBe(`creator ${winner}`);
  });

  test('replace only the version they name', async () => {
    const key = freshKey();
    const first = await store.put(key, Buffer.from('1'));
    const second = await store.put(key, Buffer.from('2'), { ifMatch: first.etag });
    expect(second.etag).not.toBe(first.etag);
    expect(await codeOf(store.put(key, Buffer.from('3'), { ifMatch: first.etag }))).toBe(
      'PreconditionFailed',
    );
    expect((await store.getBytes(key)).bytes.toString()).toBe('2');
  });

  test('are recognised as honoured, and the probe leaves nothing behind', async () => {
    const prefix = `${randomUUID()}/`;
    expect(await store.honoursConditions(prefix)).toEqual({ put: true, complete: true });
    expect(await store.honoursConditions(`${prefix}again/`)).toEqual({ put: true, complete: true });
    expect(await keysOf(store.list(prefix))).toEqual([]);
    expect(await store.listUploads(prefix)).toEqual([]);
  });
});

describe('multipart uploads', () => {
  test('join copied and uploaded parts in the order of their numbers, with metadata, at once', async () => {
    const source = freshKey();
    const head = randomBytes(11 * MiB);
    const { etag } = await store.put(source, head);
    const key = freshKey();
    const upload = await store.createMultipart(key, { metadata: { 'tidegate-shards': '7' } });
    const tail = randomBytes(5 * MiB + 1);
    await upload.uploadPart(4, Buffer.from('the end'));
    await upload.uploadPart(3, tail);
    await upload.copyPart(1, source, { start: 0, end: 5 * MiB }, etag);
    await upload.copyPart(2, source, { start: 5 * MiB, end: 11 * MiB }, etag);
    expect(await codeOf(store.head(key))).toBe('NoSuchKey');
    const done = await upload.complete();
    const whole = Buffer.concat([head, tail, Buffer.from('the end')]);
    const info = await store.head(key);
    expect(info).toMatchObject({ etag: done.etag, bytes: whole.length });
    expect(info.metadata).toMatchObject({ 'tidegate-shards': '7' });
    expect(sha((await store.getBytes(key)).bytes)).toBe(sha(whole));
  });

  test('may copy the object they replace', async () => {
    const key = freshKey();
    const old = randomBytes(6 * MiB);
    const { etag } = await store.put(key, old);
    const upload = await store.createMultipart(key);
    await upload.copyPart(1, key, { start: 0, end: old.length }, etag);
    await upload.uploadPart(2, Buffer.from('more'));
    await upload.complete({ ifMatch: etag });
    const read = await store.getBytes(key);
    expect(sha(read.bytes)).toBe(sha(Buffer.concat([old, Buffer.from('more')])));
  });

  test('refuse to copy from a source that changed', async () => {
    const source = freshKey();
    const before = await store.put(source, Buffer.from('before'));
    await store.put(source, Buffer.from('after'));
    const upload = await store.createMultipart(freshKey());
    const copied = upload.copyPart(1, source, { start: 0, end: 5 }, before.etag);
    expect(await codeOf(copied)).toBe('PreconditionFailed');
    await upload.abort();
  });

  test.each([
    ['the version it names is gone', { ifMatch: '"00000000000000000000000000000000"' }],
    ['an object exists', { ifNoneMatch: true }],
  ])('are not completed when %s', async (_name, condition) => {
    const key = freshKey();
    await store.put(key, Buffer.from('here first'));
    const upload = await store.createMultipart(key);
    await upload.uploadPart(1, Buffer.from('late'));
    expect(await codeOf(upload.complete(condition))).toBe('PreconditionFailed');
    expect((await store.getBytes(key)).bytes.toString()).toBe('here first');
    await upload.abort();
  });

  test('cannot be completed after another one aborted them', async () => {
    const key = freshKey();
    const upload = await store.createMultipart(key);
    await upload.uploadPart(1, Buffer.from('late'));
    await store.abortUpload(key, upload.uploadId);
    expect(await codeOf(upload.complete())).toBe('NoSuchUpload');
    expect(await codeOf(upload.uploadPart(2, Buffer.from('later')))).toBe('NoSuchUpload');
    await upload.abort();
    expect(await codeOf(store.head(key))).toBe('NoSuchKey');
  });

  test('with a small part before the last are refused', async () => {
    const upload = await store.createMultipart(freshKey());
    await upload.uploadPart(1, Buffer.from('small'));
    await upload.uploadPart(2, Buffer.from('last'));
    expect(await codeOf(upload.complete())).toBe('EntityTooSmall');
    await upload.abort();
  });

  test('are listed by key and by prefix until they end', async () => {
    const prefix = `${randomUUID()}/`;
    const a = await store.createMultipart(`${prefix}results.jsonl`);
    const b = await store.createMultipart(`${prefix}results.jsonl`);
    const c = await store.createMultipart(`${prefix}sub/errors.jsonl`);
    const ids = (uploads: { uploadId: string }[]) => uploads.map((each) => each.uploadId).sort();
    expect(ids(await store.listUploads(prefix))).toEqual([a, b, c].map((each) => each.uploadId).sort());
    expect(ids(await store.listUploads(`${prefix}results.jsonl`))).toEqual(
      [a, b].map((each) => each.uploadId).sort(),
    );
    await a.uploadPart(1, Buffer.from('x'));
    await a.complete();
    await b.abort();
    expect(await store.listUploads(prefix)).toEqual([
      { key: `${prefix}sub/errors.jsonl`, uploadId: c.uploadId },
    ]);
    await c.abort();
    expect(await store.listUploads(prefix)).toEqual([]);
  });
});

describe('lists', () => {
  test('go over all pages in key order, from a given key on', async () => {
    const prefix = `${randomUUID()}/`;
    const keys = Array.from({ length: 2100 }, (_, n) => `${prefix}${String(n).padStart(5, '0')}`);
    await inBatches(keys, (key) => store.put(key, Buffer.from('x')));
    expect(await keysOf(store.list(prefix))).toEqual(keys);
    const startAfter = keys[1999];
    expect(await keysOf(store.list(prefix, startAfter === undefined ? {} : { startAfter }))).toEqual(
      keys.slice(2000),
    );
  }, 60_000);

  test('order folders and files by the whole key', async () => {
    const prefix = `${randomUUID()}/`;
    const names = ['a/1', 'a-b', 'b/2/3', 'a.c', 'b0', 'B'];
    await inBatches(names, (name) => store.put(`${prefix}${name}`, Buffer.from(name)));
    const sorted = names
      .map((name) => `${prefix}${name}`)
      .sort((x, y) => Buffer.compare(Buffer.from(x), Buffer.from(y)));
    expect(await keysOf(store.list(prefix))).toEqual(sorted);
  });

  test('carry ETag and size', async () => {
    const key = freshKey();
    const { etag } = await store.put(key, Buffer.from('four'));
    const found: ObjectInfo[] = [];
    for await (const each of store.list(key)) found.push(each);
    expect(found).toEqual([{ key, etag, bytes: 4 }]);
  });

  test('of a prefix without objects are empty', async () => {
    expect(await keysOf(store.list(`${randomUUID()}/`))).toEqual([]);
  });
});

describe('refusals', () => {
  const calls: [name: string, call: (target: ObjectStore) => Promise<unknown>][] = [
    ['head', (target) => target.head('some/key')],
    ['get', (target) => target.get('some/key')],
    ['put', (target) => target.put('some/key', Buffer.from('x'))],
    ['createMultipart', (target) => target.createMultipart('some/key')],
    ['list', (target) => keysOf(target.list('some/'))],
    ['listUploads', (target) => target.listUploads('some/')],
    ['deleteMany', (target) => target.deleteMany(['some/key'])],
  ];

  test.each(calls)('%s with a wrong secret key is InvalidCredentials', async (_name, call) => {
    const credentials = { accessKeyId: s3.accessKeyId, secretAccessKey: 'wrong-secret-of-nobody' };
    const error = await errorOf(call(provider.open(connection({ credentials }))));
    expect(error?.code).toBe('InvalidCredentials');
    expect(error?.message).not.toContain('wrong-secret-of-nobody');
    expect(error?.message).not.toContain(s3.secretAccessKey);
  });

  test.each(calls)('%s with an unknown access key is InvalidCredentials', async (_name, call) => {
    const credentials = { accessKeyId: 'nobody-at-all', secretAccessKey: s3.secretAccessKey };
    expect(await codeOf(call(provider.open(connection({ credentials }))))).toBe('InvalidCredentials');
  });

  test.each(calls)('%s in a bucket that does not exist is NoSuchBucket', async (_name, call) => {
    const error = await errorOf(call(provider.open(connection({ bucket: 'no-such-bucket' }))));
    expect(error?.code).toBe('NoSuchBucket');
    expect(error?.message).toContain('no-such-bucket');
  });

  test.each([
    ['head', (key: string) => store.head(key)],
    ['get', (key: string) => store.get(key)],
    ['get with If-Match', (key: string) => store.get(key, { ifMatch: '"0"' })],
  ])('%s of a key that does not exist is NoSuchKey and names it', async (_name, call) => {
    const error = await errorOf(call('no/such/key'));
    expect(error).toMatchObject({ code: 'NoSuchKey', bucket, key: 'no/such/key' });
    expect(error?.message).toContain('no/such/key');
  });
});

describe('signals', () => {
  test('that fired before the call make it Aborted', async () => {
    const signal = AbortSignal.abort();
    expect(await codeOf(store.head('x', signal))).toBe('Aborted');
    expect(await codeOf(store.put('x', Buffer.from('x'), { signal }))).toBe('Aborted');
    expect(await codeOf(keysOf(store.list('x', { signal })))).toBe('Aborted');
  });

  test('that fire while a body is read end it with Aborted', async () => {
    const key = freshKey();
    await store.put(key, randomBytes(20 * MiB));
    const abort = new AbortController();
    const { body } = await store.get(key, { signal: abort.signal });
    const read = (async () => {
      for await (const _ of body) abort.abort();
    })();
    expect(await codeOf(read)).toBe('Aborted');
  });

  test('and sockets: 300 bodies left unread and destroyed do not starve the next call', async () => {
    const key = freshKey();
    await store.put(key, randomBytes(2 * MiB));
    for (let n = 0; n < 300; n++) (await store.get(key)).body.destroy();
    expect((await store.getBytes(key)).bytes).toHaveLength(2 * MiB);
  }, 30_000);
});

const freshKey = (): string => `objects/${randomUUID()}`;
const sha = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

async function keysOf(objects: AsyncIterable<ObjectInfo>): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of objects) keys.push(key);
  return keys;
}

async function inBatches<T>(items: readonly T[], act: (item: T) => Promise<unknown>): Promise<void> {
  for (let at = 0; at < items.length; at += 50) await Promise.all(items.slice(at, at + 50).map(act));
}

async function errorOf(call: Promise<unknown>): Promise<StoreError | undefined> {
  try {
    await call;
    return undefined;
  } catch (error) {
    if (error instanceof StoreError) return error;
    throw error;
  }
}

const codeOf = async (call: Promise<unknown>): Promise<string | undefined> => (await errorOf(call))?.code;
