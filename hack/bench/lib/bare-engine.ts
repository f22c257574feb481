/**
 * The least that can be taken for an inference server, so that its own work stays out of the measurement:
 * `node bare-engine.ts PORT DELAY_MILLISECONDS ANSWER_BYTES` answers every POST with the same chat completion.
 */
import { createServer } from 'node:http';
import { BENCH_MODEL } from './corpus.ts';

const [port = 0, delayMilliseconds = 0, answerBytes = 0] = process.argv.slice(2).map(Number);

const completion = (content: string): string =>
  JSON.stringify({
    ...{ id: 'chatcmpl-0', object: 'chat.completion', created: 1, model: BENCH_MODEL },
    choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
    usage: { prompt_tokens: 200, completion_tokens: 50, total_tokens: 250 },
  });
const answer = Buffer.from(completion('a'.repeat(Math.max(0, answerBytes - completion('').length))));
const models = Buffer.from(JSON.stringify({ object: 'list', data: [{ id: BENCH_MODEL, object: 'model' }] }));

const server = createServer((request, response) => {
  request.resume();
  request.once('end', () => {
    const body = request.method === 'POST' ? answer : models;
    const end = (): void => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
      response.end(body);
    };
    if (request.method === 'POST' && delayMilliseconds > 0) setTimeout(end, delayMilliseconds);
    else end();
  });
});
server.keepAliveTimeout = 75_000;
server.listen(port, '127.0.0.1', 2_048);
