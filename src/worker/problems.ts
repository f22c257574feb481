/** A reason why a task or shard cannot be done now, as the job's conditions will show it. */
import { StoreError } from '../storage/contract.ts';

export class ProblemError extends Error {
  readonly reason: string;
  /** Waiting, or a change outside of the job, can help. */
  readonly retryable: boolean;
  constructor(reason: string, message: string, retryable: boolean, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ProblemError';
    this.reason = reason;
    this.retryable = retryable;
  }
}

/** Codes thrown by src/batch and the publisher as `code`, which no waiting will mend. */
const DEFINITIVE = new Set(['InputChanged', 'OutputExists', 'EmptyInput', 'InvalidInput', 'LimitExceeded']);

/** Any failure as a problem with a reason; unknown ones are retryable, and their message is kept. */
export function problemOf(error: unknown): ProblemError {
  if (error instanceof ProblemError) return error;
  if (error instanceof StoreError)
    return new ProblemError(storeReason(error), error.message, true, { cause: error });
  const message = error instanceof Error ? error.message : String(error);
  const code = (error as { code?: unknown } | null)?.code;
  if (typeof code === 'string' && DEFINITIVE.has(code))
    return new ProblemError(code, message, false, { cause: error });
  if (code === 'DiskFull' || code === 'ENOSPC')
    return new ProblemError('DiskFull', message, true, { cause: error });
  return new ProblemError('InternalError', message, true, { cause: error });
}

function storeReason(error: StoreError): string {
  switch (error.code) {
    case 'NoSuchBucket':
    case 'NoSuchKey':
    case 'AccessDenied':
      return error.code;
    case 'InvalidCredentials':
      return 'CredentialsInvalid';
    case 'PreconditionFailed':
    case 'NoSuchUpload':
    case 'EntityTooSmall':
    case 'InvalidRequest':
    case 'Unavailable':
    case 'Aborted':
      return 'StorageUnavailable';
  }
}
