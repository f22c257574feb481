/** Calls to a job's object store with what every caller needs: fresh credentials after a refusal, patience in an outage. */
import type { Clock, Logger } from '../observability/contract.ts';
import type { JobDescriptor } from '../queue/contract.ts';
import { StoreError } from '../storage/contract.ts';
import type { Credentials, JobStores } from './credentials.ts';
import { type ProblemError, problemOf } from './problems.ts';

export interface StoreAccessDependencies {
  credentials: Pick<Credentials, 'open' | 'refused'>;
  clock: Clock;
  random: () => number;
  logger: Logger;
  settings: { initialStoreRetryMilliseconds: number; maxStoreRetryMilliseconds: number };
}

export class StoreAccess {
  readonly #deps: StoreAccessDependencies;

  constructor(deps: StoreAccessDependencies) {
    this.#deps = deps;
  }

  /** One try; where the store refuses the credentials, one more with credentials read again. */
  async once<T>(descriptor: JobDescriptor, operation: (stores: JobStores) => Promise<T>): Promise<T> {
    try {
      return await operation(await this.#deps.credentials.open(descriptor));
    } catch (error) {
      if (!(error instanceof StoreError) || !isRefusal(error)) throw error;
      this.#deps.credentials.refused(descriptor);
      return operation(await this.#deps.credentials.open(descriptor));
    }
  }

  /**
   * Tries until it succeeds or the signal ends: for what would be lost otherwise. Each pause is reported, so that the
   * job says what it waits for. What waiting cannot mend is thrown at once.
   */
  async untilDone<T>(
    descriptor: JobDescriptor,
    signal: AbortSignal,
    operation: (stores: JobStores) => Promise<T>,
    onWait: (problem: ProblemError) => void,
  ): Promise<T> {
    const { initialStoreRetryMilliseconds: initial, maxStoreRetryMilliseconds: max } = this.#deps.settings;
    for (let pause = initial; ; pause = Math.min(pause * 2, max)) {
      signal.throwIfAborted();
      try {
        return await this.once(descriptor, operation);
      } catch (error) {
        const problem = problemOf(error);
        if (!problem.retryable || isAnswer(error)) throw error;
        onWait(problem);
        this.#deps.logger.warn('store not usable, waiting', {
          job: descriptor.uid,
          reason: problem.reason,
          detail: problem.message,
        });
      }
      await sleep(pause * (0.8 + 0.4 * this.#deps.random()), signal);
    }
  }
}

/** Outcomes that a caller asked to be told of; trying again would give the same. */
const isAnswer = (error: unknown): boolean =>
  error instanceof StoreError && error.code === 'PreconditionFailed';

const isRefusal = (error: StoreError): boolean =>
  error.code === 'InvalidCredentials' || error.code === 'AccessDenied';

/** Resolves early, without an error, when the signal ends. */
export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const finish = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', finish);
      resolve();
    };
    const timer = setTimeout(finish, milliseconds);
    signal.addEventListener('abort', finish, { once: true });
  });
}
