/** What an engine's outcome means for a line: its record, another attempt, or a wait. Pure. */
import type { EngineAnswer } from '../../batch/records.ts';
import type { EngineOutcome } from '../../engine/contract.ts';
import type { JobDescriptor } from '../../queue/contract.ts';

export type LineFate =
  | { kind: 'answered'; answer: EngineAnswer }
  /** All attempts ended without an answer that could be kept. */
  | { kind: 'unanswered'; message: string }
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
      return { kind: 'answered', answer: outcome };
    case 'busy':
      return { kind: 'busy', retryAfterMilliseconds: outcome.retryAfterMilliseconds };
    case 'hold':
    case 'aborted':
      return { kind: 'again' };
    case 'fault': {
      const { maxAttempts } = descriptor.retry;
      if (line.attempts + 1 < maxAttempts) return { kind: 'retry', reason: outcome.reason };
      const { status, body, requestId = '' } = outcome;
      if (status !== undefined && body !== undefined)
        return { kind: 'answered', answer: { status, requestId, body } };
      return { kind: 'unanswered', message: `${outcome.message} (attempt ${maxAttempts} of ${maxAttempts})` };
    }
  }
}

/** Exponential back-off with jitter of ±20 %, in milliseconds. @param nth counts from 1. */
export function retryPause(nth: number, initial: number, max: number, random: () => number): number {
  return Math.min(initial * 2 ** Math.min(nth - 1, 30), max) * (0.8 + 0.4 * random());
}
