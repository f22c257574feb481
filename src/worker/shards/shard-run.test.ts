import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { noUsage, type LineRecord, type Shard } from '../../batch/model.ts';
import type { EngineOutcome } from '../../engine/contract.ts';
import type { JobDescriptor, Place } from '../../queue/contract.ts';
import { type PendingLine, ShardRun } from './shard-run.ts';

const descriptor = {
  uid: 'uid-1',
  queue: 'serving.llama',
  retry: { maxAttempts: 2, initialBackoffSeconds: 0.005, maxBackoffSeconds: 0.01 },
  run: 'Run',
} as JobDescriptor;

const shard: Shard = { shard: 0, source: 0, offset: 0, length: 0, firstOrdinal: 0, lines: [] };
const ok: EngineOutcome = {
  kind: 'answer',
  status: 200,
  requestId: 'r',
  body: Buffer.from('{}'),
  contentType: 'application/json',
};
const lines = (count: number): PendingLine[] =>
  Array.from({ length: count }, (_, i) => ({
    position: i,
    ordinal: i,
    line: i + 1,
    customId: `c${i}`,
    bytes: Buffer.from('{}'),
    attempts: 0,
    busyAnswers: 0,
  }));

/** One run whose engine is played by the test: each call is answered by hand. */
class Bench {
  readonly calls: { line: PendingLine; signal: AbortSignal; answer: (outcome: EngineOutcome) => void }[] = [];
  readonly records: LineRecord[] = [];
  readonly holds: string[] = [];
  readonly busy: number[] = [];
  readonly attempts: [number, number][] = [];
  storeKeepsUp = true;
  released = 0;
  now = 0;
  readonly run: ShardRun;
  constructor(count: number, idleHandBackMilliseconds = 60_000) {
    this.run = new ShardRun(
      {
        send: ({ line, signal }) =>
          new Promise((resolve) => {
            signal.addEventListener('abort', () => resolve({ kind: 'aborted' }));
            this.calls.push({ line, signal, answer: resolve });
          }),
        record: (line) => ({
          ordinal: line.ordinal,
          line: line.line,
          outcome: 'completed',
          usage: noUsage(),
          bytes: Buffer.from('{}'),
        }),
        onHold: (_, address) => this.holds.push(address),
        onBusy: (_, milliseconds) => this.busy.push(milliseconds),
        onRecord: (record) => this.records.push(record),
        onRetry: () => undefined,
        onAttempt: ({ ordinal, attempts }) => this.attempts.push([ordinal, attempts]),
        mayStart: () => this.storeKeepsUp,
        wake: () => undefined,
        budget: { charge: () => undefined },
        clock: { now: () => this.now, monotonic: () => this.now },
        random: () => 0.5,
        settings: { idleHandBackMilliseconds, initialBusyMilliseconds: 5, maxBusyMilliseconds: 20 },
      },
      descriptor,
      shard,
      lines(count),
    );
  }
  place(): Place & { lose: () => void } {
    const lost = new AbortController();
    return { signal: lost.signal, release: () => (this.released += 1), lose: () => lost.abort() };
  }
  async ready(count: number): Promise<void> {
    while (this.run.ready < count) await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

describe('shard run', () => {
  let bench: Bench;
  beforeEach(() => {
    bench = new Bench(3);
  });
  afterEach(() => bench.run.close('Abort'));

  test('is complete when every line has its record', async () => {
    for (let i = 0; i < 3; i++) bench.run.start('a', bench.place());
    expect([bench.run.ready, bench.run.inFlight]).toEqual([0, 3]);
    for (const call of bench.calls) call.answer(ok);
    expect(await bench.run.ended).toBe('Complete');
    expect(bench.records.map(({ ordinal }) => ordinal).sort()).toEqual([0, 1, 2]);
    expect(bench.released).toBe(3);
  });

  test('a shard without lines to send is complete at once', async () => {
    expect(await new Bench(0).run.ended).toBe('Complete');
  });

  test('a place comes back on every way a call can end (llm-d-async#311)', async () => {
    const outcomes: EngineOutcome[] = [
      { kind: 'busy', status: 503, retryAfterMilliseconds: 1 },
      { kind: 'hold', scope: 'Replica', reason: 'ConnectionRefused', status: undefined, message: '' },
      { kind: 'fault', status: undefined, reason: 'ConnectionLost', message: '' },
      { kind: 'aborted' },
      ok,
    ];
    for (const [i, outcome] of outcomes.entries()) {
      await bench.ready(1);
      bench.run.start('a', bench.place());
      bench.calls[i]?.answer(outcome);
      while (bench.released < i + 1) await new Promise((resolve) => setImmediate(resolve));
    }
    expect(bench.run.inFlight).toBe(0);
    expect(bench.holds).toEqual(['a']);
  });

  test('close(Finish) lets calls in flight end and keeps their records, then hands back', async () => {
    bench.run.start('a', bench.place());
    bench.run.close('Finish');
    expect(bench.run.ready).toBe(0);
    bench.calls[0]?.answer(ok);
    expect(await bench.run.ended).toBe('HandedBack');
    expect(bench.records).toHaveLength(1);
  });

  test('close(Abort) ends the calls in flight at once; their lines stay without a record', async () => {
    bench.run.start('a', bench.place());
    bench.run.start('a', bench.place());
    bench.run.close('Abort');
    expect(await bench.run.ended).toBe('HandedBack');
    expect(bench.calls.every(({ signal }) => signal.aborted)).toBe(true);
    expect(bench.records).toHaveLength(0);
    expect(bench.released).toBe(2);
  });

  test('a lost place ends its call, and the line is sent again without having used an attempt', async () => {
    const place = bench.place();
    bench.run.start('a', place);
    place.lose();
    await bench.ready(3);
    expect(bench.calls[0]?.line.attempts).toBe(0);
  });

  test('a line whose engine keeps failing ends with a record after its attempts', async () => {
    const one = new Bench(1);
    for (let attempt = 0; attempt < 2; attempt++) {
      await one.ready(1);
      one.run.start('a', one.place());
      one.calls[attempt]?.answer({
        kind: 'fault',
        status: undefined,
        reason: 'ConnectionLost',
        message: 'gone',
      });
    }
    expect(await one.run.ended).toBe('Complete');
    expect(one.records).toHaveLength(1);
    expect(one.attempts).toEqual([[0, 1]]);
  });

  test('nothing may be sent while finished records do not find their way to the store', () => {
    bench.storeKeepsUp = false;
    expect(bench.run.ready).toBe(0);
    bench.storeKeepsUp = true;
    expect(bench.run.ready).toBe(3);
  });

  test('a busy answer pauses the replica as long as it asked', async () => {
    bench.run.start('a', bench.place());
    bench.calls[0]?.answer({ kind: 'busy', status: 429, retryAfterMilliseconds: 7 });
    await bench.ready(3);
    expect(bench.busy).toEqual([7]);
  });

  test('hands itself back when no line could be started for a while, but not while one is in flight', async () => {
    const idle = new Bench(2, 40);
    idle.run.start('a', idle.place());
    idle.now = 1_000;
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(idle.run.inFlight).toBe(1);
    idle.calls[0]?.answer(ok);
    while (idle.records.length === 0) await new Promise((resolve) => setImmediate(resolve));
    idle.now = 2_000;
    expect(await idle.run.ended).toBe('HandedBack');
  });
});
