import { describe, expect, test } from '@jest/globals';
import * as fc from 'fast-check';
import { Scheduler, type Arrival, type SchedulerLimits, type Sequence, type Step } from './scheduler.ts';

const limits = (more: Partial<SchedulerLimits> = {}): SchedulerLimits => ({
  maxNumBatchedTokens: 64,
  maxNumSeqs: 4,
  kvTokens: 1_024,
  blockSize: 16,
  policy: 'priority',
  ...more,
});

let ids = 0;
const arrival = (promptTokens: number, outputTokens: number, more: Partial<Arrival> = {}): Arrival => ({
  id: ++ids,
  promptTokens,
  outputTokens,
  // Different texts, so that nothing is found in the prefix cache by chance.
  promptText: `${ids}`.padEnd(promptTokens * 4, `${ids} `),
  priority: 0,
  ...more,
});

const shape = (step: Step | undefined) => step?.chunks.map(({ sequence, tokens }) => [sequence.id, tokens]);

function runAll(scheduler: Scheduler, from = 0, most = 100_000): { now: number; finished: Sequence[] } {
  let now = from;
  const finished: Sequence[] = [];
  for (let steps = 0; steps < most; steps++) {
    const step = scheduler.next(now);
    if (step === undefined) break;
    finished.push(...scheduler.complete(step, ++now).finished);
  }
  return { now, finished };
}

describe('the order of a step', () => {
  test('a prompt longer than the budget is computed in chunks, then one token a step', () => {
    const scheduler = new Scheduler(limits());
    const a = scheduler.add(arrival(100, 3), 0);
    const sizes: (number | undefined)[] = [];
    for (let now = 0, step = scheduler.next(now); step !== undefined; step = scheduler.next(now)) {
      sizes.push(step.tokens);
      scheduler.complete(step, ++now);
    }
    expect(sizes).toEqual([64, 36, 1, 1]);
    expect(a).toMatchObject({ generated: 3, firstTokenAt: 2, lastTokenAt: 4 });
  });

  test('running requests come first, and a waiting prompt gets what is left of the budget', () => {
    const scheduler = new Scheduler(limits());
    const a = scheduler.add(arrival(10, 5), 0);
    scheduler.complete(scheduler.next(0)!, 1);
    const b = scheduler.add(arrival(200, 5), 1);
    expect(shape(scheduler.next(1))).toEqual([
      [a.id, 1],
      [b.id, 63],
    ]);
  });

  test('the waiting go by priority, then by arrival', () => {
    const scheduler = new Scheduler(limits({ maxNumSeqs: 3 }));
    const late = scheduler.add(arrival(10, 1, { priority: 100 }), 0);
    const first = scheduler.add(arrival(10, 1), 1);
    const second = scheduler.add(arrival(10, 1), 2);
    expect(shape(scheduler.next(2))?.map(([id]) => id)).toEqual([first.id, second.id, late.id]);
  });

  test('first come first served ignores priority, as vLLM silently does', () => {
    const scheduler = new Scheduler(limits({ policy: 'fcfs' }));
    const first = scheduler.add(arrival(10, 1, { priority: 100 }), 0);
    const second = scheduler.add(arrival(10, 1), 1);
    expect(shape(scheduler.next(2))?.map(([id]) => id)).toEqual([first.id, second.id]);
  });

  test('an urgent waiting request does not take the place of a running one (vllm#40004)', () => {
    const scheduler = new Scheduler(limits({ maxNumSeqs: 1 }));
    const slow = scheduler.add(arrival(10, 50, { priority: 100 }), 0);
    scheduler.complete(scheduler.next(0)!, 1);
    scheduler.add(arrival(10, 1), 1);
    expect(shape(scheduler.next(1))).toEqual([[slow.id, 1]]);
    expect(scheduler.waiting).toBe(1);
  });

  test('a head of the line that does not fit blocks smaller ones behind it', () => {
    const scheduler = new Scheduler(limits({ kvTokens: 128, maxNumBatchedTokens: 512 }));
    const running = scheduler.add(arrival(60, 30), 0);
    scheduler.complete(scheduler.next(0)!, 1);
    scheduler.add(arrival(100, 1), 1);
    scheduler.add(arrival(5, 1), 2);
    expect(shape(scheduler.next(2))).toEqual([[running.id, 1]]);
  });
});

describe('when the KV cache is full', () => {
  test('the last in order of priority and arrival is computed again from zero', () => {
    const scheduler = new Scheduler(limits({ kvTokens: 64, maxNumBatchedTokens: 512 }));
    const batch = scheduler.add(arrival(30, 20, { priority: 100 }), 0);
    const sync = scheduler.add(arrival(30, 20), 1);
    const { finished } = runAll(scheduler);
    expect(finished.map(({ id }) => id)).toEqual([sync.id, batch.id]);
    expect(sync.preemptions).toBe(0);
    expect(batch).toMatchObject({ generated: 20 });
    expect(batch.preemptions).toBeGreaterThan(0);
  });

  test('first come first served preempts who came last', () => {
    const scheduler = new Scheduler(limits({ kvTokens: 64, maxNumBatchedTokens: 512, policy: 'fcfs' }));
    const first = scheduler.add(arrival(30, 20, { priority: 100 }), 0);
    const second = scheduler.add(arrival(30, 20), 1);
    runAll(scheduler);
    expect([first.preemptions, second.preemptions]).toEqual([0, 1]);
  });
});

describe('abort', () => {
  test('frees place and blocks before the next step, and what was being computed counts for nothing', () => {
    const scheduler = new Scheduler(limits({ maxNumSeqs: 1 }));
    const a = scheduler.add(arrival(100, 5), 0);
    const b = scheduler.add(arrival(10, 1), 0);
    const step = scheduler.next(0)!;
    expect(scheduler.abort(a)).toBe(true);
    expect(scheduler.kvUsage).toBe(0);
    expect(scheduler.complete(step, 1)).toEqual({ prefilled: [], tokens: [], finished: [] });
    expect(shape(scheduler.next(1))).toEqual([[b.id, 10]]);
  });

  test('of a waiting request, and of one that is not there any more', () => {
    const scheduler = new Scheduler(limits());
    const a = scheduler.add(arrival(10, 1), 0);
    expect([scheduler.abort(a), scheduler.abort(a), scheduler.idle]).toEqual([true, false, true]);
  });
});

describe('the prefix cache', () => {
  const promptText = 'the same beginning of a prompt '.repeat(20);
  const promptTokens = promptText.length / 4;

  test('saves the whole blocks of a prompt that was computed before', () => {
    const scheduler = new Scheduler(limits({ maxNumBatchedTokens: 1_024 }));
    scheduler.add(arrival(promptTokens, 1, { promptText }), 0);
    runAll(scheduler);
    const again = scheduler.add(arrival(promptTokens, 1, { promptText }), 10);
    expect(scheduler.next(10)?.tokens).toBe(promptTokens - Math.floor(promptTokens / 16) * 16);
    expect(again.cached).toBe(Math.floor(promptTokens / 16) * 16);
  });

  test('always leaves something to compute', () => {
    const scheduler = new Scheduler(limits({ maxNumBatchedTokens: 1_024 }));
    const whole = promptText.slice(0, 64 * 4);
    for (let i = 0; i < 2; i++) scheduler.add(arrival(64, 1, { promptText: whole }), i);
    scheduler.add(arrival(64, 1, { promptText: whole }), 0);
    runAll(scheduler);
    const again = scheduler.add(arrival(64, 1, { promptText: whole }), 10);
    expect(scheduler.next(10)?.tokens).toBe(16);
    expect(again.cached).toBe(48);
  });

  test('gives its blocks to running requests, the oldest first', () => {
    const scheduler = new Scheduler(limits({ maxNumBatchedTokens: 2_048, kvTokens: 256 }));
    scheduler.add(arrival(promptTokens, 1, { promptText }), 0);
    runAll(scheduler);
    scheduler.add(arrival(200, 1), 5);
    runAll(scheduler, 5);
    const again = scheduler.add(arrival(promptTokens, 1, { promptText }), 10);
    scheduler.next(10);
    expect(again.cached).toBeLessThan(Math.floor(promptTokens / 16) * 16);
  });
});

const must = (holds: boolean, what: string): void => {
  if (!holds) throw new Error(`violated: ${what}`);
};

describe('whatever arrives and is aborted', () => {
  const load = fc.array(
    fc.record({
      promptTokens: fc.integer({ min: 1, max: 200 }),
      outputTokens: fc.integer({ min: 0, max: 40 }),
      priority: fc.constantFrom(0, 10, 100),
      at: fc.integer({ min: 0, max: 60 }),
      abortAt: fc.option(fc.integer({ min: 0, max: 200 }), { nil: undefined, freq: 4 }),
    }),
    { minLength: 1, maxLength: 40 },
  );
  const anyLimits = fc.record({
    maxNumBatchedTokens: fc.integer({ min: 4, max: 300 }),
    maxNumSeqs: fc.integer({ min: 1, max: 8 }),
    // One request of the greatest length must fit.
    kvTokens: fc.integer({ min: 256, max: 1_500 }),
    blockSize: fc.constantFrom(1, 16, 128),
    policy: fc.constantFrom('fcfs' as const, 'priority' as const),
  });

  test('no step exceeds budget, sequences or KV cache; every token is computed and given once; all end', () => {
    fc.assert(
      fc.property(load, anyLimits, (requests, some) => {
        const scheduler = new Scheduler(some);
        const sequences = new Map<Sequence, (typeof requests)[number]>();
        const given = new Map<Sequence, number>();
        const finished = new Set<Sequence>();
        const aborted = new Set<Sequence>();
        const todo = [...requests].sort((a, b) => a.at - b.at);
        let now = 0;
        for (; now < 20_000; now++) {
          for (; todo[0] !== undefined && todo[0].at <= now; todo.shift()) {
            const request = todo[0];
            sequences.set(
              scheduler.add(arrival(request.promptTokens, request.outputTokens, request), now),
              request,
            );
          }
          const step = scheduler.next(now);
          for (const [sequence, { abortAt }] of sequences) {
            if (abortAt === now && scheduler.abort(sequence)) aborted.add(sequence);
          }
          if (step === undefined) {
            if (todo.length === 0 && scheduler.idle) break;
            continue;
          }
          // Plain conditions: expect() a million times takes longer than everything else here.
          const distinct = new Set(step.chunks.map(({ sequence }) => sequence)).size;
          must(step.tokens === step.chunks.reduce((sum, { tokens }) => sum + tokens, 0), 'sum of chunks');
          must(step.load.tokens === step.tokens, 'load');
          must(step.tokens <= some.maxNumBatchedTokens, 'token budget');
          must(
            step.chunks.every(({ tokens }) => tokens > 0),
            'no empty chunk',
          );
          must(distinct === step.chunks.length, 'one chunk a sequence');
          must(scheduler.running <= some.maxNumSeqs, 'sequences');
          must(scheduler.kvUsage <= 1, 'KV cache');
          const outcome = scheduler.complete(step, now + 1);
          for (const { sequence } of outcome.tokens) given.set(sequence, (given.get(sequence) ?? 0) + 1);
          for (const sequence of outcome.finished) {
            must(!finished.has(sequence), 'finished once');
            finished.add(sequence);
          }
        }
        expect(scheduler.idle).toBe(true);
        expect(scheduler.kvUsage).toBe(0);
        for (const [sequence, { outputTokens }] of sequences) {
          expect(finished.has(sequence)).toBe(!aborted.has(sequence));
          if (finished.has(sequence)) expect(given.get(sequence) ?? 0).toBe(outputTokens);
        }
      }),
      { numRuns: 100 },
    );
  });
});
