import { afterEach, describe, expect, test } from '@jest/globals';
import type { ServerResponse } from 'node:http';
import type { KubeCall } from './connection.ts';
import type { KubeObject, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { staticCredentials, type Access, type Credentials } from './credentials.ts';
import { KindReflector } from './reflector.ts';
import { realRuntime, until } from './testing/real-time.ts';
import { answer, ScriptedServer, statusBody, type Received, type Script } from './testing/scripted-server.ts';
import { systemTimers, type Runtime } from './timers.ts';
import { KubeTransport, type TransportOptions } from './transport.ts';

const secrets: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  plural: 'secrets',
  kind: 'Secret',
  namespaced: true,
};
const secret = (name: string, resourceVersion = '1'): KubeObject => ({
  apiVersion: 'v1',
  kind: 'Secret',
  metadata: { name, namespace: 'ns', uid: `uid-${name}`, resourceVersion },
});

/** Real sockets, but waits between attempts take a hundredth of their time. */
const hurried: Runtime = {
  ...realRuntime(),
  timers: { after: (milliseconds, run) => systemTimers.after(milliseconds / 100, run) },
};

const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close();
});

async function setUp(script: Script, options: Partial<TransportOptions> = {}) {
  const server = await ScriptedServer.start(script);
  const calls: KubeCall[] = [];
  const client = new KubeTransport({
    credentials: staticCredentials({ server: server.url, authorization: 'Bearer s3cr3t', tls: {} }),
    runtime: hurried,
    userAgent: 'tidegate/test',
    rateLimit: { perSecond: 0, burst: 0 },
    onCall: (call) => calls.push(call),
    ...options,
  });
  closers.push(
    () => server.stop(),
    () => client.close(),
  );
  return { server, client, calls };
}

/** Answers with these one after another; the last one stays. */
const sequence = (...scripts: Script[]): Script => {
  let at = 0;
  return (request, response) => {
    scripts[Math.min(at, scripts.length - 1)]?.(request, response);
    at += 1;
  };
};
const ok: Script = (_request, response) => {
  answer(response, 200, secret('a'));
};
const fail =
  (code: number, reason: string, headers: Record<string, string> = {}, details?: object): Script =>
  (_request, response) => {
    answer(response, code, statusBody(code, reason, `told ${code}`, details), headers);
  };
const reset: Script = (_request, response) => {
  response.socket?.resetAndDestroy();
};
const hang: Script = () => undefined;

async function errorOf(promise: Promise<unknown>): Promise<KubeError> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof KubeError) return error;
    throw error;
  }
  throw new Error('the call succeeded');
}

describe('requests', () => {
  const requested = async (
    call: (client: KubeTransport) => Promise<unknown>,
  ): Promise<Received | undefined> => {
    const { server, client } = await setUp(ok);
    await call(client);
    return server.received[0];
  };

  test.each<[string, (client: KubeTransport) => Promise<unknown>, Partial<Received>]>([
    [
      'get',
      (client) => client.get(secrets, 'ns', 'a'),
      { method: 'GET', url: '/api/v1/namespaces/ns/secrets/a', body: '' },
    ],
    [
      'list',
      (client) => client.list(secrets, { labelSelector: 'a=b,c!=d' }),
      { method: 'GET', url: '/api/v1/secrets?labelSelector=a%3Db%2Cc%21%3Dd&limit=500' },
    ],
    [
      'create',
      (client) => client.create(secrets, secret('a')),
      { method: 'POST', url: '/api/v1/namespaces/ns/secrets' },
    ],
    [
      'merge patch of the status',
      (client) => client.mergePatch(secrets, 'ns', 'a', { status: {} }, { subresource: 'status' }),
      { method: 'PATCH', url: '/api/v1/namespaces/ns/secrets/a/status', body: '{"status":{}}' },
    ],
    [
      'apply',
      (client) => client.apply(secrets, secret('a'), { fieldManager: 'tidegate', force: true }),
      { method: 'PATCH', url: '/api/v1/namespaces/ns/secrets/a?fieldManager=tidegate&force=true' },
    ],
    [
      'post',
      (client) => client.post('/apis/authentication.k8s.io/v1/tokenreviews', { spec: {} }),
      { method: 'POST', url: '/apis/authentication.k8s.io/v1/tokenreviews', body: '{"spec":{}}' },
    ],
    [
      'a name that would escape its path',
      (client) => client.get(secrets, 'ns', '../../nodes?x'),
      { url: '/api/v1/namespaces/ns/secrets/..%2F..%2Fnodes%3Fx' },
    ],
  ])('%s', async (_name, call, expected) => {
    expect(await requested(call)).toMatchObject(expected);
  });

  test.each<[string, (client: KubeTransport) => Promise<unknown>, string | undefined]>([
    ['get', (client) => client.get(secrets, 'ns', 'a'), undefined],
    ['create', (client) => client.create(secrets, secret('a')), 'application/json'],
    ['merge patch', (client) => client.mergePatch(secrets, 'ns', 'a', {}), 'application/merge-patch+json'],
    ['JSON patch', (client) => client.jsonPatch(secrets, 'ns', 'a', []), 'application/json-patch+json'],
    [
      'apply',
      (client) => client.apply(secrets, secret('a'), { fieldManager: 'x' }),
      'application/apply-patch+yaml',
    ],
  ])('%s sends who we are and the right content type (client-node#862)', async (_name, call, contentType) => {
    const headers = (await requested(call))?.headers;
    expect(headers).toMatchObject({ 'user-agent': 'tidegate/test', authorization: 'Bearer s3cr3t' });
    expect(headers?.['content-type']).toBe(contentType);
  });

  test('an empty name never becomes a call about all objects', async () => {
    const { server, client } = await setUp(ok);
    await expect(client.delete(secrets, 'ns', '')).rejects.toThrow('an empty name would address all secrets');
    await expect(client.get(secrets, undefined, 'a')).rejects.toThrow('without its namespace');
    expect(server.received).toEqual([]);
  });

  test('two connections at most serve fifty calls in turn (50 handshakes with client-node 2.0.1)', async () => {
    const { server, client } = await setUp(ok);
    for (let count = 0; count < 50; count += 1) await client.get(secrets, 'ns', 'a');
    expect(server.received).toHaveLength(50);
    expect(server.connections).toBeLessThanOrEqual(2);
  });

  test('a list is read page by page, and its items get their kind', async () => {
    const { server, client } = await setUp((request, response) => {
      const token = new URL(request.url, 'http://x').searchParams.get('continue');
      const { apiVersion: _apiVersion, kind: _kind, ...bare } = secret(token ?? 'first');
      const next = { first: 'second', second: 'third' }[token ?? 'first'] ?? '';
      answer(response, 200, { metadata: { resourceVersion: '9', continue: next }, items: [bare] });
    });
    const { items, resourceVersion } = await client.list(secrets);
    expect(items).toEqual([secret('first'), secret('second'), secret('third')]);
    expect(resourceVersion).toBe('9');
    expect(server.received).toHaveLength(3);
  });

  test('a list whose snapshot is compacted away between two pages is read once more, in one piece', async () => {
    const { client } = await setUp((request, response) => {
      const { searchParams } = new URL(request.url, 'http://x');
      if (searchParams.has('continue')) fail(410, 'Expired')(request, response);
      else if (searchParams.has('limit'))
        answer(response, 200, {
          metadata: { resourceVersion: '1', continue: 'more' },
          items: [secret('old')],
        });
      else answer(response, 200, { metadata: { resourceVersion: '2' }, items: [secret('a'), secret('b')] });
    });
    const { items, resourceVersion } = await client.list(secrets);
    expect([items.map(({ metadata }) => metadata.name), resourceVersion]).toEqual([['a', 'b'], '2']);
  });

  test('404 is no object for a get, and success for a delete', async () => {
    const { client } = await setUp(fail(404, 'NotFound'));
    expect(await client.get(secrets, 'ns', 'a')).toBeUndefined();
    await client.delete(secrets, 'ns', 'a');
  });

  test.each([
    'Precondition failed: UID in precondition: x, UID in object meta: y',
    'Operation cannot be fulfilled on Secret "a": the UID in the precondition (x) does not match the UID in record (y).',
  ])('a delete by UID leaves the successor of the name alone, and succeeds: %s', async (message) => {
    const { server, client } = await setUp((_request, response) => {
      answer(response, 409, statusBody(409, 'Conflict', message));
    });
    await client.delete(secrets, 'ns', 'a', { uid: 'x' });
    expect(JSON.parse(server.received[0]?.body ?? '')).toMatchObject({ preconditions: { uid: 'x' } });
  });

  test('a delete that is refused for another conflict is told', async () => {
    const { client } = await setUp((_request, response) => {
      answer(response, 409, statusBody(409, 'Conflict', 'the namespace still holds objects'));
    });
    await expect(client.delete(secrets, 'ns', 'a', { uid: 'x' })).rejects.toThrow('still holds objects');
  });
});

describe('repeating', () => {
  type Call = (client: KubeTransport) => Promise<unknown>;
  const get: Call = (client) => client.get(secrets, 'ns', 'a');
  const list: Call = (client) => client.list(secrets);
  const patch: Call = (client) => client.mergePatch(secrets, 'ns', 'a', {});
  const apply: Call = (client) => client.apply(secrets, secret('a'), { fieldManager: 'x' });
  const remove: Call = (client) => client.delete(secrets, 'ns', 'a');
  const create: Call = (client) => client.create(secrets, secret('a'));
  const post: Call = (client) => client.post('/apis/x/v1/y', {});
  const blindJsonPatch: Call = (client) =>
    client.jsonPatch(secrets, 'ns', 'a', [{ op: 'add', path: '/metadata/finalizers/-', value: 'f' }]);
  const guardedJsonPatch: Call = (client) =>
    client.jsonPatch(secrets, 'ns', 'a', [{ op: 'test', path: '/a', value: 1 }]);

  const repeatable: [string, Call][] = [
    ['get', get],
    ['list', list],
    ['merge patch', patch],
    ['apply', apply],
    ['delete', remove],
    ['JSON patch with a test', guardedJsonPatch],
  ];
  const once: [string, Call][] = [
    ['create', create],
    ['post', post],
    ['JSON patch without a test', blindJsonPatch],
  ];
  const transient: [string, Script][] = [
    ['a reset connection', reset],
    ['500', fail(500, 'InternalError')],
    ['502 from a proxy', (_request, response) => response.writeHead(502).end('<html>')],
    ['503', fail(503, 'ServiceUnavailable')],
    ['504', fail(504, 'Timeout')],
    [
      'a torn answer',
      (_request, response) => {
        response.writeHead(200, { 'content-length': '1000' });
        response.write('{"meta');
        setImmediate(() => response.socket?.resetAndDestroy());
      },
    ],
  ];

  describe.each(transient)('%s', (_fault, script) => {
    test.each(repeatable)('%s is sent again', async (_name, call) => {
      const { server, client } = await setUp(sequence(script, script, ok));
      await call(client);
      expect(server.received).toHaveLength(3);
    });

    test.each(once)('%s is not: the server may have acted', async (_name, call) => {
      const { server, client } = await setUp(sequence(script, ok));
      await errorOf(call(client));
      expect(server.received).toHaveLength(1);
    });
  });

  test.each([...repeatable, ...once])('%s is sent again after 429', async (_name, call) => {
    const { server, client } = await setUp(sequence(fail(429, 'TooManyRequests'), ok));
    await call(client);
    expect(server.received).toHaveLength(2);
  });

  test.each([
    [400, 'BadRequest'],
    [403, 'Forbidden'],
    [409, 'Conflict'],
    [422, 'Invalid'],
  ])('nothing is sent again after %d', async (code, reason) => {
    const { server, client } = await setUp(fail(code, reason));
    for (const [, call] of [...repeatable, ...once]) {
      const error = await errorOf(call(client));
      expect([error.status, error.reason]).toEqual([code, reason]);
    }
    expect(server.received).toHaveLength(repeatable.length + once.length);
  });

  test('a server that is down is tried again, by creates too: nothing was sent', async () => {
    const { server, client } = await setUp(ok);
    const { port } = server;
    await server.stop();
    const pending = client.create(secrets, secret('a'));
    const again = await ScriptedServer.start(ok, port);
    closers.push(() => again.stop());
    await pending;
    expect(again.received).toHaveLength(1);
  });

  test('a storm of 503 ends after five attempts with the last answer', async () => {
    const { server, client, calls } = await setUp(fail(503, 'ServiceUnavailable'));
    const error = await errorOf(get(client));
    expect([error.status, server.received.length]).toEqual([503, 5]);
    expect(calls.map(({ verb, resource, status }) => [verb, resource, status])).toEqual(
      Array(5).fill(['get', 'secrets', 503]),
    );
  });

  test('Retry-After is obeyed, or the call fails at once where its deadline is sooner', async () => {
    const waits: number[] = [];
    const runtime: Runtime = {
      ...realRuntime(),
      timers: {
        after: (milliseconds, run) => {
          if (milliseconds === 3_000) waits.push(milliseconds);
          return systemTimers.after(milliseconds / 100, run);
        },
      },
    };
    const slow = fail(429, 'TooManyRequests', { 'retry-after': '3' });
    const { client } = await setUp(sequence(slow, slow, ok), { runtime });
    await get(client);
    expect(waits).toHaveLength(2);

    const late = await setUp(slow);
    const error = await errorOf(late.client.get(secrets, 'ns', 'a', { timeoutMilliseconds: 2_000 }));
    expect([error.status, error.retryAfterSeconds, late.server.received.length]).toEqual([429, 3, 1]);
  });

  test('a half-open connection costs one attempt; the next goes over a new one', async () => {
    const { server, client, calls } = await setUp(sequence(hang, ok), { attemptMilliseconds: 2_000 });
    await get(client);
    expect(server.received.map(({ connection }) => connection)).toEqual([1, 2]);
    expect(calls.map(({ status }) => status)).toEqual([0, 200]);
  });

  test('a call ends at its deadline', async () => {
    const { client } = await setUp(hang);
    const error = await errorOf(client.get(secrets, 'ns', 'a', { timeoutMilliseconds: 5_000 }));
    expect([error.status, error.reason]).toEqual([0, 'Timeout']);
  });

  test('a call ends when the caller gives up, and the connection with it', async () => {
    const { server, client } = await setUp(hang);
    const controller = new AbortController();
    const pending = errorOf(client.get(secrets, 'ns', 'a', { signal: controller.signal }));
    await until(() => server.received.length === 1);
    controller.abort();
    expect((await pending).reason).toBe('Aborted');
    await until(() => server.openConnections === 0);
    expect((await errorOf(client.get(secrets, 'ns', 'a', { signal: controller.signal }))).reason).toBe(
      'Aborted',
    );
  });
});

describe('credentials', () => {
  const rotating = (accesses: Access[]): Credentials & { refreshes: number } => ({
    refreshes: 0,
    access: () => Promise.resolve(accesses[0] as Access),
    refresh() {
      this.refreshes += 1;
      if (accesses.length > 1) accesses.shift();
    },
  });

  test('after 401 the token is read again and the call repeated once, creates too', async () => {
    const { server, client: _client } = await setUp((request, response) => {
      if (request.headers.authorization === 'Bearer new') ok(request, response);
      else fail(401, 'Unauthorized')(request, response);
    });
    const access = (token: string): Access => ({ server: server.url, authorization: token, tls: {} });
    const credentials = rotating([access('Bearer old'), access('Bearer new')]);
    const client = new KubeTransport({ credentials, runtime: hurried });
    closers.push(() => client.close());
    await client.create(secrets, secret('a'));
    expect([server.received.length, credentials.refreshes]).toEqual([2, 1]);
  });

  test('a token that stays wrong is told after one repetition', async () => {
    const { server, client } = await setUp(fail(401, 'Unauthorized'));
    expect((await errorOf(client.get(secrets, 'ns', 'a'))).status).toBe(401);
    expect(server.received).toHaveLength(2);
  });

  test('a new CA means new connections', async () => {
    const { server } = await setUp(ok);
    const accesses = ['one', 'two'].map((ca) => ({ server: server.url, tls: { ca } }));
    const credentials = rotating(accesses);
    const client = new KubeTransport({ credentials, runtime: hurried });
    closers.push(() => client.close());
    await client.get(secrets, 'ns', 'a');
    await client.get(secrets, 'ns', 'a');
    credentials.refresh();
    await client.get(secrets, 'ns', 'a');
    const [first, second, third] = server.received.map(({ connection }) => connection);
    expect([first, second]).not.toContain(third);
  });

  test('credentials that never come, as from a hanging plug-in, cost no more than the deadline', async () => {
    const client = new KubeTransport({
      credentials: { access: () => new Promise(() => undefined), refresh: () => undefined },
      runtime: hurried,
      attempts: 1,
    });
    const error = await errorOf(client.get(secrets, 'ns', 'a', { timeoutMilliseconds: 3_000 }));
    expect(error.reason).toBe('Timeout');
  });

  test('credentials that cannot be read are told as such', async () => {
    const client = new KubeTransport({
      credentials: {
        access: () => Promise.reject(new Error('ENOENT: no such file /token')),
        refresh: () => undefined,
      },
      runtime: hurried,
      attempts: 1,
    });
    const error = await errorOf(client.get(secrets, 'ns', 'a'));
    expect([error.status, error.message]).toEqual([0, 'no credentials: ENOENT: no such file /token']);
  });
});

describe('errors', () => {
  test('carry code, reason, causes and Retry-After, and neither tokens nor bodies', async () => {
    const { client } = await setUp((_request, response) => {
      answer(
        response,
        422,
        statusBody(422, 'Invalid', 'Secret "a" is invalid: Authorization: Bearer abc.def-ghi=', {
          causes: [{ field: 'spec.x', reason: 'FieldValueRequired', message: 'Required' }],
          retryAfterSeconds: 4,
        }),
      );
    });
    const error = await errorOf(
      client.create(secrets, { ...secret('a'), data: { key: 'aHVudGVyMg==' } } as KubeObject),
    );
    expect({ ...error, message: error.message }).toMatchObject({
      status: 422,
      reason: 'Invalid',
      retryAfterSeconds: 4,
      causes: [{ field: 'spec.x', reason: 'FieldValueRequired', message: 'Required' }],
      message: 'POST /api/v1/namespaces/ns/secrets: Secret "a" is invalid: Authorization: Bearer [redacted]',
    });
    expect(JSON.stringify(error)).not.toMatch(/s3cr3t|hunter|aHVud/);
  });

  test.each<[string, (response: ServerResponse) => void, string]>([
    ['an HTML page', (response) => response.writeHead(404).end('<html>password</html>'), 'HTTP404'],
    ['no body', (response) => response.writeHead(400).end(), 'HTTP400'],
    [
      'JSON that is no Status',
      (response) => {
        answer(response, 400, { data: 'password' });
      },
      'HTTP400',
    ],
  ])('of an answer with %s name its code alone', async (_name, respond, reason) => {
    const { client } = await setUp((_request, response) => {
      respond(response);
    });
    const error = await errorOf(client.create(secrets, secret('a')));
    expect(error.reason).toBe(reason);
    expect(error.message).not.toContain('password');
  });

  test('of an answer that is no JSON quote nothing of it', async () => {
    const { client } = await setUp((_request, response) => {
      response.writeHead(200).end('{"data":{"password":"hunter2"');
    });
    const error = await errorOf(client.create(secrets, secret('a')));
    expect([error.status, error.reason]).toEqual([0, 'ConnectionLost']);
    expect(String(error.cause) + error.message).not.toContain('hunter2');
  });
});

describe('the client-side limit', () => {
  test('spreads calls beyond the burst, and lets leases pass', async () => {
    const { server, client } = await setUp(ok, { rateLimit: { perSecond: 0.000_1, burst: 2 } });
    const controller = new AbortController();
    await client.get(secrets, 'ns', 'a');
    await client.get(secrets, 'ns', 'a');
    const third = errorOf(client.get(secrets, 'ns', 'a', { signal: controller.signal }));
    await client.get(secrets, 'ns', 'a', { unlimited: true });
    expect(server.received).toHaveLength(3);
    controller.abort();
    expect((await third).reason).toBe('Aborted');
  });
});

describe('a watch over real sockets', () => {
  const listOf = (...items: KubeObject[]): object => ({ metadata: { resourceVersion: '10' }, items });
  const isWatch = (request: Received): boolean => request.url.includes('watch=true');

  test('that goes silent is replaced; the new object is seen, and the dead socket closed (pepr#745)', async () => {
    const watches: ServerResponse[] = [];
    const { server, client } = await setUp((request, response) => {
      if (!isWatch(request)) {
        answer(response, 200, listOf());
        return;
      }
      response.writeHead(200).flushHeaders();
      watches.push(response);
      // The first one never says a word again: a black hole.
      if (watches.length > 1)
        response.write(`${JSON.stringify({ type: 'ADDED', object: secret('new', '11') })}\n`);
    });
    const reflector = new KindReflector({
      client,
      resource: secrets,
      runtime: realRuntime(),
      settings: { idleMilliseconds: 100 },
    });
    reflector.start();
    await until(() => reflector.store.get('ns/new') !== undefined);
    await until(() => server.openConnections <= 2);
    expect(watches[0]?.destroyed).toBe(true);
    await reflector.stop();
    await until(() => watches.every((watch) => watch.destroyed));
  });

  test('that is cut with its server goes on with exactly one watch when the server is back', async () => {
    let open = 0;
    const script: Script = (request, response) => {
      if (!isWatch(request)) {
        answer(response, 200, listOf(secret('a')));
        return;
      }
      open += 1;
      response.on('close', () => (open -= 1));
      response.writeHead(200).flushHeaders();
      response.write('{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"55"}}}\n');
    };
    const { server, client } = await setUp(script);
    const reflector = new KindReflector({ client, resource: secrets, runtime: hurried });
    reflector.start();
    await reflector.synced();
    await until(() => open === 1);
    const { port } = server;
    await server.stop();
    await until(() => open === 0 && reflector.state === 'Backoff');
    const again = await ScriptedServer.start(script, port);
    closers.push(() => again.stop());
    await until(() => open === 1 && reflector.state === 'Watching');
    expect(again.received.filter(isWatch)).toHaveLength(1);
    await reflector.stop();
    await until(() => open === 0);
  });
});
