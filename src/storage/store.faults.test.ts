/** Faults that a real store does not produce on demand, played by a scripted HTTP server. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer, type Server as HttpsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { silentLogger } from '../observability/logger.ts';
import { StoreError, type ObjectStore, type S3Connection } from './contract.ts';
import { StoreProvider, type StoreDependencies } from './provider.ts';

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

const BYTES = randomBytes(300_000);
const ETAG = '"etag-of-the-object"';

let server: Server;
let endpoint: string;
/** Answers in turn; the last one repeats. */
let script: Answer[];
let requests: { method: string; url: string; headers: IncomingMessage['headers'] }[];
let sockets: Set<Socket>;
let calls: [operation: string, code: string][];
let provider: StoreProvider;
let store: ObjectStore;

beforeEach(async () => {
  script = [];
  requests = [];
  sockets = new Set();
  calls = [];
  server = createServer((request, response) => {
    const { method = '', url = '', headers } = request;
    requests.push({ method, url, headers });
    const answer = script[Math.min(requests.length, script.length) - 1];
    request.resume();
    answer?.(request, response);
  });
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => undefined);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  open();
});

afterEach(async () => {
  provider.close();
  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => server.close(resolve));
});

function open(overrides: Partial<StoreDependencies> & { connection?: Partial<S3Connection> } = {}): void {
  const { connection, settings, ...deps } = overrides;
  provider = new StoreProvider({
    logger: silentLogger,
    onCall: (operation, code) => calls.push([operation, code]),
    ...deps,
    settings: {
      ...{ allowLoopback: true, initialBackoffMilliseconds: 1, maxBackoffMilliseconds: 2 },
      ...{ idleTimeoutMilliseconds: 150, maxAttempts: 4 },
      ...settings,
    },
  });
  store = provider.open({
    ...{ bucket: 'bucket', endpoint, credentials: { accessKeyId: 'key-id', secretAccessKey: 'very-secret' } },
    ...connection,
  });
}

const failing =
  (status: number, code: string, message = 'no'): Answer =>
  (_request, response) => {
    response.writeHead(status, { 'content-type': 'application/xml' });
    response.end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>${message}</Message></Error>`);
  };

const plain =
  (status: number, body: string): Answer =>
  (_request, response) => {
    response.writeHead(status);
    response.end(body);
  };

/** Serves BYTES, ranges obeyed; `sent` of them before the socket breaks. */
const serving =
  (sent = Infinity, etag = ETAG): Answer =>
  (request, response) => {
    if (request.headers['if-match'] !== undefined && request.headers['if-match'] !== etag) {
      failing(412, 'PreconditionFailed')(request, response);
      return;
    }
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
    const start = Number(first ?? 0);
    const end = Math.min(Number(last ?? Infinity) + 1, BYTES.length);
    response.writeHead(first === undefined ? 200 : 206, {
      ...{ etag, 'content-length': end - start, 'x-amz-meta-tidegate-shards': '3' },
      ...(first === undefined ? {} : { 'content-range': `bytes ${start}-${end - 1}/${BYTES.length}` }),
    });
    if (end - start <= sent) {
      response.end(BYTES.subarray(start, end));
      return;
    }
    response.write(BYTES.subarray(start, start + sent), () => setImmediate(() => response.socket?.destroy()));
  };

const put: Answer = (_request, response) => {
  response.writeHead(200, { etag: ETAG });
  response.end();
};
const hang: Answer = () => undefined;
const reset: Answer = (request) => request.socket.destroy();

describe('passing faults are ridden out', () => {
  test.each<[string, Answer, string]>([
    ['503 SlowDown', failing(503, 'SlowDown'), 'SlowDown'],
    ['500 InternalError', failing(500, 'InternalError'), 'InternalError'],
    ['502 of a proxy, in HTML', plain(502, '<html><body>Bad Gateway</body></html>'), '502'],
    ['503 without a body', plain(503, ''), '503'],
    ['429', failing(429, 'TooManyRequests'), '429'],
    ['400 RequestTimeout', failing(400, 'RequestTimeout'), 'RequestTimeout'],
    [
      '409 ConditionalRequestConflict',
      failing(409, 'ConditionalRequestConflict'),
      'ConditionalRequestConflict',
    ],
    ['403 RequestTimeTooSkewed', failing(403, 'RequestTimeTooSkewed'), 'RequestTimeTooSkewed'],
    ['a connection that breaks before the answer', reset, 'Network'],
    ['a server that never answers', hang, 'TimeoutError'],
    ['an answer that is no HTTP', (request) => request.socket.end('garbage\r\n\r\n'), 'Network'],
    [
      'an answer cut in its headers',
      (request) => request.socket.end('HTTP/1.1 200 OK\r\nETag: "x'),
      'Network',
    ],
  ])('%s', async (_name, fault, label) => {
    script = [fault, fault, put];
    expect(await store.put('key', Buffer.from('x'), { ifNoneMatch: true })).toEqual({ etag: ETAG });
    expect(calls).toHaveLength(3);
    expect(calls[2]).toEqual(['PutObject', 'ok']);
    expect(calls[0]?.[0]).toBe('PutObject');
    expect([label, 'Network']).toContain(calls[0]?.[1]);
    expect(requests.every((each) => each.headers['if-none-match'] === '*')).toBe(true);
  });

  test('an error inside a 200 of CompleteMultipartUpload counts as the error it is', async () => {
    const created: Answer = (_request, response) => {
      response.end('<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>');
    };
    const completed: Answer = (_request, response) => {
      response.end('<CompleteMultipartUploadResult><ETag>"done"</ETag></CompleteMultipartUploadResult>');
    };
    script = [created, put, failing(200, 'InternalError'), completed];
    const upload = await store.createMultipart('key');
    await upload.uploadPart(1, Buffer.from('x'));
    expect(await upload.complete()).toEqual({ etag: '"done"' });
    expect(calls.slice(2)).toEqual([
      ['CompleteMultipartUpload', 'InternalError'],
      ['CompleteMultipartUpload', 'ok'],
    ]);
  });
});

describe('lasting faults end as Unavailable after a bounded number of calls', () => {
  test.each<[string, Answer]>([
    ['a SlowDown storm', failing(503, 'SlowDown', 'Please reduce your request rate.')],
    ['a server that hangs', hang],
    ['broken connections', reset],
  ])('%s', async (_name, fault) => {
    script = [fault];
    const error = await errorOf(store.head('some/key'));
    expect(error?.code).toBe('Unavailable');
    expect(error?.message).toContain('HeadObject s3://bucket/some/key');
    expect(error?.message).toContain('after 4 attempts');
    expect(requests).toHaveLength(4);
  });

  test('nobody listening', async () => {
    await new Promise((resolve) => server.close(resolve));
    expect((await errorOf(store.head('key')))?.code).toBe('Unavailable');
    await new Promise<void>((resolve) => server.listen(0, resolve));
  });

  test('a page of a list that never ends is noticed', async () => {
    script = [
      (_request, response) =>
        response.end(
          '<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>',
        ),
    ];
    const listing = (async () => {
      for await (const _ of store.list('p/'));
    })();
    expect((await errorOf(listing))?.code).toBe('InvalidRequest');
    expect(requests).toHaveLength(2);
  });
});

describe('answers are not repeated', () => {
  test.each([
    [412, 'PreconditionFailed', 'PreconditionFailed'],
    [403, 'AccessDenied', 'AccessDenied'],
    [403, 'SignatureDoesNotMatch', 'InvalidCredentials'],
    [403, 'InvalidAccessKeyId', 'InvalidCredentials'],
    [400, 'ExpiredToken', 'InvalidCredentials'],
    [401, 'Unauthorized', 'InvalidCredentials'],
    [404, 'NoSuchBucket', 'NoSuchBucket'],
    [404, 'NoSuchKey', 'NoSuchKey'],
    [404, 'NoSuchUpload', 'NoSuchUpload'],
    [400, 'InvalidPart', 'NoSuchUpload'],
    [400, 'EntityTooSmall', 'EntityTooSmall'],
    [501, 'NotImplemented', 'InvalidRequest'],
    [301, 'PermanentRedirect', 'InvalidRequest'],
    [400, 'AuthorizationHeaderMalformed', 'InvalidRequest'],
    [400, 'InvalidArgument', 'InvalidRequest'],
    [404, 'SomethingElse', 'InvalidRequest'],
    [409, 'ObjectParentIsFile', 'InvalidRequest'],
  ])('%d %s is %s', async (status, code, expected) => {
    script = [failing(status, code)];
    const error = await errorOf(store.put('key', Buffer.from('x')));
    expect(error?.code).toBe(expected);
    expect(requests).toHaveLength(1);
    expect(JSON.stringify({ ...error, message: error?.message, cause: error?.cause })).not.toMatch(
      /very-secret|key-id/,
    );
  });

  test('HEAD says nothing about its 403, so the reason is asked for', async () => {
    script = [plain(403, ''), failing(403, 'SignatureDoesNotMatch')];
    expect((await errorOf(store.head('key')))?.code).toBe('InvalidCredentials');
    expect(requests.map((each) => each.method)).toEqual(['HEAD', 'GET']);
  });

  test('HEAD says nothing about a missing bucket, which is asked for until the bucket is known', async () => {
    script = [plain(404, ''), failing(404, 'NoSuchBucket'), put, plain(404, '')];
    expect((await errorOf(store.head('key')))?.code).toBe('NoSuchBucket');
    await store.put('key', Buffer.from('x'));
    expect((await errorOf(store.head('key')))?.code).toBe('NoSuchKey');
    expect(requests.map((each) => each.method)).toEqual(['HEAD', 'GET', 'PUT', 'HEAD']);
  });
});

describe('a body that is cut', () => {
  test.each([
    ['once in the middle', [serving(100_000), serving()], 2],
    ['after each 70,000 bytes, more often than a call may fail', [serving(70_000)], 5],
    ['at its first byte', [serving(0), serving()], 2],
    ['before its last byte', [serving(BYTES.length - 1), serving()], 2],
    ['and answered with 503 when asked again', [serving(1000), failing(503, 'SlowDown'), serving()], 3],
  ])('%s is read on from its last byte', async (_name, answers, count) => {
    script = answers;
    const { bytes, info } = await store.getBytes('key');
    expect(sha(bytes)).toBe(sha(BYTES));
    expect(info).toEqual({
      key: 'key',
      etag: ETAG,
      bytes: BYTES.length,
      metadata: { 'tidegate-shards': '3' },
    });
    expect(requests).toHaveLength(count);
    for (const each of requests.slice(1)) expect(each.headers['if-match']).toBe(ETAG);
  });

  test('inside a range goes on inside that range', async () => {
    script = [serving(10_000), serving()];
    const { bytes } = await store.getBytes('key', { range: { start: 50_000, end: 150_000 } });
    expect(sha(bytes)).toBe(sha(BYTES.subarray(50_000, 150_000)));
    expect(requests[1]?.headers.range).toBe('bytes=60000-149999');
  });

  test('is an error when the object was replaced meanwhile', async () => {
    script = [serving(100_000), serving(Infinity, '"another"')];
    expect((await errorOf(store.getBytes('key')))?.code).toBe('PreconditionFailed');
  });

  test('again and again without a new byte ends as Unavailable', async () => {
    script = [serving(100_000), serving(0)];
    const error = await errorOf(store.getBytes('key'));
    expect(error?.code).toBe('Unavailable');
    expect(error?.message).toContain('at byte 100000 of 300000');
  });

  test('by silence is given up and read on', async () => {
    const silent: Answer = (_request, response) => {
      response.writeHead(200, { etag: ETAG, 'content-length': BYTES.length });
      response.write(BYTES.subarray(0, 5000));
    };
    script = [silent, serving()];
    expect(sha((await store.getBytes('key')).bytes)).toBe(sha(BYTES));
    expect(requests[1]?.headers.range).toBe('bytes=5000-299999');
  });

  test('while its reader pauses longer than sockets may idle is read on when the reader returns', async () => {
    open({ settings: { idleTimeoutMilliseconds: 50 } });
    const slowly: Answer = (request, response) =>
      serving(request.headers.range === undefined ? 200_000 : Infinity)(request, response);
    script = [slowly];
    const { body } = await store.get('key');
    const read: Buffer[] = [];
    let paused = false;
    for await (const chunk of body) {
      read.push(chunk as Buffer);
      if (paused) continue;
      paused = true;
      while (sockets.size > 0) await pause(5);
    }
    expect(sha(Buffer.concat(read))).toBe(sha(BYTES));
  });

  test('is not asked for again after its reader left', async () => {
    script = [serving(100_000)];
    const { body } = await store.get('key');
    for await (const _ of body) break;
    expect(body.destroyed).toBe(true);
    while (sockets.size > 0) await pause(1);
    expect(requests).toHaveLength(1);
  });

  test('never mixes in the whole object where the store ignores ranges', async () => {
    script = [
      (_request, response) => {
        response.writeHead(200, { etag: ETAG, 'content-length': BYTES.length });
        response.end(BYTES);
      },
    ];
    const error = await errorOf(store.getBytes('key', { range: { start: 10, end: 20 } }));
    expect(error?.code).toBe('InvalidRequest');
    expect(error?.message).toContain('whole object');
  });
});

describe('addresses', () => {
  const resolvingTo =
    (...answers: string[]): NonNullable<StoreDependencies['lookup']> =>
    (_host, options, callback) => {
      const addresses = answers.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
      if (options.all === true) callback(null, addresses);
      else callback(null, answers[0] ?? '', 4);
    };

  test('are refused when a store is opened, before any call', () => {
    open({ settings: { allowLoopback: false }, connection: { endpoint: 'https://s3.example.com' } });
    for (const bad of [
      'http://169.254.169.254',
      'http://127.0.0.1:9000',
      'http://[::ffff:169.254.169.254]',
    ]) {
      expect(() => provider.open({ bucket: 'b', endpoint: bad })).toThrow(StoreError);
    }
  });

  test.each([
    ['the metadata service', ['169.254.169.254']],
    ['it among harmless ones', ['192.0.2.1', '169.254.169.254']],
    ['it inside IPv6', ['::ffff:169.254.169.254']],
    ['loopback', ['127.0.0.1']],
  ])('are refused when a harmless name resolves to %s', async (_name, answers) => {
    open({
      settings: { allowLoopback: false },
      connection: { endpoint: 'http://s3.example.com' },
      lookup: resolvingTo(...answers),
    });
    const error = await errorOf(store.head('key'));
    expect(error?.code).toBe('InvalidRequest');
    expect(error?.message).toContain('s3.example.com');
    expect(requests).toHaveLength(0);
  });

  test('of names are connected to when they are allowed', async () => {
    const port = new URL(endpoint).port;
    open({ connection: { endpoint: `http://s3.example.com:${port}` }, lookup: resolvingTo('127.0.0.1') });
    script = [put];
    await store.put('key', Buffer.from('x'));
    expect(requests[0]?.headers.host).toBe(`s3.example.com:${port}`);
  });
});

describe('TLS', () => {
  let directory: string;
  let secure: HttpsServer;
  let certificate: string;

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'tidegate-tls-'));
    const [key, cert] = [join(directory, 'key.pem'), join(directory, 'cert.pem')];
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
    const ec = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
    const request = ['req', '-x509', ...ec, '-keyout', key, '-out', cert, '-days', '2', ...subject];
    execFileSync('openssl', request, { stdio: 'ignore' });
    certificate = readFileSync(cert, 'utf8');
    secure = createSecureServer({ key: readFileSync(key), cert: certificate }, put);
    await new Promise<void>((resolve) => secure.listen(0, '127.0.0.1', resolve));
  });

  afterAll(async () => {
    secure.closeAllConnections();
    await new Promise((resolve) => secure.close(resolve));
    rmSync(directory, { recursive: true });
  });

  const openSecure = (connection: Partial<S3Connection>): void => {
    const { port } = secure.address() as AddressInfo;
    open({ connection: { endpoint: `https://localhost:${port}`, ...connection } });
  };

  test('of an endpoint with a private authority works with caBundle', async () => {
    openSecure({ caBundle: certificate });
    expect(await store.put('key', Buffer.from('x'))).toEqual({ etag: ETAG });
  });

  test('that is not trusted is no passing fault, and names what to set', async () => {
    openSecure({});
    const error = await errorOf(store.put('key', Buffer.from('x')));
    expect(error?.code).toBe('InvalidRequest');
    expect(error?.message).toContain('caBundleRef');
    expect(calls).toHaveLength(1);
  });
});

describe('clients', () => {
  test('are shared by equal connections, apart for others, and closed when idle', async () => {
    let now = 0;
    open({ monotonic: () => now, settings: { clientIdleMilliseconds: 1000 } });
    script = [put];
    const credentials = { accessKeyId: 'key-id', secretAccessKey: 'very-secret' };
    const same = provider.open({ bucket: 'other-bucket', endpoint, credentials });
    const rotated = provider.open({
      bucket: 'bucket',
      endpoint,
      credentials: { ...credentials, secretAccessKey: 'n' },
    });
    await store.put('a', Buffer.from('x'));
    await same.put('a', Buffer.from('x'));
    expect(provider.openClients).toBe(1);
    await rotated.put('a', Buffer.from('x'));
    expect(provider.openClients).toBe(2);
    now = 600;
    await store.put('a', Buffer.from('x'));
    now = 1100;
    provider.closeIdle();
    expect(provider.openClients).toBe(1);
    now = 5000;
    provider.closeIdle();
    expect(provider.openClients).toBe(0);
    await rotated.put('a', Buffer.from('x'));
    expect(provider.openClients).toBe(1);
  });

  test('are kept open while a body is read', async () => {
    let now = 0;
    open({ monotonic: () => now, settings: { clientIdleMilliseconds: 1000 } });
    script = [serving()];
    const { body } = await store.get('key');
    now = 10_000;
    provider.closeIdle();
    expect(provider.openClients).toBe(1);
    body.destroy();
    await new Promise((resolve) => body.once('close', resolve));
    now = 20_000;
    provider.closeIdle();
    expect(provider.openClients).toBe(0);
  });

  test('send no checksums of their own to custom endpoints (aws-sdk-js-v3#6810)', async () => {
    script = [put];
    await store.put('key', Buffer.from('x'));
    const headers = Object.keys(requests[0]?.headers ?? {});
    expect(headers.filter((name) => /checksum|trailer|content-encoding|expect/.test(name))).toEqual([]);
    expect(requests[0]?.url).toMatch(/^\/bucket\/key/);
  });

  test('with many requests waiting for a socket do not take that for an unreachable endpoint', async () => {
    open({ settings: { maxSockets: 1, connectTimeoutMilliseconds: 40, idleTimeoutMilliseconds: 5000 } });
    script = [
      (_request, response) => {
        setTimeout(() => put(_request, response), 15);
      },
    ];
    await Promise.all(Array.from({ length: 10 }, () => store.put('key', Buffer.from('x'))));
    expect(calls.every(([, code]) => code === 'ok')).toBe(true);
  });
});

describe('conditions', () => {
  test.each<[string, Answer, { put: boolean; complete: boolean }]>([
    ['are not trusted to a store that ignores them', put, { put: false, complete: false }],
    [
      'are not sent to a store that refuses the header',
      failing(501, 'NotImplemented'),
      { put: false, complete: false },
    ],
  ])('%s', async (_name, conditional, expected) => {
    const playing: Answer = (request, response) => {
      if (request.headers['if-none-match'] !== undefined && request.method === 'PUT')
        conditional(request, response);
      else if (request.method === 'POST' && request.url?.includes('uploads') === true)
        response.end('<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>');
      else if (request.method === 'POST')
        response.end('<CompleteMultipartUploadResult><ETag>"done"</ETag></CompleteMultipartUploadResult>');
      else put(request, response);
    };
    script = [playing];
    expect(await store.honoursConditions('probe/')).toEqual(expected);
    expect(requests.filter((each) => each.method === 'DELETE')).toHaveLength(2);
  });

  test('are asked again after a probe that failed', async () => {
    script = [failing(503, 'SlowDown')];
    expect((await errorOf(store.honoursConditions('probe/')))?.code).toBe('Unavailable');
    const before = requests.length;
    await errorOf(store.honoursConditions('probe/'));
    expect(requests.length).toBeGreaterThan(before);
  });
});

const sha = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

async function errorOf(call: Promise<unknown>): Promise<StoreError | undefined> {
  try {
    await call;
    return undefined;
  } catch (error) {
    if (error instanceof StoreError) return error;
    throw error;
  }
}
