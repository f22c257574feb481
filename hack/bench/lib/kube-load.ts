/** Thousands of objects on a real API server: kept connections, and one watch that says when something is seen. */
import { readFileSync } from 'node:fs';
import { Pool } from 'undici';
import type { Kube } from '../../stack/kube.ts';

export interface WatchedObject {
  metadata: { name: string; uid: string; generation: number; resourceVersion: string };
  spec: Record<string, unknown>;
  status?: Record<string, unknown>;
}

export class KubeLoad {
  readonly #pool: Pool;
  readonly #headers: Record<string, string>;

  constructor(kube: Pick<Kube, 'url' | 'caFile' | 'adminToken'>, connections: number) {
    this.#pool = new Pool(kube.url, {
      connections,
      connect: { ca: readFileSync(kube.caFile) },
      bodyTimeout: 0,
    });
    this.#headers = { authorization: `Bearer ${kube.adminToken}`, accept: 'application/json' };
  }

  /** @throws Error with the server's words unless it answers 2xx */
  async call(
    method: 'GET' | 'POST' | 'PATCH',
    path: string,
    body?: object,
    contentType = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json',
  ): Promise<unknown> {
    const answer = await this.#pool.request({
      ...{ method, path, headers: { ...this.#headers, 'content-type': contentType } },
      body: body === undefined ? null : JSON.stringify(body),
    });
    const text = await answer.body.text();
    if (answer.statusCode >= 300) throw new Error(`${method} ${path}: ${answer.statusCode} ${text}`);
    return JSON.parse(text);
  }

  /** Runs `each` for 0 … count − 1, as many at a time as there are connections. */
  async many(count: number, parallel: number, each: (index: number) => Promise<unknown>): Promise<void> {
    let next = 0;
    await Promise.all(
      Array.from({ length: parallel }, async () => {
        while (next < count) await each(next++);
      }),
    );
  }

  /** Calls back with every change from now on, until the signal ends. */
  async watch(
    collection: string,
    onObject: (object: WatchedObject) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { metadata } = (await this.call('GET', `${collection}?limit=1`)) as {
      metadata: { resourceVersion: string };
    };
    const path = `${collection}?watch=1&resourceVersion=${metadata.resourceVersion}&timeoutSeconds=3000`;
    const answer = await this.#pool.request({ method: 'GET', path, headers: this.#headers, signal });
    void (async () => {
      let rest = '';
      try {
        for await (const chunk of answer.body) {
          const lines = (rest + String(chunk)).split('\n');
          rest = lines.pop() ?? '';
          for (const line of lines) onObject((JSON.parse(line) as { object: WatchedObject }).object);
        }
      } catch (error) {
        if (!signal.aborted) throw error;
      }
    })();
  }

  close(): Promise<void> {
    return this.#pool.destroy();
  }
}
