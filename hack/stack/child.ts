/**
 * A child process that never outlives us, however we end.
 *
 * Node has no PR_SET_PDEATHSIG, and an exit handler does not run on SIGKILL. So each child starts through a shell
 * that forks a watcher and then becomes the command: the watcher holds the reading end of a pipe whose writing end
 * only we hold, and the kernel closes that whenever we end. End of file makes the watcher kill the process group;
 * a line means that the child has ended and the watcher may go. There is no moment at which a child runs unwatched.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Writable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';

const WATCHED_START = '(read -r _ <&3 && exit 0; kill -9 -$$) & exec 3<&-; exec "$@"';

export interface ChildOptions {
  /** For messages. */
  name: string;
  command: string;
  args: readonly string[];
  /** Added to our own environment; undefined removes a variable. */
  env?: Record<string, string | undefined>;
  cwd?: string;
  /** Output of the child is appended here. */
  logFile: string;
}

export interface Exit {
  code: number | null;
  signal: NodeJS.Signals | null;
}

/** What every part of the stack can be asked to do; `restart` keeps address and data. */
export interface Part {
  readonly name: string;
  readonly pid: number;
  readonly logFile: string;
  /** True while the process exists, also when it is stopped by SIGSTOP. */
  running(): boolean;
  /** Sends a signal and, when it is SIGKILL, waits for the end. */
  kill(signal: NodeJS.Signals): Promise<void>;
  /** Ends the process if it still runs, then starts it again and waits until it is ready. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export interface Child {
  readonly name: string;
  readonly pid: number;
  readonly logFile: string;
  readonly exited: Promise<Exit>;
  running(): boolean;
  kill(signal: NodeJS.Signals): Promise<void>;
  /** SIGTERM, then SIGKILL after the grace period. Resolves when the process and its descendants are gone. */
  stop(graceMilliseconds?: number): Promise<Exit>;
}

/** Starts a child in its own process group. Throws when the command cannot be started at all. */
export function startChild(options: ChildOptions): Child {
  mkdirSync(dirname(options.logFile), { recursive: true });
  const log = openSync(options.logFile, 'a');
  let child: ChildProcess;
  try {
    child = spawn('/bin/sh', ['-c', WATCHED_START, 'sh', options.command, ...options.args], {
      cwd: options.cwd,
      env: withoutUndefined({ ...process.env, ...options.env }),
      stdio: ['ignore', log, log, 'pipe'],
      detached: true,
    });
  } finally {
    closeSync(log);
  }
  const pid = child.pid;
  if (pid === undefined) throw new Error(`${options.name}: could not start ${options.command}`);
  const lifeline = child.stdio[3] as Writable;
  // The watcher may be gone first; a broken pipe then says nothing new.
  lifeline.on('error', () => {});

  let exit: Exit | undefined;
  const exited = new Promise<Exit>((resolve) => {
    child.once('exit', (code, signal) => {
      exit = { code, signal };
      lifeline.end('ended\n');
      resolve(exit);
    });
  });

  const running = (): boolean => exit === undefined;
  const kill = async (signal: NodeJS.Signals): Promise<void> => {
    if (!running()) return;
    process.kill(pid, signal);
    if (signal === 'SIGKILL') await exited;
  };
  const stop = async (graceMilliseconds = 5_000): Promise<Exit> => {
    if (running()) {
      process.kill(pid, 'SIGTERM');
      // A process stopped by SIGSTOP sees SIGTERM only after it continues.
      process.kill(pid, 'SIGCONT');
      const timer = setTimeout(() => {
        if (running()) process.kill(pid, 'SIGKILL');
      }, graceMilliseconds);
      await exited;
      clearTimeout(timer);
    }
    return exited;
  };
  return { name: options.name, pid, logFile: options.logFile, exited, running, kill, stop };
}

/**
 * Waits until `ready` answers true. Fails with the end of the child's log when the child ends first or the time
 * is up. A rejection of `ready` means "not yet".
 */
export async function untilReady(
  child: Child,
  ready: () => Promise<boolean>,
  timeoutMilliseconds = 30_000,
): Promise<void> {
  const deadline = performance.now() + timeoutMilliseconds;
  let last: unknown;
  while (child.running()) {
    try {
      if (await ready()) return;
    } catch (error) {
      last = error;
    }
    if (performance.now() > deadline) {
      const why = last instanceof Error ? `: ${last.message}` : '';
      throw new Error(
        `${child.name} was not ready after ${timeoutMilliseconds / 1000} s${why}\n${logTail(child.logFile)}`,
      );
    }
    await delay(25);
  }
  const { code, signal } = await child.exited;
  throw new Error(
    `${child.name} ended (${signal ?? `code ${code}`}) before it was ready\n${logTail(child.logFile)}`,
  );
}

/** The last lines of a log, for error messages. */
export function logTail(path: string, lines = 15): string {
  try {
    return readFileSync(path, 'utf8').trimEnd().split('\n').slice(-lines).join('\n');
  } catch {
    return '';
  }
}

/** Makes a Part of a way to start a child; `start` must reuse the same address and data each time. */
export async function startPart(
  start: () => Promise<Child>,
  options: { graceMilliseconds: number },
): Promise<Part> {
  let child = await start();
  const stop = async (): Promise<void> => {
    await child.stop(options.graceMilliseconds);
  };
  return {
    name: child.name,
    get pid() {
      return child.pid;
    },
    logFile: child.logFile,
    running: () => child.running(),
    kill: (signal) => child.kill(signal),
    restart: async () => {
      await stop();
      child = await start();
    },
    stop,
  };
}

function withoutUndefined(env: Record<string, string | undefined>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).filter((entry): entry is [string, string] => entry[1] !== undefined),
  );
}
