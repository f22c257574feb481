/**
 * The process that keeps a stack running: `node hack/stack/supervisor.ts <options as JSON>`. It writes `ready.json`
 * (the description) or `failed` (why not) into the stack's folder, serves the control socket, and stops everything
 * on SIGTERM or on command. When it is killed, the parts die with it.
 */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { serveControl } from './control.ts';
import { describeStack, environmentLines } from './description.ts';
import { startStack, type Stack, type StackOptions } from './stack.ts';

export interface SupervisorOptions extends Omit<StackOptions, 'say'> {
  /** Start again what ended without being asked to, as a cluster would. Tests do that themselves. */
  restartCrashed?: boolean;
}

export const readyFile = (dir: string): string => join(dir, 'ready.json');
export const failedFile = (dir: string): string => join(dir, 'failed');
export const pidFile = (dir: string): string => join(dir, 'supervisor.pid');

const CRASH_CHECK_MILLISECONDS = 1_000;

async function supervise(options: SupervisorOptions): Promise<void> {
  const { dir } = options;
  mkdirSync(dir, { recursive: true });
  writeFileSync(pidFile(dir), String(process.pid));
  const stack = await startStack({ ...options, say: (line) => console.log(line) });
  const end = async (): Promise<void> => {
    clearInterval(watch);
    rmSync(readyFile(dir), { force: true });
    await stack.stop();
    server.close();
    rmSync(pidFile(dir), { force: true });
    process.exit(0);
  };
  const restarting = new Set<string>();
  const watch = setInterval(() => {
    if (options.restartCrashed === true) restartCrashed(stack, restarting);
  }, CRASH_CHECK_MILLISECONDS);
  const server = await serveControl(stack, () => void end());
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => void end());
  const description = describeStack(stack);
  writeFileSync(join(dir, 'env'), environmentLines(description), { mode: 0o600 });
  writeFileSync(readyFile(dir), JSON.stringify(description, undefined, 2), { mode: 0o600 });
}

function restartCrashed(stack: Stack, restarting: Set<string>): void {
  for (const part of stack.parts()) {
    if (part.running() || restarting.has(part.name)) continue;
    restarting.add(part.name);
    console.log(`${part.name} has ended; starting it again`);
    part
      .restart()
      .catch((error: unknown) => console.error(`${part.name} did not start:`, error))
      .finally(() => restarting.delete(part.name));
  }
}

if (import.meta.main) {
  const options = JSON.parse(process.argv[2] ?? '{}') as SupervisorOptions;
  supervise(options).catch((error: unknown) => {
    const message = error instanceof Error ? error.message : String(error);
    console.error(message);
    writeFileSync(failedFile(options.dir), message);
    process.exit(1);
  });
}
