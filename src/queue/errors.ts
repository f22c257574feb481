/** What can go wrong between a role and Redis. FencedOut stands in contract.ts, since callers act on it. */

export type QueueUnavailableCode =
  /** No connection, or one that does not answer. */
  | 'Unreachable'
  /** Connected, but no answer within the command timeout; the command may still take effect. */
  | 'Timeout'
  /** Redis reached `maxmemory` and refuses writes. */
  | 'OutOfMemory'
  /** Redis answers, but cannot serve yet or any more: loading, read-only replica, busy script. */
  | 'NotServing'
  /** This side of the queue was closed. */
  | 'Closed';

/** Redis cannot do what was asked now. Nothing is wrong with the request: asking again later is right. */
export class QueueUnavailable extends Error {
  readonly code: QueueUnavailableCode;
  constructor(code: QueueUnavailableCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'QueueUnavailable';
    this.code = code;
  }
}

/** The BullMQ entry of a shard or task is no longer ours: its lock ran out or Redis forgot it. */
export class LockLost extends Error {
  constructor(entry: string) {
    super(`lock of queue entry ${entry} is lost; another worker may run it`);
    this.name = 'LockLost';
  }
}

/** The worker is closing and its grace period is nearly over. */
export class GraceOver extends Error {
  constructor(entry: string) {
    super(`worker is closing and ${entry} has not ended within the grace period`);
    this.name = 'GraceOver';
  }
}

const SERVING_FAULTS =
  /^(LOADING|READONLY|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS|UNKILLABLE)\b/;

/**
 * Names a fault of Redis or its connection; undefined for anything else (a wrong command, a script error), which
 * is a defect of ours and must not be retried in silence.
 */
export function unavailability(error: unknown): QueueUnavailable | undefined {
  if (error instanceof QueueUnavailable) return error;
  if (!(error instanceof Error)) return undefined;
  const { message } = error;
  const options = { cause: error };
  if (/\bOOM command not allowed/.test(message)) {
    return new QueueUnavailable('OutOfMemory', 'Redis is out of memory and refuses writes', options);
  }
  if (SERVING_FAULTS.test(message)) {
    return new QueueUnavailable('NotServing', `Redis cannot serve: ${message.slice(0, 80)}`, options);
  }
  if (message === 'Command timed out') {
    return new QueueUnavailable('Timeout', 'Redis did not answer in time', options);
  }
  const { code, name } = error as NodeJS.ErrnoException;
  const connectionFault =
    (typeof code === 'string' && /^(E[A-Z]+|ERR_TLS|UND_)/.test(code)) ||
    name === 'MaxRetriesPerRequestError' ||
    /Connection is closed|Stream isn't writeable|Socket timeout|Socket closed|max retries|ended by the other party/i.test(
      message,
    );
  return connectionFault
    ? new QueueUnavailable('Unreachable', 'Redis cannot be reached', options)
    : undefined;
}
