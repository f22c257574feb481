import type { Logger } from '../observability/contract.ts';

export interface Loop {
  /** Runs as soon as possible, without waiting for the period; several calls are one run. */
  soon(): void;
  /** Ends the loop; resolves when a run in progress is over. */
  stop(): Promise<void>;
}

/** Calls `run` again and again, `milliseconds` after the last one ended. A failure is logged and tried again. */
export function startLoop(
  name: string,
  milliseconds: number,
  logger: Logger,
  run: () => Promise<void>,
): Loop {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;
  let again = false;
  let stopped = false;

  // Must not reject: nobody waits for it.
  async function turn(): Promise<void> {
    do {
      again = false;
      try {
        await run();
      } catch (error) {
        logger.debug('periodic work failed, tried again', { loop: name, error });
      }
    } while (again && !stopped);
    running = undefined;
    if (!stopped) arm(milliseconds);
  }

  function arm(delay: number): void {
    clearTimeout(timer);
    timer = setTimeout(() => {
      running = turn();
    }, delay);
    timer.unref();
  }

  arm(0);
  return {
    soon: () => {
      if (running !== undefined) again = true;
      else if (!stopped) arm(0);
    },
    stop: async () => {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
