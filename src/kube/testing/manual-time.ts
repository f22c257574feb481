import type { Clock, Logger } from '../../observability/contract.ts';
import type { Runtime, Timers } from '../timers.ts';

interface Alarm {
  at: number;
  run: () => void;
}

/** A clock and its timers that move only when told to. */
export class ManualTime implements Clock, Timers {
  #monotonic = 1_000;
  #wallOffset = Date.UTC(2026, 10, 30, 12) - 1_000;
  #alarms: Alarm[] = [];

  now(): number {
    return this.#monotonic + this.#wallOffset;
  }

  monotonic(): number {
    return this.#monotonic;
  }

  after(milliseconds: number, run: () => void): () => void {
    const alarm = { at: this.#monotonic + milliseconds, run };
    this.#alarms.push(alarm);
    return () => {
      this.#alarms = this.#alarms.filter((other) => other !== alarm);
    };
  }

  get pendingAlarms(): number {
    return this.#alarms.length;
  }

  /** Someone sets the machine's clock; monotonic time does not notice. */
  jumpWallClock(milliseconds: number): void {
    this.#wallOffset += milliseconds;
  }

  /** Time passes and nothing runs: a stopped process or a blocked event loop. */
  freeze(milliseconds: number): void {
    this.#monotonic += milliseconds;
  }

  /** Time passes, alarms ring in order, and after each everything it set off runs to its next wait. */
  async advance(milliseconds: number): Promise<void> {
    await settle();
    const until = this.#monotonic + milliseconds;
    for (;;) {
      const [next] = this.#alarms.filter(({ at }) => at <= until).sort((a, b) => a.at - b.at);
      if (next === undefined) break;
      this.#alarms = this.#alarms.filter((other) => other !== next);
      this.#monotonic = Math.max(this.#monotonic, next.at);
      next.run();
      await settle();
    }
    // A freeze inside may have gone further.
    this.#monotonic = Math.max(this.#monotonic, until);
    await settle();
  }
}

/** Lets promises and immediates that are under way run until nothing more follows from them. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 8; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

export interface LogLine {
  level: 'debug' | 'info' | 'warn' | 'error';
  message: string;
  fields: Record<string, unknown>;
}

/** Keeps what was logged. */
export function memoryLogger(lines: LogLine[] = [], bound: Record<string, unknown> = {}): Logger {
  const at =
    (level: LogLine['level']) =>
    (message: string, fields: Record<string, unknown> = {}): void => {
      lines.push({ level, message, fields: { ...bound, ...fields } });
    };
  return {
    debug: at('debug'),
    info: at('info'),
    warn: at('warn'),
    error: at('error'),
    child: (fields) => memoryLogger(lines, { ...bound, ...fields }),
  };
}

/** A runtime in manual time, with randomness fixed in the middle. */
export function manualRuntime(): { time: ManualTime; runtime: Runtime; lines: LogLine[] } {
  const time = new ManualTime();
  const lines: LogLine[] = [];
  return {
    time,
    lines,
    runtime: { clock: time, timers: time, random: () => 0.5, logger: memoryLogger(lines) },
  };
}
