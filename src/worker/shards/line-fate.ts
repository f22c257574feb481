/** What an engine's outcome means for a line: its record, another attempt, or a wait. Pure. */
import { MAX_ANSWER_BYTES } from '../../batch/model.ts';
import type { EngineOutcome } from '../../engine/contract.ts';
import type { JobDescriptor } from '../../queue/contract.ts';

export type LineFate =
  | { kind: 'record'; answer: { status: number; requestId: string; body: Buffer } }
  /** No answer that could be kept; the line failed for good. */
  | { kind: 'record'; error: { code: string; message: string } }
  /** The line loses nothing and may be sent again as soon as something is open. */
  | { kind: 'again' }
  | { kind: 'busy'; retryAfterMilliseconds: number | undefined }
  | { kind: 'retry'; reason: string };

/** @param line `attempts` counts the attempts that faults have used up before this one. */
export function judge(
  outcome: EngineOutcome,
  line: { attempts: number },
  descriptor: Pick<JobDescriptor, 'retry'>,
): LineFate {
  switch (outcome.kind) {
    case 'answer':
      if (outcome.tooLarge === true) {
        const message = `the engine's answer is larger than ${MAX_ANSWER_BYTES} bytes`;
        return { kind: 'record', error: { code: 'answer_too_large', message } };
      }
      return { kind: 'record', answer: outcome };
    case 'busy':
      return { kind: 'busy', retryAfterMilliseconds: outcome.retryAfterMilliseconds };
    case 'hold':
    case 'aborted':
      return { kind: 'again' };
    case 'fault': {
      if (line.attempts + 1 < descriptor.retry.maxAttempts) return { kind: 'retry', reason: outcome.reason };
      if (outcome.status !== undefined && outcome.status >= 400 && outcome.body !== undefined) {
        return {
          kind: 'record',
          answer: { status: outcome.status, requestId: outcome.requestId ?? '', body: outcome.body },
        };
      }
      const message = `${outcome.message} (after ${descriptor.retry.maxAttempts} attempts)`;
      return { kind: 'record', error: { code: FAULT_CODES[outcome.reason], message } };
    }
  }
}

const FAULT_CODES: Record<Extract<EngineOutcome, { kind: 'fault' }>['reason'], string> = {
  ConnectionLost: 'connection_lost',
  ServerError: 'server_error',
  Timeout: 'request_timeout',
  InvalidAnswer: 'invalid_answer',
  ErrorInAnswer: 'error_in_answer',
};

/** Exponential back-off with jitter of ±20 %, in milliseconds. @param nth counts from 1. */
export function retryPause(nth: number, initial: number, max: number, random: () => number): number {
  return Math.min(initial * 2 ** Math.min(nth - 1, 30), max) * (0.8 + 0.4 * random());
}
