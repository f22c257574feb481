import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Call } from './http/call-log.ts';

const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

/** The command in a process of its own. */
function run(...args: string[]) {
  const script = `
    import { Command } from 'commander';
    import { addEngineCommand } from './src/sim/command.ts';
    const program = new Command('tidegate');
    addEngineCommand(program);
    await program.parseAsync(${JSON.stringify(args)}, { from: 'user' });`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  children.push(child);
  let errors = '';
  child.stderr.on('data', (chunk) => (errors += String(chunk)));
  const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  return {
    child,
    exited,
    errors: () => errors,
    about: async (): Promise<{ url: string; controlUrl: string }> => {
      let output = '';
      for await (const chunk of child.stdout) {
        output += String(chunk);
        if (output.includes('\n')) break;
      }
      return JSON.parse(output) as { url: string; controlUrl: string };
    },
  };
}

const post = (url: string, body: object) =>
  fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });

describe('tidegate engine', () => {
  test('serves the models it was given and ends with SIGTERM', async () => {
    const { child, about, exited } = run('engine', '--port', '0', '--model', 'a', '--model', 'b');
    const { url } = await about();
    expect(await (await fetch(`${url}/v1/models`)).json()).toMatchObject({
      data: [{ id: 'a' }, { id: 'b' }],
    });
    child.kill('SIGTERM');
    expect(await exited).toEqual([0, null]);
  });

  test('a call that kills it is in the log of calls, as are those answered before', async () => {
    const callLog = join(mkdtempSync(join(tmpdir(), 'calls-')), 'calls.jsonl');
    const { about, exited } = run('engine', '--port', '0', '--control-port', '0', '--call-log', callLog);
    const { url, controlUrl } = await about();
    const ask = (marker: string) => post(`${url}/v1/completions`, { model: 'tiny', prompt: marker });
    await post(`${controlUrl}/_control`, { set: [{ fault: 'die', match: 'marker:poison' }] });
    expect((await ask('marker:good')).status).toBe(200);
    await expect(ask('marker:poison')).rejects.toThrow();
    expect(await exited).toEqual([null, 'SIGKILL']);
    const calls = readFileSync(callLog, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Call);
    expect(calls.map(({ n, marker, end }) => [n, marker, end])).toEqual([
      [1, 'marker:good', null],
      [1, 'marker:good', 'answered'],
      [2, 'marker:poison', null],
    ]);
  });

  test.each<[string[], string]>([
    [['--port', '70000'], 'from 0 to 65535'],
    [['--profile', 'abacus'], 'llama3-8b-h100'],
    [['--time-scale', '0'], 'above 0'],
    [['--max-num-seqs', 'many'], 'whole number'],
  ])('%j is refused with what is allowed', async (args, words) => {
    const { exited, errors } = run('engine', ...args);
    expect(await exited).toEqual([1, null]);
    expect(errors()).toContain(words);
  });
});
