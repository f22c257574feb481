import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { logTail, startChild, startPart, untilReady, type Child } from './child.ts';
import { nodeBinary } from './paths.ts';

const dir = mkdtempSync(join(tmpdir(), 'tidegate-child-'));
const started: Child[] = [];
let logs = 0;
afterEach(async () => {
  await Promise.all(started.splice(0).map((child) => child.stop(0)));
});

function shell(script: string): Child {
  const child = startChild({
    name: 'test',
    command: '/bin/sh',
    args: ['-c', script],
    logFile: join(dir, `${logs++}.log`),
  });
  started.push(child);
  return child;
}

/** Running, as opposed to gone or waiting for its parent to look. */
function alive(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 10_000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error('the condition did not come true within 10 s');
    await delay(10);
  }
}

describe('a child', () => {
  test('is the command itself: its pid can be stopped, continued and killed', async () => {
    const child = shell('echo $$; exec sleep 60');
    await until(() => logTail(child.logFile) !== '');
    expect(Number(logTail(child.logFile))).toBe(child.pid);
    await child.kill('SIGKILL');
    expect(await child.exited).toEqual({ code: null, signal: 'SIGKILL' });
    expect(child.running()).toBe(false);
  });

  test('stops at once although it was frozen', async () => {
    const child = shell('trap "exit 7" TERM; echo up; while :; do sleep 0.01; done');
    await until(() => logTail(child.logFile).includes('up'));
    await child.kill('SIGSTOP');
    expect(await child.stop()).toEqual({ code: 7, signal: null });
  });

  test('is killed when it ignores SIGTERM for longer than the grace period', async () => {
    const child = shell('trap "" TERM; echo up; while :; do sleep 0.01; done');
    await until(() => logTail(child.logFile).includes('up'));
    expect(await child.stop(50)).toEqual({ code: null, signal: 'SIGKILL' });
  });

  test.each(['SIGKILL', 'SIGTERM', 'SIGINT'] as const)(
    'ends with its own children when we end by %s',
    async (signal) => {
      const pids = join(dir, `pids-${signal}`);
      const script = join(dir, `parent-${signal}.ts`);
      writeFileSync(
        script,
        `import { startChild } from ${JSON.stringify(join(import.meta.dirname, 'child.ts'))};
         startChild({ name: 'x', command: '/bin/sh', logFile: ${JSON.stringify(join(dir, 'parent.log'))},
           args: ['-c', 'sleep 60 & echo $$ $! > ${pids}; wait'] });
         setInterval(() => {}, 1000);`,
      );
      const parent = spawn(nodeBinary(), [script], { stdio: 'ignore' });
      await until(() => existsSync(pids) && readFileSync(pids, 'utf8').endsWith('\n'));
      const descendants = readFileSync(pids, 'utf8').trim().split(' ').map(Number);
      expect(descendants.map(alive)).toEqual([true, true]);
      parent.kill(signal);
      await until(() => !descendants.some(alive));
    },
  );
});

describe('waiting for a child', () => {
  test('fails with its last words when it ends first', async () => {
    const child = shell('echo "cannot bind: in use"; exit 3');
    await expect(untilReady(child, async () => false)).rejects.toThrow(
      /test ended \(code 3\) before it was ready\ncannot bind: in use/,
    );
  });

  test('fails with the last reason when it takes too long', async () => {
    const child = shell('exec sleep 60');
    const refused = async (): Promise<boolean> => {
      throw new Error('connection refused');
    };
    await expect(untilReady(child, refused, 50)).rejects.toThrow(
      /not ready after 0.05 s: connection refused/,
    );
  });
});

test('a part that is restarted is a new process under the same name', async () => {
  const part = await startPart(async () => shell('exec sleep 60'), { graceMilliseconds: 0 });
  const first = part.pid;
  await part.restart();
  expect(part.pid).not.toBe(first);
  expect(part.running()).toBe(true);
  await part.stop();
  expect(part.running()).toBe(false);
});
