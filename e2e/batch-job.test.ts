/** The life of a batch job, as users see it. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { chatLine, chatLines, invalidLines } from './harness/input.ts';
import { conditionOf, hasEnded, isTrue, modelDeployment } from './harness/objects.ts';
import { JOB, openScenario, type Scenario } from './harness/scenario.ts';
import { until } from './harness/until.ts';

const open: Scenario[] = [];
const scenario = async (...args: Parameters<typeof openScenario>): Promise<Scenario> => {
  const opened = await openScenario(...args);
  open.push(opened);
  return opened;
};
afterEach(async () => {
  await Promise.all(open.splice(0).map((each) => each.close()));
});

const MINUTES = 60_000;

describe('a batch job', () => {
  test(
    'of 1,000 lines with bad ones among them runs to its end',
    async () => {
      const s = await scenario('happy');
      const lines = chatLines(s.namespace, 991);
      const bad = Object.values(invalidLines(s.namespace));
      for (const [index, line] of bad.entries()) lines.splice(100 + index * 90, 0, line);
      lines.splice(500, 0, '', '   ');
      const key = await s.putInput('a.jsonl', lines);
      await s.createJob({ keys: [key] });

      await s.kubectl('wait', '--for=condition=Complete', `ibj/${JOB}`, '--timeout=120s');
      const job = await s.untilEnded();

      expect(job.status?.counts).toEqual({
        total: 1000,
        completed: 991,
        failed: bad.length,
        expired: 0,
        cancelled: 0,
      });
      expect(job.status?.state).toBe('Completed');
      expect(isTrue(job, 'Complete')).toBe(true);
      expect(await s.violations(job, [key])).toEqual([]);
    },
    3 * MINUTES,
  );

  test(
    'shows itself to kubectl: columns, category, events, explanation',
    async () => {
      const s = await scenario('kubectl');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 40));
      await s.createJob({ keys: [key], spec: { priorityClassName: 'batch' } });
      await s.untilEnded();

      const [header = '', row = ''] = (await s.kubectl('get', 'ibj')).split('\n');
      expect(header.trim().split(/\s{2,}/)).toEqual([
        ...['NAME', 'MODEL', 'CLASS', 'STATE', 'PROGRESS', 'FAILED', 'ETA', 'AGE'],
      ]);
      expect(row).toMatch(/^job\s+model\s+batch\s+Completed\s+40\/40\s+0\s/);
      const wide = await s.kubectl('get', 'ibj', '-o', 'wide');
      expect(wide).toMatch(/PERCENT\s+TOKENS\/S\s+WINDOW ENDS\s+MESSAGE/);

      const all = await s.kubectl('get', 'inference');
      expect(all).toMatch(/inferencebatchjob\.tidegate\.dev\/job/);
      expect(all).toMatch(/modeldeployment\.tidegate\.dev\/model/);

      const described = await s.kubectl('describe', 'ibj', JOB);
      const events = described.slice(described.lastIndexOf('Events:'));
      for (const reason of ['Accepted', 'Indexed', 'Completed']) expect(events).toContain(reason);

      const explained = await s.kubectl('explain', 'ibj.spec.input');
      expect(explained).toMatch(/invalidLines/);
    },
    2 * MINUTES,
  );

  test(
    'that waits for its ModelDeployment starts when it appears',
    async () => {
      const s = await scenario('late', { deployment: false });
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 10));
      await s.createJob({ keys: [key] });
      const waiting = await s.untilJob(
        'waits for its model',
        (job) => conditionOf(job, 'Accepted')?.reason === 'ModelDeploymentNotFound',
      );
      expect(waiting.status?.state).toBe('Pending');

      await s.create(modelDeployment(s.namespace, s.stack.description.engineUrls));
      const job = await s.untilEnded();
      expect(await s.violations(job, [key])).toEqual([]);
    },
    2 * MINUTES,
  );

  test(
    'publishes in input order while it runs: each version is a byte prefix of the next',
    async () => {
      const s = await scenario('grow');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 1500));
      await s.engineFaults({ fault: 'slow', delayMilliseconds: 300 });
      await s.createJob({ keys: [key], spec: { maxInFlight: 100 } });

      const seen: Buffer[] = [];
      await until(
        'the job has ended, watched',
        async () => {
          const results = await s.bucket.get(`${s.namespace}/out/${JOB}/results.jsonl`);
          if (results !== undefined && !seen.at(-1)?.equals(results)) seen.push(results);
          return s.job();
        },
        (seenJob) => hasEnded(seenJob),
        { withinSeconds: 120 },
      );
      expect(seen.length).toBeGreaterThan(1);
      for (const [index, version] of seen.entries()) {
        const next = seen[index + 1];
        if (next !== undefined) expect(next.subarray(0, version.length).equals(version)).toBe(true);
      }
      const job = await s.untilEnded();
      expect(await s.violations(job, [key])).toEqual([]);
    },
    4 * MINUTES,
  );
});

describe('suspend', () => {
  test(
    'stops new lines and finishes those in flight; resume goes on where it stopped',
    async () => {
      const s = await scenario('suspend');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 600));
      await s.engineFaults({ fault: 'slow', delayMilliseconds: 500 });
      await s.createJob({ keys: [key], spec: { maxInFlight: 40 } });
      await until(
        'lines are answered',
        async () => answered(s),
        (n) => n >= 60,
      );

      await s.patchJob({ suspend: true });
      await s.untilJob('is suspended', (job) => isTrue(job, 'Suspended'));
      await until(
        'nothing is in flight',
        async () => inFlight(s),
        (n) => n === 0,
      );
      const calls = s.calls().length;
      expect(calls).toBeLessThan(600);

      await s.engineFaults();
      await s.patchJob({ suspend: false });
      const job = await s.untilEnded();
      expect(isTrue(job, 'Complete')).toBe(true);
      expect(s.calls().some(({ ending }) => ending === 'aborted')).toBe(false);
      expect(await s.violations(job, [key])).toEqual([]);
    },
    3 * MINUTES,
  );

  test(
    'at birth keeps the input unread until it is resumed',
    async () => {
      const s = await scenario('unborn');
      await s.createJob({ keys: [`${s.namespace}/in/a.jsonl`], spec: { suspend: true } });
      const suspended = await s.untilJob('is suspended', (job) => job.status?.state === 'Suspended');
      expect(isTrue(suspended, 'Indexed')).toBe(false);

      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 5));
      await s.patchJob({ suspend: false });
      const job = await s.untilEnded();
      expect(await s.violations(job, [key])).toEqual([]);
    },
    2 * MINUTES,
  );
});

describe('cancel', () => {
  test(
    'mid-run keeps what is done and gives every other line its record',
    async () => {
      const s = await scenario('cancel');
      const key = await s.putInput('a.jsonl', [
        ...chatLines(s.namespace, 400),
        ...Object.values(invalidLines(s.namespace)),
        ...Array.from({ length: 300 }, (_, n) => chatLine(s.namespace, 500 + n)),
      ]);
      await s.engineFaults({ fault: 'slow', delayMilliseconds: 400 });
      await s.createJob({ keys: [key], spec: { maxInFlight: 40 } });
      await until(
        'lines are answered',
        async () => answered(s),
        (n) => n >= 100,
      );

      await s.patchJob({ cancel: true });
      const job = await s.untilEnded();

      expect(job.status?.state).toBe('Cancelled');
      expect(conditionOf(job, 'Failed')).toMatchObject({ status: 'True', reason: 'Cancelled' });
      expect(job.status?.counts?.completed).toBeGreaterThanOrEqual(100);
      expect(job.status?.counts?.cancelled).toBeGreaterThan(0);
      expect(await s.violations(job, [key])).toEqual([]);
      const calls = s.calls().length;
      expect(inFlight(s)).toBe(0);
      expect(s.calls().length).toBe(calls);
    },
    3 * MINUTES,
  );

  test(
    'before the input could be read ends the job all the same',
    async () => {
      const s = await scenario('cancel-early');
      await s.createJob({ keys: [`${s.namespace}/in/absent.jsonl`] });
      await s.untilJob('looks for its input', (job) => conditionOf(job, 'Indexed')?.reason === 'NoSuchKey');
      await s.patchJob({ cancel: true });
      const job = await s.untilEnded();
      expect(job.status?.state).toBe('Cancelled');
    },
    3 * MINUTES,
  );
});

describe('deletion', () => {
  test(
    'mid-run aborts what is in flight and removes working objects; published results stay',
    async () => {
      const s = await scenario('delete');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 4_000));
      await s.engineFaults({ fault: 'slow', delayMilliseconds: 400 });
      await s.createJob({ keys: [key], spec: { maxInFlight: 200 } });
      const results = `${s.namespace}/out/${JOB}/results.jsonl`;
      await until(
        'first results are published',
        () => s.bucket.get(results),
        (bytes) => bytes !== undefined,
      );
      const running = await s.untilJob('is running', (job) => isTrue(job, 'Running'));

      await s.deleteJob();
      await until(
        'nothing is in flight',
        async () => inFlight(s),
        (n) => n === 0,
      );
      await s.untilGone();

      const { prefix } = running.spec.output.s3;
      expect(await s.bucket.keys(`${prefix}_tidegate/`)).toEqual([]);
      expect(await s.bucket.get(`${prefix}results.jsonl`)).toBeDefined();
      const violations = await s.violations(running, [key], { ending: 'deleted', repeatedCalls: 0 });
      expect(violations).toEqual([]);
      const calls = s.calls();
      expect(calls.length).toBeLessThan(4_000);
    },
    3 * MINUTES,
  );

  test(
    'of the namespace mid-run is not held up',
    async () => {
      const s = await scenario('drop-ns');
      const key = await s.putInput('a.jsonl', chatLines(s.namespace, 600));
      await s.engineFaults({ fault: 'slow', delayMilliseconds: 400 });
      await s.createJob({ keys: [key], spec: { maxInFlight: 40 } });
      await until(
        'lines are answered',
        async () => answered(s),
        (n) => n >= 40,
      );
      await s.kubectl('delete', 'namespace', s.namespace, '--timeout=90s');
      expect(inFlight(s)).toBe(0);
    },
    3 * MINUTES,
  );
});

const answered = (s: Scenario): number => s.calls().filter(({ ending }) => ending === 'answered').length;
const inFlight = (s: Scenario): number => s.calls().filter(({ ending }) => ending === 'open').length;
