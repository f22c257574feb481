/**
 * Nothing lost, nothing twice: every moment of harness/fault-table.ts meets its faults, and after each the checker
 * reads the real objects, the real status and the engines' own log. TIDEGATE_FAULTS=full plays the whole table.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { appendFileSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { setTimeout as delay } from 'node:timers/promises';
import { CACHE } from '../hack/stack/paths.ts';
import type { PartDescription } from '../hack/stack/description.ts';
import { repeatableAfter } from './checker/check.ts';
import { isFrozen, untilFrozen } from './harness/freeze.ts';
import { fullTable, shortTable, type Fault, type Moment } from './harness/fault-table.ts';
import { chatLine, chatLines, invalidLines } from './harness/input.ts';
import { testStack } from './harness/run.ts';
import { openScenario, type Scenario } from './harness/scenario.ts';
import { checkpointMilliseconds, frozenPastMilliseconds } from './harness/settings.ts';
import { until } from './harness/until.ts';

const full = process.env['TIDEGATE_FAULTS'] === 'full';
/** A line for each row as it ends, so that a long run can be watched; `make faults` makes its table from it. */
const REPORT = join(CACHE, 'faults.jsonl');
/** Requests at a time; what a crash may repeat stays far below the number of lines. */
const IN_FLIGHT = 60;

const rolesOf = async (role: 'worker' | 'operator'): Promise<PartDescription[]> =>
  (await testStack().control.describe()).parts.filter(({ name }) => name.startsWith(role));

/** Starts all processes of the role again, to stop at the moment once each; none: with no fail points. */
async function arm(role: 'worker' | 'operator', failPoint?: string): Promise<PartDescription[]> {
  const { control } = testStack();
  const options = failPoint === undefined ? {} : { failPoints: `${failPoint}=stop@1` };
  await Promise.all((await rolesOf(role)).map(({ name }) => control.restart(name, options)));
  return rolesOf(role);
}

async function killAndRestart(...names: string[]): Promise<void> {
  const { control } = testStack();
  await Promise.all(names.map((name) => control.signal(name, 'SIGKILL')));
  await Promise.all(names.map((name) => control.restart(name)));
}

/** Does it to the stack while `frozen` are stopped at the moment. Processes that it killed run again afterwards. */
async function strike(fault: Fault, moment: Moment, frozen: PartDescription[], s: Scenario): Promise<void> {
  switch (fault) {
    case 'killed':
      return killAndRestart(...frozen.map(({ name }) => name));
    case 'frozen':
      return delay(frozenPastMilliseconds);
    case 'redis killed':
      return killAndRestart('redis');
    case 'redis wiped': {
      const redis = new Redis(s.stack.description.redisUrl);
      await redis.flushall();
      redis.disconnect();
      return;
    }
    case 's3 killed':
      return killAndRestart('s3');
    case 'apiserver killed':
      return killAndRestart('kube-apiserver');
    case 'engine killed':
      return killAndRestart('engine-0');
    case 'others killed': {
      const other = moment.role === 'worker' ? 'operator' : 'worker';
      return killAndRestart(...(await rolesOf(other)).map(({ name }) => name));
    }
    case 'cancelled':
      return s.patchJob({ cancel: true });
  }
}

async function thaw(parts: readonly PartDescription[]): Promise<void> {
  const { control } = testStack();
  await Promise.all(
    parts.filter(({ pid }) => isFrozen(pid)).map(({ name }) => control.signal(name, 'SIGCONT')),
  );
}

/** Plays one row; the violations of the invariant, and how many requests were repeated at most. */
async function play(moment: Moment, fault: Fault): Promise<string[]> {
  const armed = await arm(moment.role, moment.failPoint);
  const s = await openScenario('fault');
  try {
    const lines = [
      ...chatLines(s.namespace, 300),
      ...Object.values(invalidLines(s.namespace)),
      ...Array.from({ length: 330 }, (_, n) => chatLine(s.namespace, 301 + n)),
    ];
    const key = await s.putInput('a.jsonl', lines);
    await s.engineFaults({ fault: 'slow', delayMilliseconds: 300 });
    await s.createJob({ keys: [key], spec: { maxInFlight: IN_FLIGHT } });
    if (moment.course !== 'completed') {
      await until(
        'lines are answered',
        async () => s.calls().length,
        (calls) => calls > 100,
      );
      if (moment.course === 'cancelled') await s.patchJob({ cancel: true });
      else await s.deleteJob();
    }

    const frozen = await untilFrozen(armed, moment.failPoint, () => s.explain());
    const seen = await s.job();
    const struckAt = Date.now();
    await strike(fault, moment, frozen, s);
    // Both processes of a role are armed; the other one may have stopped meanwhile.
    const thawing = setInterval(() => void thaw(armed), 200);
    try {
      await thaw(armed);
      const bound = repeatableAfter(struckAt, checkpointMilliseconds, s.calls());
      if (moment.course === 'deleted') {
        await s.untilGone();
        if (seen === undefined) throw new Error('the job was gone before the moment came');
        return await s.violations(seen, [key], { ending: 'deleted', repeatedCalls: bound });
      }
      const job = await s.untilEnded(120);
      return await s.violations(job, [key], { repeatedCalls: bound });
    } finally {
      clearInterval(thawing);
    }
  } finally {
    await thaw(armed);
    await s.close();
  }
}

beforeAll(() => {
  mkdirSync(CACHE, { recursive: true });
  rmSync(REPORT, { force: true });
});
afterAll(async () => {
  await arm('worker');
  await arm('operator');
});

describe('nothing is lost and nothing comes twice', () => {
  const rows = (full ? fullTable() : shortTable()).map(
    ({ moment, fault }) => [`${moment.title} (${moment.role}, ${moment.failPoint})`, fault, moment] as const,
  );
  test.each(rows)(
    'when at "%s": %s',
    async (_, fault, moment) => {
      const started = performance.now();
      let violations: string[] | undefined;
      try {
        violations = await play(moment, fault);
        expect(violations).toEqual([]);
      } finally {
        const seconds = Math.round((performance.now() - started) / 1000);
        appendFileSync(REPORT, `${JSON.stringify({ moment, fault, seconds, violations })}\n`);
      }
    },
    240_000,
  );
});
