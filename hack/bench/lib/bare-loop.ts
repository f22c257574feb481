/**
 * Baseline of everything that sends: the bodies of a file, this many at a time, through undici and nothing else.
 * `node bare-loop.ts URL FILE IN_FLIGHT REQUESTS` prints one JSON object; a tenth of the requests warms up.
 */
import { readFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Agent, request } from 'undici';

export interface BareLoopResult {
  requests: number;
  cpuMillisecondsPerRequest: number;
  requestsPerSecond: number;
  eventLoopDelayP99Milliseconds: number;
  rssBytes: number;
}

const RESOLUTION_MILLISECONDS = 10;

const [url = '', file = '', inFlightText, requestsText] = process.argv.slice(2);
const [inFlight, requests] = [Number(inFlightText), Number(requestsText)];

const bodies = readFileSync(file, 'utf8')
  .trimEnd()
  .split('\n', 10_000)
  .map((line) => Buffer.from(JSON.stringify((JSON.parse(line) as { body: unknown }).body)));
const dispatcher = new Agent({ connections: inFlight, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });

let next = 0;
async function loop(until: number): Promise<void> {
  while (next < until) {
    const body = bodies[next++ % bodies.length]!;
    const answer = await request(`${url}/v1/chat/completions`, {
      ...{ method: 'POST', dispatcher, body },
      headers: { 'content-type': 'application/json' },
    });
    await answer.body.arrayBuffer();
    if (answer.statusCode !== 200) throw new Error(`the engine answered ${answer.statusCode}`);
  }
}
const loops = (until: number): Promise<void[]> =>
  Promise.all(Array.from({ length: inFlight }, () => loop(until)));

const warmUp = Math.max(inFlight, Math.floor(requests / 10));
await loops(warmUp);
const delay = monitorEventLoopDelay({ resolution: RESOLUTION_MILLISECONDS });
delay.enable();
const [cpuBefore, started] = [process.cpuUsage(), performance.now()];
await loops(warmUp + requests);
const cpu = process.cpuUsage(cpuBefore);
const result: BareLoopResult = {
  requests,
  cpuMillisecondsPerRequest: (cpu.user + cpu.system) / 1e3 / requests,
  requestsPerSecond: requests / ((performance.now() - started) / 1000),
  eventLoopDelayP99Milliseconds: Math.max(0, delay.percentile(99) / 1e6 - RESOLUTION_MILLISECONDS),
  rssBytes: process.memoryUsage.rss(),
};
console.log(JSON.stringify(result));
await dispatcher.close();
