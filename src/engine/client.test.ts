import { afterEach, describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { systemClock } from '../observability/clock.ts';
import { createEngineClient, type EngineCall, type EngineClientOptions } from './client.ts';
import type { EngineClient, EngineRequest } from './contract.ts';

const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

/** A server that says exactly the bytes we want: `script` is called with the n-th request (from 1) of the n-th socket. */
async function scripted(
  script: (socket: Socket, request: string, nth: { socket: number; request: number }) => void,
) {
  const sockets = new Set<Socket>();
  const requests: string[] = [];
  let opened = 0;
  const server: Server = createServer((socket) => {
    const number = ++opened;
    let onThis = 0;
    let buffered = '';
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      buffered += chunk.toString('latin1');
      const head = buffered.indexOf('\r\n\r\n');
      const length = Number(/content-length: (\d+)/i.exec(buffered)?.[1] ?? 0);
      if (head < 0 || buffered.length < head + 4 + length) return;
      const request = buffered.slice(0, head + 4 + length);
      buffered = buffered.slice(head + 4 + length);
      requests.push(request);
      script(socket, request, { socket: number, request: ++onThis });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  ends.push(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address() as AddressInfo;
  return { address: `http://127.0.0.1:${port}`, requests, sockets, server, opened: () => opened };
}

function client(options: Partial<EngineClientOptions> = {}): EngineClient {
  const made = createEngineClient({ clock: systemClock, allowLoopback: true, ...options });
  ends.push(() => made.close());
  return made;
}

const request = (address: string, more: Partial<EngineRequest> = {}): EngineRequest => ({
  address,
  path: '/v1/chat/completions',
  body: [Buffer.from('{"model":"m"}')],
  requestId: 'request-1',
  timeoutMilliseconds: 5_000,
  signal: new AbortController().signal,
  ...more,
});

const http = (status: number, body: string, headers: Record<string, string> = {}): string => {
  const all = {
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    ...headers,
  };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} X\r\n${lines.join('')}\r\n${body}`;
};

const GOOD = '{"id":"1","choices":[]}';

describe('every way an exchange can end is a value', () => {
  const NOT_FOUND_MODEL =
    '{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}';
  const NOT_FOUND_RESPONSE =
    '{"error":{"message":"Response with id \'r\' not found.","type":"invalid_request_error","param":"response_id","code":404}}';

  test.each<[string, (socket: Socket) => unknown, object]>([
    [
      '200 with an object',
      (s) => s.end(http(200, GOOD)),
      { kind: 'answer', status: 200, requestId: 'request-1' },
    ],
    ['201 with an object', (s) => s.end(http(201, GOOD)), { kind: 'answer', status: 201 }],
    ['200 with `error: null`', (s) => s.end(http(200, '{"error":null,"output":[]}')), { kind: 'answer' }],
    [
      'its own request id',
      (s) => s.end(http(200, GOOD, { 'x-request-id': 'theirs' })),
      { requestId: 'theirs' },
    ],
    [
      '103 Early Hints first',
      (s) => s.end(`HTTP/1.1 103 Early Hints\r\n\r\n${http(200, GOOD)}`),
      { kind: 'answer', status: 200 },
    ],
    [
      '400 with an error (R22)',
      (s) => s.end(http(400, '{"error":{"message":"bad"}}')),
      { kind: 'answer', status: 400 },
    ],
    ['422 with JSON (R22)', (s) => s.end(http(422, '{"detail":[]}')), { kind: 'answer', status: 422 }],
    ['413 with text', (s) => s.end(http(413, 'too big')), { kind: 'answer', status: 413 }],
    ['403 without a body, key fine (case 31)', (s) => s.end(http(403, '')), { kind: 'answer', status: 403 }],
    [
      '404 about something the line names',
      (s) => s.end(http(404, NOT_FOUND_RESPONSE)),
      { kind: 'answer', status: 404 },
    ],
    [
      '401',
      (s) => s.end(http(401, '{"error":"Unauthorized"}')),
      { kind: 'hold', reason: 'Unauthorized', scope: 'Deployment' },
    ],
    [
      '404 for the route',
      (s) => s.end(http(404, '{"detail":"Not Found"}')),
      { kind: 'hold', reason: 'RouteNotFound' },
    ],
    [
      '404 as a page of a proxy',
      (s) => s.end(http(404, '<html>404 Not Found</html>')),
      { kind: 'hold', reason: 'RouteNotFound' },
    ],
    [
      '404 for the url as OpenAI says it',
      (s) => s.end(http(404, '{"error":{"message":"Invalid URL (POST /v1/x)"}}')),
      { kind: 'hold', reason: 'RouteNotFound' },
    ],
    [
      '404 for the model',
      (s) => s.end(http(404, NOT_FOUND_MODEL)),
      { kind: 'hold', reason: 'ModelNotFound', scope: 'Replica' },
    ],
    [
      '404 for the model, flat as older vLLM',
      (s) => s.end(http(404, '{"object":"error","message":"The model `m` does not exist.","code":404}')),
      { kind: 'hold', reason: 'ModelNotFound' },
    ],
    [
      '404 for the model by code',
      (s) => s.end(http(404, '{"error":{"message":"no","code":"model_not_found"}}')),
      { kind: 'hold', reason: 'ModelNotFound' },
    ],
    [
      'a redirect',
      (s) => s.end(http(308, '', { location: 'https://other/' })),
      { kind: 'hold', reason: 'RouteNotFound' },
    ],
    [
      '429 with seconds (case 52)',
      (s) => s.end(http(429, '{}', { 'retry-after': '60' })),
      { kind: 'busy', status: 429, retryAfterMilliseconds: 60_000 },
    ],
    [
      '503 without',
      (s) => s.end(http(503, 'x')),
      { kind: 'busy', status: 503, retryAfterMilliseconds: undefined },
    ],
    [
      '429 for an hour',
      (s) => s.end(http(429, '', { 'retry-after': '3600' })),
      { kind: 'busy', retryAfterMilliseconds: 120_000 },
    ],
    [
      '500',
      (s) => s.end(http(500, '{"error":{"message":"boom"}}')),
      {
        kind: 'fault',
        reason: 'ServerError',
        status: 500,
        message: expect.stringContaining('boom') as unknown,
      },
    ],
    [
      '502 of a proxy',
      (s) => s.end(http(502, '<html>')),
      { kind: 'fault', reason: 'ServerError', status: 502 },
    ],
    ['504 of a proxy', (s) => s.end(http(504, '')), { kind: 'fault', reason: 'ServerError', status: 504 }],
    [
      '200 with an error inside',
      (s) => s.end(http(200, '{"error":{"message":"worker died"}}')),
      {
        kind: 'fault',
        reason: 'ErrorInAnswer',
        status: 200,
        message: expect.stringContaining('worker died') as unknown,
      },
    ],
    [
      '200 with an error whose name is escaped',
      (s) => s.end(http(200, '{"\\u0065rror":{"message":"x"}}')),
      { kind: 'fault', reason: 'ErrorInAnswer' },
    ],
    [
      '200 with a stream that holds an error (case 32)',
      (s) => s.end(http(200, 'data: {"error":{"message":"x"}}\n\n', { 'content-type': 'text/event-stream' })),
      { kind: 'fault', reason: 'InvalidAnswer' },
    ],
    ['200 with a list', (s) => s.end(http(200, '[1]')), { kind: 'fault', reason: 'InvalidAnswer' }],
    ['200 with two objects', (s) => s.end(http(200, '{}{}')), { kind: 'fault', reason: 'InvalidAnswer' }],
    ['200 with nothing', (s) => s.end(http(200, '')), { kind: 'fault', reason: 'InvalidAnswer' }],
    ['204', (s) => s.end('HTTP/1.1 204 No Content\r\n\r\n'), { kind: 'fault', reason: 'InvalidAnswer' }],
    [
      '200 with half an object and a close',
      (s) => s.end('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"id":'),
      { kind: 'fault', reason: 'ConnectionLost' },
    ],
    [
      'half an object without a length',
      (s) => s.end('HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"id":'),
      { kind: 'fault', reason: 'InvalidAnswer' },
    ],
    [
      'a reset in the middle of the body',
      (s) =>
        s.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"id":', () =>
          setTimeout(() => s.resetAndDestroy(), 20),
        ),
      { kind: 'fault', reason: 'ConnectionLost' },
    ],
    ['a reset before the answer', (s) => s.resetAndDestroy(), { kind: 'fault', reason: 'ConnectionLost' }],
    ['a close before the answer', (s) => s.end(), { kind: 'fault', reason: 'ConnectionLost' }],
    ['half a status line', (s) => s.end('HTTP/1.1 2'), { kind: 'fault' }],
    [
      'something that is not HTTP',
      (s) => s.end('SSH-2.0-OpenSSH\r\n'),
      { kind: 'fault', reason: 'InvalidAnswer' },
    ],
    [
      'chunks with a wrong length',
      (s) => s.end('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n'),
      { kind: 'fault', reason: 'InvalidAnswer' },
    ],
    [
      'chunks that stop',
      (s) => s.end('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n'),
      { kind: 'fault', reason: 'ConnectionLost' },
    ],
    [
      'headers that come in pieces',
      (s) => {
        const bytes = http(200, GOOD);
        for (let at = 0; at < bytes.length; at += 7) {
          setTimeout(() => s.write(bytes.slice(at, at + 7)), at);
        }
      },
      { kind: 'answer', status: 200 },
    ],
    [
      'an object in good chunks',
      (s) => s.end('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n'),
      { kind: 'answer' },
    ],
    [
      'headers without end',
      (s) => s.write(`HTTP/1.1 200 OK\r\n${'a: bbbbbbbbbbbbbbbb\r\n'.repeat(5_000)}`),
      { kind: 'fault', reason: 'InvalidAnswer' },
    ],
    [
      'nothing at all, as from a half-open connection (case 45)',
      () => undefined,
      { kind: 'fault', reason: 'Timeout' },
    ],
    [
      'headers and then nothing',
      (s) => s.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{'),
      { kind: 'fault', reason: 'Timeout' },
    ],
  ])('%s', async (_name, say, expected) => {
    const engine = await scripted((socket, text) => {
      if (text.startsWith('GET')) socket.end(http(200, '{"data":[]}'));
      else say(socket);
    });
    // Only those that never end wait for their deadline.
    const timeoutMilliseconds = 'reason' in expected && expected.reason === 'Timeout' ? 100 : 30_000;
    const outcome = await client().send(request(engine.address, { timeoutMilliseconds }));
    expect(outcome).toMatchObject(expected);
  });

  test('403 to the key itself holds the deployment', async () => {
    const engine = await scripted((socket) =>
      socket.end(http(403, '{"error":{"message":"key is disabled"}}')),
    );
    expect(await client().send(request(engine.address))).toMatchObject({
      kind: 'hold',
      reason: 'Unauthorized',
      status: 403,
    });
  });

  test('a refused connection is a hold of the replica', async () => {
    const engine = await scripted(() => undefined);
    await new Promise((resolve) => engine.server.close(resolve));
    expect(await client().send(request(engine.address))).toMatchObject({
      kind: 'hold',
      scope: 'Replica',
      reason: 'ConnectionRefused',
      message: expect.stringContaining('ECONNREFUSED') as unknown,
    });
  });

  test('a name that does not resolve is a hold of the replica', async () => {
    const lookup: EngineClientOptions['lookup'] = (_host, _options, done) =>
      done(Object.assign(new Error('getaddrinfo ENOTFOUND engine'), { code: 'ENOTFOUND' }), '');
    expect(await client({ lookup }).send(request('http://engine:8000'))).toMatchObject({
      kind: 'hold',
      reason: 'ConnectionRefused',
      message: expect.stringContaining('ENOTFOUND') as unknown,
    });
  });

  test('a connection that never opens is a hold, not an attempt', async () => {
    const lookup: EngineClientOptions['lookup'] = () => undefined;
    const outcome = await client({ lookup }).send(request('http://engine:8000', { timeoutMilliseconds: 50 }));
    expect(outcome).toMatchObject({ kind: 'hold', reason: 'ConnectionRefused' });
  });

  test('an answer over the limit is an answer marked as too large, and its socket is closed', async () => {
    const engine = await scripted((socket) => {
      socket.write('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n');
      const more = () => {
        while (!socket.destroyed && socket.write(`1000\r\n${'x'.repeat(4_096)}\r\n`));
      };
      socket.on('drain', more);
      more();
    });
    const closed = new Promise((resolve) =>
      engine.server.once('connection', (socket) => socket.once('close', resolve)),
    );
    const outcome = await client({ settings: { maxAnswerBytes: 10_000 } }).send(request(engine.address));
    expect(outcome).toMatchObject({ kind: 'answer', status: 200, tooLarge: true });
    await closed;
  });

  test('a key that cannot stand in a header is a hold that does not show it', async () => {
    const engine = await scripted((socket) => socket.end(http(200, GOOD)));
    const outcome = await client().send(request(engine.address, { apiKey: 'geheim\nX: y' }));
    expect(outcome).toMatchObject({ kind: 'hold', reason: 'Unauthorized' });
    expect(JSON.stringify(outcome)).not.toContain('geheim');
  });

  test('requests that cannot even be written leave the pool usable', async () => {
    const engine = await scripted((socket) => socket.write(http(200, GOOD)));
    const one = client({ settings: { maxConnecting: 1 } });
    for (let i = 0; i < 3; i++) await one.send(request(engine.address, { apiKey: '\n' }));
    expect(await one.send(request(engine.address))).toMatchObject({ kind: 'answer' });
  });
});

describe('what is sent', () => {
  test('path, key, id and the parts of the body as they are', async () => {
    const engine = await scripted((socket) => socket.write(http(200, GOOD)));
    const parts = ['{"model":', '"m"', ',"é":1}'].map((part) => Buffer.from(part));
    await client().send(request(`${engine.address}/base/v1/`, { body: parts, apiKey: 'k' }));
    const [sent = ''] = engine.requests;
    expect(sent).toMatch(/^POST \/base\/v1\/chat\/completions HTTP\/1\.1\r\n/);
    expect(sent).toContain('authorization: Bearer k\r\n');
    expect(sent).toContain('x-request-id: request-1\r\n');
    expect(Buffer.from(sent, 'latin1').toString()).toMatch(/\r\n\r\n\{"model":"m","é":1\}$/);
  });

  test('a body of many megabytes in parts', async () => {
    const engine = await scripted((socket) => socket.write(http(200, GOOD)));
    const parts = [Buffer.alloc(3_000_000, 'a'), Buffer.alloc(1, 'b'), Buffer.alloc(2_000_000, 'c')];
    expect(await client().send(request(engine.address, { body: parts }))).toMatchObject({ kind: 'answer' });
    expect(engine.requests[0]?.endsWith(`ab${'c'.repeat(2_000_000)}`)).toBe(true);
  });
});

describe('abort', () => {
  test('closes the socket, so that the engine stops (case 60)', async () => {
    let arrived = (): void => undefined;
    const sent = new Promise<void>((resolve) => (arrived = resolve));
    let closed = (): void => undefined;
    const gone = new Promise<void>((resolve) => (closed = resolve));
    const engine = await scripted((socket) => {
      socket.once('close', closed);
      arrived();
    });
    const controller = new AbortController();
    const outcome = client().send(request(engine.address, { signal: controller.signal }));
    await sent;
    controller.abort();
    expect(await outcome).toEqual({ kind: 'aborted' });
    await gone;
  });

  test('before it is sent, nothing is sent', async () => {
    const engine = await scripted((socket) => socket.end(http(200, GOOD)));
    expect(await client().send(request(engine.address, { signal: AbortSignal.abort() }))).toEqual({
      kind: 'aborted',
    });
    expect(engine.requests).toEqual([]);
  });

  test('while the connection opens, and while waiting for a free connection', async () => {
    const lookup: EngineClientOptions['lookup'] = () => undefined;
    const engine = client({ lookup, settings: { maxConnections: 1 } });
    const controller = new AbortController();
    const outcomes = [1, 2, 3].map(() =>
      engine.send(request('http://engine:8000', { signal: controller.signal })),
    );
    controller.abort();
    expect(await Promise.all(outcomes)).toEqual([
      { kind: 'aborted' },
      { kind: 'aborted' },
      { kind: 'aborted' },
    ]);
  });

  test('leaves the connections usable', async () => {
    const engine = await scripted((socket, text) => {
      if (!text.includes('slow')) socket.write(http(200, GOOD));
    });
    const one = client({ settings: { maxConnections: 1 } });
    const controller = new AbortController();
    const slow = one.send(
      request(engine.address, { body: [Buffer.from('slow')], signal: controller.signal }),
    );
    const waiting = one.send(request(engine.address));
    controller.abort();
    expect(await slow).toEqual({ kind: 'aborted' });
    expect(await waiting).toMatchObject({ kind: 'answer' });
  });

  test('close ends what is in flight', async () => {
    const engine = await scripted(() => undefined);
    const one = client();
    const outcome = one.send(request(engine.address));
    while (engine.requests.length === 0) await new Promise((resolve) => setImmediate(resolve));
    await one.close();
    expect(await outcome).toEqual({ kind: 'aborted' });
  });
});

describe('the keep-alive race', () => {
  test('a kept socket that was closed by the other side is replaced once, unseen', async () => {
    const calls: EngineCall[] = [];
    const engine = await scripted((socket, _text, nth) => {
      if (nth.socket === 1 && nth.request === 2) socket.resetAndDestroy();
      else socket.write(http(200, GOOD));
    });
    const one = client({ onCall: (call) => calls.push(call) });
    expect(await one.send(request(engine.address))).toMatchObject({ kind: 'answer' });
    expect(await one.send(request(engine.address))).toMatchObject({ kind: 'answer' });
    expect(calls.map(({ retried }) => retried)).toEqual([false, true]);
    expect(engine.opened()).toBe(2);
  });

  test('it is tried again once only', async () => {
    const engine = await scripted((socket, _text, nth) => {
      if (nth.socket === 1 && nth.request === 1) socket.write(http(200, GOOD));
      else socket.resetAndDestroy();
    });
    const one = client();
    await one.send(request(engine.address));
    expect(await one.send(request(engine.address))).toMatchObject({
      kind: 'fault',
      reason: 'ConnectionLost',
    });
    expect(engine.requests).toHaveLength(3);
  });

  test('not after a byte of the answer', async () => {
    const engine = await scripted((socket, _text, nth) => {
      if (nth.request === 1) socket.write(http(200, GOOD));
      else socket.end('HTTP/1.1');
    });
    const one = client();
    await one.send(request(engine.address));
    expect(await one.send(request(engine.address))).toMatchObject({ kind: 'fault' });
    expect(engine.requests).toHaveLength(2);
  });

  test('not when the engine worked on it for a while: that is a crash', async () => {
    const engine = await scripted((socket, _text, nth) => {
      if (nth.request === 1) socket.write(http(200, GOOD));
      else setTimeout(() => socket.resetAndDestroy(), 60);
    });
    const one = client({ settings: { keepAliveRaceMilliseconds: 30 } });
    await one.send(request(engine.address));
    expect(await one.send(request(engine.address))).toMatchObject({
      kind: 'fault',
      reason: 'ConnectionLost',
    });
    expect(engine.requests).toHaveLength(2);
  });

  test('a line that kills its engine on a kept socket costs an attempt, though the second try was refused', async () => {
    const engine = await scripted((socket, _text, nth) => {
      if (nth.request === 1) return void socket.write(http(200, GOOD));
      engine.server.close();
      for (const each of engine.sockets) each.resetAndDestroy();
    });
    const one = client();
    await one.send(request(engine.address));
    expect(await one.send(request(engine.address))).toMatchObject({
      kind: 'fault',
      reason: 'ConnectionLost',
    });
  });
});

describe('connections', () => {
  test('are kept and used again', async () => {
    const engine = await scripted((socket) => socket.write(http(200, GOOD)));
    const one = client();
    for (let i = 0; i < 10; i++) await one.send(request(engine.address));
    expect(engine.opened()).toBe(1);
  });

  test('never exceed the bound, and all requests are served', async () => {
    let open = 0;
    let most = 0;
    const engine = await scripted((socket) => {
      most = Math.max(most, ++open);
      setImmediate(() => {
        open--;
        socket.write(http(200, GOOD));
      });
    });
    const one = client({ settings: { maxConnections: 7, maxConnecting: 2 } });
    const outcomes = await Promise.all(Array.from({ length: 200 }, () => one.send(request(engine.address))));
    expect(outcomes.every(({ kind }) => kind === 'answer')).toBe(true);
    expect(most).toBeLessThanOrEqual(7);
    expect(engine.opened()).toBeLessThanOrEqual(7);
  });

  test('all waiting requests end when the replica refuses', async () => {
    const engine = await scripted(() => undefined);
    await new Promise((resolve) => engine.server.close(resolve));
    const one = client({ settings: { maxConnections: 3, maxConnecting: 1 } });
    const outcomes = await Promise.all(Array.from({ length: 50 }, () => one.send(request(engine.address))));
    expect(outcomes.every(({ kind }) => kind === 'hold')).toBe(true);
  });

  test('all waiting requests end at once when an address swallows packets', async () => {
    let asked = 0;
    const lookup: EngineClientOptions['lookup'] = (_host, _options, done) => {
      if (++asked === 1)
        setTimeout(() => done(Object.assign(new Error('gone'), { code: 'EHOSTUNREACH' }), ''), 20);
    };
    const one = client({ lookup, settings: { maxConnections: 100, maxConnecting: 1 } });
    const outcomes = await Promise.all(
      Array.from({ length: 50 }, () => one.send(request('http://engine:8000'))),
    );
    expect(outcomes.every(({ kind }) => kind === 'hold')).toBe(true);
    expect(asked).toBe(1);
  });

  test('of a replica that is gone are closed when their request is done', async () => {
    let answer = (): void => undefined;
    const engine = await scripted((socket) => {
      answer = () => socket.write(http(200, GOOD));
    });
    const one = client();
    const outcome = one.send(request(engine.address));
    while (engine.requests.length === 0) await new Promise((resolve) => setImmediate(resolve));
    const [socket] = engine.sockets;
    const closed = once(socket as Socket, 'close');
    one.retain(new Set());
    answer();
    expect(await outcome).toMatchObject({ kind: 'answer' });
    await closed;
  });
});

describe('addresses that Tidegate never talks to', () => {
  const answering: EngineClientOptions['lookup'] = (_host, _options, done) =>
    done(null, [{ address: '169.254.169.254', family: 4 }]);

  test.each<[string, string, Partial<EngineClientOptions>, string]>([
    ['a literal metadata address', 'http://169.254.169.254', {}, 'link-local'],
    ['one in disguise', 'http://0xa9fea9fe', {}, 'link-local'],
    ['a name that resolves to one', 'http://engine:8000', { lookup: answering }, 'link-local'],
    ['loopback without the flag', 'http://127.0.0.1:1', { allowLoopback: false }, '--allow-loopback'],
    ['localhost without the flag', 'http://localhost:1', { allowLoopback: false }, '--allow-loopback'],
    ['no url', 'engine:8000', {}, 'http://'],
  ])('%s', async (_name, address, options, words) => {
    const outcome = await client(options).send(request(address));
    expect(outcome).toMatchObject({
      kind: 'hold',
      reason: 'ConnectionRefused',
      message: expect.stringContaining(words) as unknown,
    });
  });
});

describe('a probe', () => {
  test.each<[string, string, object]>([
    ['the model is served', http(200, '{"data":[{"id":"m"}]}'), { ok: true }],
    ['there is no list of models', http(404, '{"detail":"Not Found"}'), { ok: true }],
    [
      'another model is served',
      http(200, '{"data":[{"id":"other"}]}'),
      { ok: false, reason: 'ModelNotFound' },
    ],
    ['the key is wrong', http(401, '{}'), { ok: false, reason: 'Unauthorized' }],
    ['it is still loading', http(503, ''), { ok: false, reason: 'NotReady' }],
  ])('%s', async (_name, bytes, expected) => {
    const engine = await scripted((socket) => socket.end(bytes));
    expect(await client().probe(engine.address, 'k', 'm', new AbortController().signal)).toMatchObject(
      expected,
    );
    expect(engine.requests[0]).toMatch(/^GET \/v1\/models HTTP/);
    expect(engine.requests[0]).toContain('authorization: Bearer k');
  });

  test('says when nobody is there, and when the address is not allowed', async () => {
    const engine = await scripted(() => undefined);
    await new Promise((resolve) => engine.server.close(resolve));
    const signal = new AbortController().signal;
    expect(await client().probe(engine.address, undefined, 'm', signal)).toMatchObject({
      ok: false,
      reason: 'ConnectionRefused',
    });
    expect(await client().probe('http://169.254.169.254', undefined, 'm', signal)).toMatchObject({
      ok: false,
    });
  });
});

test('each call is told once, with how it ended', async () => {
  const calls: EngineCall[] = [];
  const engine = await scripted((socket) => socket.write(http(429, '{}')));
  await client({ onCall: (call) => calls.push(call) }).send(request(engine.address));
  expect(calls).toEqual([
    {
      address: engine.address,
      path: '/v1/chat/completions',
      outcome: 'busy',
      status: 429,
      durationMilliseconds: expect.any(Number) as unknown,
      retried: false,
    },
  ]);
});
