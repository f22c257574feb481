/**
 * A worker as a process of its own, for tests that kill or stop it. Takes places and shards, and says each
 * second-hand fact as one JSON line: {"open":shard}, {"inFlight":n}, {"lost":n}.
 * Arguments: Redis URL, prefix, worker id, settings as JSON, engine address, how many places to want.
 */
import { systemClock } from '../../observability/clock.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { Place } from '../contract.ts';
import type { QueueSettings } from '../settings.ts';
import { createWorkerQueue } from '../worker-queue.ts';

const [redisUrl = '', prefix = '', workerId = '', settings = '{}', address = '', want = '0'] =
  process.argv.slice(2);
const queue = createWorkerQueue({
  redisUrl,
  prefix,
  workerId,
  clock: systemClock,
  logger: silentLogger,
  settings: JSON.parse(settings) as Partial<QueueSettings>,
});
const say = (fact: unknown): void => void process.stdout.write(`${JSON.stringify(fact)}\n`);

const held = new Set<Place>();
let lost = 0;
const pool = { address };
const fill = (): void => {
  queue.places.setWant(pool, Number(want));
  for (let place = queue.places.take([pool]); place !== undefined; place = queue.places.take([pool])) {
    const taken = place;
    held.add(taken);
    taken.signal.addEventListener('abort', () => {
      held.delete(taken);
      lost += 1;
      say({ lost });
    });
    say({ inFlight: held.size });
  }
};
if (Number(want) > 0) {
  queue.places.onFree(fill);
  setInterval(fill, 20);
}

queue.serveShards(async ({ shard }) => {
  say({ open: shard });
  // Holds its shards open for as long as it lives.
  await new Promise(() => undefined);
}, 4);
