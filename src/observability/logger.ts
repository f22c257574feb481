import type { Writable } from 'node:stream';
import { createLogger as createWinston, format, transports, type Logger as Winston } from 'winston';
import { systemClock } from './clock.ts';
import type { Clock, Logger } from './contract.ts';
import { redact, redactText } from './redaction.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface LoggerSettings {
  level: LogLevel;
  /** On every line, such as `{ role: 'worker' }`. */
  fields?: Record<string, unknown>;
  /** Default: stdout. */
  stream?: Writable;
  clock?: Clock;
}

/** Names each line has of its own; a field of the same name is kept under `field_<name>`. */
const RESERVED = new Set(['time', 'level', 'message']);

/**
 * One JSON object a line: time, level, message, then the fields. Secrets are redacted by name and by looks,
 * errors are written with stack and code. Writing a line never throws.
 */
export function createLogger(settings: LoggerSettings): Logger {
  const clock = settings.clock ?? systemClock;
  const winston = createWinston({
    level: settings.level,
    format: format.printf((entry) =>
      line(clock, entry.level, entry.message, entry['bound'], entry['fields']),
    ),
    transports: [new transports.Stream({ stream: settings.stream ?? process.stdout, eol: '\n' })],
    exitOnError: false,
  });
  return wrap(winston, settings.fields ?? {});
}

/** A logger that writes nothing, for tests and for code that may run without one. */
export const silentLogger: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => silentLogger,
};

function wrap(winston: Winston, bound: Record<string, unknown>): Logger {
  const at =
    (level: LogLevel) =>
    (message: string, fields?: Record<string, unknown>): void => {
      if (!winston.isLevelEnabled(level)) return;
      winston.log({ level, message, bound, fields });
    };
  return {
    debug: at('debug'),
    info: at('info'),
    warn: at('warn'),
    error: at('error'),
    child: (fields) => wrap(winston, { ...bound, ...fields }),
  };
}

function line(clock: Clock, level: string, message: unknown, bound: unknown, fields: unknown): string {
  const head = { time: new Date(clock.now()).toISOString(), level, message: redactText(String(message)) };
  try {
    const body: Record<string, unknown> = {};
    for (const some of [bound, fields]) {
      for (const [name, value] of Object.entries(redact(some ?? {}) as Record<string, unknown>)) {
        body[RESERVED.has(name) ? `field_${name}` : name] = value;
      }
    }
    return JSON.stringify({ ...head, ...body });
  } catch (error) {
    // A field with a throwing getter must not take the line, or the process, with it.
    return JSON.stringify({ ...head, fieldsLost: String(error) });
  }
}
