/** Repeating a call a bounded number of times, with random pauses so that many workers do not return at once. */
import type { S3Client } from '@aws-sdk/client-s3';
import { setTimeout as pause } from 'node:timers/promises';
import { StoreError } from './contract.ts';
import { judge, type CallContext } from './errors.ts';
import type { StoreSettings } from './settings.ts';

export interface CallDependencies {
  settings: StoreSettings;
  /** Told of every attempt: code is `ok` or a bounded error label; seconds to the answer's headers. */
  onCall: (operation: string, code: string, seconds: number) => void;
  random: () => number;
  monotonic: () => number;
}

/** One request, retried; `send` is called once an attempt with a client that stays open until it settles. */
export type Caller = <T>(
  operation: string,
  key: string | undefined,
  signal: AbortSignal | undefined,
  send: (client: S3Client, options: { abortSignal?: AbortSignal }) => Promise<T>,
) => Promise<T>;

/** @throws StoreError; `Unavailable` when every attempt failed. */
export async function withRetries<T>(
  deps: CallDependencies,
  call: CallContext,
  attempt: () => Promise<T>,
): Promise<T> {
  for (let failed = 0; ;) {
    throwIfAborted(call);
    const start = deps.monotonic();
    const took = (): number => (deps.monotonic() - start) / 1000;
    try {
      const answer = await attempt();
      deps.onCall(call.operation, 'ok', took());
      return answer;
    } catch (thrown) {
      const failure = judge(thrown, call);
      deps.onCall(call.operation, failure.label, took());
      failed += 1;
      if (!failure.retryable) throw failure.error;
      if (failed >= deps.settings.maxAttempts) {
        throw new StoreError(
          'Unavailable',
          call.bucket,
          call.key,
          `${failure.error.message} (after ${failed} attempts)`,
        );
      }
      await backOff(deps, failed - 1, call);
    }
  }
}

/** Waits before attempt `n + 2`; ends early, with `Aborted`, when the signal fires. */
export async function backOff(
  deps: Pick<CallDependencies, 'settings' | 'random'>,
  n: number,
  call: CallContext,
): Promise<void> {
  const { initialBackoffMilliseconds, maxBackoffMilliseconds } = deps.settings;
  const ceiling = Math.min(initialBackoffMilliseconds * 2 ** n, maxBackoffMilliseconds);
  try {
    await pause(deps.random() * ceiling, undefined, { signal: call.signal });
  } catch {
    throwIfAborted(call);
  }
}

function throwIfAborted(call: CallContext): void {
  if (call.signal?.aborted === true) {
    throw new StoreError('Aborted', call.bucket, call.key, `${call.operation}: aborted`);
  }
}
