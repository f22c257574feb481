/** Plain requests to an API server, for set-up and tests, so that they need no client library and share none of ours. */
import { readFileSync } from 'node:fs';
import { request } from 'node:https';

export interface KubeAnswer {
  status: number;
  body: unknown;
}

export type KubeRequest = (
  method: string,
  path: string,
  body?: object,
  contentType?: string,
) => Promise<KubeAnswer>;

/** Each request has a connection of its own: an API server that restarts leaves no broken pool behind. */
export function kubeRequester(server: { url: string; caFile: string; token: string }): KubeRequest {
  return (method, path, body, contentType = 'application/json') =>
    new Promise((resolve, reject) => {
      const outgoing = request(
        `${server.url}${path}`,
        {
          method,
          ca: readFileSync(server.caFile),
          agent: false,
          timeout: 10_000,
          headers: {
            authorization: `Bearer ${server.token}`,
            accept: 'application/json',
            ...(body === undefined ? {} : { 'content-type': contentType }),
          },
        },
        (answer) => {
          const chunks: Buffer[] = [];
          answer.on('data', (chunk: Buffer) => chunks.push(chunk));
          answer.on('error', reject);
          answer.on('end', () => {
            const text = Buffer.concat(chunks).toString('utf8');
            resolve({ status: answer.statusCode ?? 0, body: parsed(text) });
          });
        },
      );
      outgoing.on('timeout', () => outgoing.destroy(new Error('no answer within 10 s')));
      outgoing.on('error', reject);
      outgoing.end(body === undefined ? undefined : JSON.stringify(body));
    });
}

/** Health pages are plain text. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
