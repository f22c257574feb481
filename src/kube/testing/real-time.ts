import { systemTimers, type Runtime } from '../timers.ts';
import { memoryLogger, type LogLine } from './manual-time.ts';

/** The machine's own time, for tests with real sockets and servers. */
export function realRuntime(lines: LogLine[] = []): Runtime {
  return {
    clock: { now: () => Date.now(), monotonic: () => performance.now() },
    timers: systemTimers,
    random: Math.random,
    logger: memoryLogger(lines),
  };
}

/** Resolves when the condition holds; the test's own time limit is the only one. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5));
}
