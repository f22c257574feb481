import { describe, expect, jest, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createFailPoints, FAIL_EXIT_CODE, parseFailPoints } from './failpoints.ts';
import { silentLogger } from './logger.ts';

describe('fail points', () => {
  test('read name, action and which time', () => {
    expect(parseFailPoints('worker.shard.result-written=kill@3; operator.final=throw;')).toEqual([
      { name: 'worker.shard.result-written', action: 'kill', nth: 3 },
      { name: 'operator.final', action: 'throw', nth: undefined },
    ]);
  });

  test.each(['a', 'a=', 'a=explode', 'a=kill@0', 'a=kill@x', '=kill', 'a b=kill'])(
    'refuse "%s" and say what is allowed',
    (text) => {
      expect(() => parseFailPoints(text)).toThrow('kill, stop, throw, hang, exit');
    },
  );

  test.each([undefined, ''])('do nothing when armed with %p', async (text) => {
    await createFailPoints(text, { logger: silentLogger })('anything');
  });

  test('fire at their own name only, at the n-th time only, and are logged', async () => {
    const warn = jest.fn();
    const failPoint = createFailPoints('a.b.c=throw@2', { logger: { ...silentLogger, warn } });
    await failPoint('a.b.c');
    await failPoint('a.b.d');
    await expect(failPoint('a.b.c')).rejects.toMatchObject({ code: 'FailPoint' });
    await failPoint('a.b.c');
    expect(warn).toHaveBeenCalledWith('fail point', { failPoint: 'a.b.c', action: 'throw', hit: 2 });
  });

  const run = (text: string) =>
    spawn(
      process.execPath,
      [
        '--input-type=module',
        '-e',
        `import { createFailPoints } from './src/observability/failpoints.ts';
         const none = () => undefined;
         const logger = { debug: none, info: none, warn: none, error: none, child: () => logger };
         await createFailPoints(process.env.TIDEGATE_FAIL_POINTS, { logger })('here');
         console.log('passed');`,
      ],
      { env: { ...process.env, TIDEGATE_FAIL_POINTS: text }, stdio: ['ignore', 'pipe', 'inherit'] },
    );

  test('kill ends the process with SIGKILL', async () => {
    expect(await once(run('here=kill'), 'exit')).toEqual([null, 'SIGKILL']);
  });

  test('exit ends it with a code of its own', async () => {
    expect(await once(run('here=exit'), 'exit')).toEqual([FAIL_EXIT_CODE, null]);
  });

  test('hang never comes back', async () => {
    // Nothing keeps the process alive, so Node gives up on the pending await (exit code 13) before "passed".
    expect(await once(run('here=hang'), 'exit')).toEqual([13, null]);
  });

  test('stop freezes the process until it is continued', async () => {
    const child = run('here=stop');
    const exited = once(child, 'exit');
    let output = '';
    child.stdout?.on('data', (chunk) => (output += String(chunk)));
    const state = () => /^State:\s+(\w)/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1];
    while (state() !== 'T') await new Promise((resolve) => setTimeout(resolve, 10));
    expect(output).toBe('');
    child.kill('SIGCONT');
    expect(await exited).toEqual([0, null]);
    expect(output).toContain('passed');
  });
});
