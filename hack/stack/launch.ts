/** Starts a supervised stack and waits until it is ready. */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { logTail, startChild, type Child } from './child.ts';
import { connectStack } from './control.ts';
import type { StackDescription } from './description.ts';
import { nodeBinary } from './paths.ts';
import { failedFile, pidFile, readyFile, type SupervisorOptions } from './supervisor.ts';

const SUPERVISOR = join(import.meta.dirname, 'supervisor.ts');
const READY_WITHIN_MILLISECONDS = 120_000;

export const supervisorLog = (dir: string): string => join(dir, 'supervisor.log');

/** A stack that dies with us. */
export async function launchAttached(
  options: SupervisorOptions,
): Promise<{ description: StackDescription; supervisor: Child }> {
  clear(options.dir);
  const supervisor = startChild({
    name: 'stack',
    command: nodeBinary(),
    args: [SUPERVISOR, JSON.stringify(options)],
    env: { NODE_OPTIONS: undefined },
    logFile: supervisorLog(options.dir),
  });
  const description = await untilDescribed(options.dir, () => supervisor.running());
  return { description, supervisor };
}

/** A stack that stays when we have ended; `endStack` ends it. */
export async function launchDetached(options: SupervisorOptions): Promise<StackDescription> {
  clear(options.dir);
  const log = openSync(supervisorLog(options.dir), 'a');
  const supervisor = spawn(nodeBinary(), [SUPERVISOR, JSON.stringify(options)], {
    detached: true,
    stdio: ['ignore', log, log],
    env: { ...process.env, NODE_OPTIONS: '' },
  });
  let ended = false;
  supervisor.once('exit', () => (ended = true));
  const interrupted = (): void => void supervisor.kill('SIGTERM');
  process.once('SIGINT', interrupted);
  const description = await untilDescribed(options.dir, () => !ended);
  process.removeListener('SIGINT', interrupted);
  supervisor.unref();
  return description;
}

/** The stack of this folder, if one runs. */
export async function runningStack(dir: string): Promise<StackDescription | undefined> {
  try {
    return await connectStack(dir).describe();
  } catch {
    return undefined;
  }
}

/** Ends the stack of this folder and waits until it is gone. False when none runs. */
export async function endStack(dir: string): Promise<boolean> {
  const pid = supervisorPid(dir);
  if (pid === undefined) return false;
  await connectStack(dir)
    .end()
    .catch(() => process.kill(pid, 'SIGTERM'));
  const deadline = performance.now() + 30_000;
  while (supervisorPid(dir) !== undefined) {
    if (performance.now() > deadline) process.kill(pid, 'SIGKILL');
    await delay(50);
  }
  return true;
}

/** Only a process that is our supervisor: the pid of an old one may have gone to somebody else. */
function supervisorPid(dir: string): number | undefined {
  try {
    const pid = Number(readFileSync(pidFile(dir), 'utf8'));
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('supervisor.ts') ? pid : undefined;
  } catch {
    return undefined;
  }
}

function clear(dir: string): void {
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir, { recursive: true });
}

async function untilDescribed(dir: string, running: () => boolean): Promise<StackDescription> {
  const deadline = performance.now() + READY_WITHIN_MILLISECONDS;
  while (!existsSync(readyFile(dir))) {
    if (existsSync(failedFile(dir))) throw new Error(readFileSync(failedFile(dir), 'utf8'));
    if (!running()) throw new Error(`the stack ended before it was ready\n${logTail(supervisorLog(dir))}`);
    if (performance.now() > deadline) {
      throw new Error(
        `the stack was not ready after ${READY_WITHIN_MILLISECONDS / 1000} s\n${logTail(supervisorLog(dir))}`,
      );
    }
    await delay(50);
  }
  // The file appears empty for an instant.
  for (;;) {
    try {
      return JSON.parse(readFileSync(readyFile(dir), 'utf8')) as StackDescription;
    } catch {
      await delay(10);
    }
  }
}
