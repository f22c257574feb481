/** Logging, metrics and fail points as every other room sees them. */

export interface Logger {
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
  /** A logger that adds these fields to every line. */
  child(fields: Record<string, unknown>): Logger;
}

/** Time, injected everywhere; tests move it by hand. */
export interface Clock {
  /** Epoch milliseconds (wall clock: for what users see). */
  now(): number;
  /** Milliseconds that never go back (for leases, timeouts, rates). */
  monotonic(): number;
}

/**
 * A named moment at which a test may stop, kill or fail this process (see failpoints.ts). Does nothing unless
 * fail points were armed at start.
 */
export type FailPoint = (name: string) => Promise<void>;
