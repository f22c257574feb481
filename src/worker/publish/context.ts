/** What publishing, finalising and cleaning up need to know of a job and may use. */
import type { JobLayout } from '../../batch/layout.ts';
import type { Clock, FailPoint, Logger } from '../../observability/contract.ts';
import { type ObjectInfo, type ObjectStore, StoreError } from '../../storage/contract.ts';
import type { PublishSettings } from './settings.ts';

export interface PublishContext {
  /** The job's output. */
  store: ObjectStore;
  layout: JobLayout;
  jobUID: string;
  signal: AbortSignal;
  settings: PublishSettings;
  failPoint: FailPoint;
  clock: Clock;
  logger: Logger;
  /** A new unique id, for what this run writes. */
  newId: () => string;
  /** Uniform in [0, 1): keeps two publishers that met once from meeting again and again. */
  random: () => number;
}

/** Metadata of every object directly under the output prefix: whose it is. */
export const JOB_UID = 'tidegate-job-uid';

/** undefined where there is no such object. */
export async function headIfThere(
  store: ObjectStore,
  key: string,
  signal?: AbortSignal,
): Promise<ObjectInfo | undefined> {
  return ifThere(store.head(key, signal));
}

/** Waits for a read of an object that need not exist. */
export async function ifThere<T>(read: Promise<T>): Promise<T | undefined> {
  try {
    return await read;
  } catch (error) {
    if (hasCode(error, 'NoSuchKey')) return undefined;
    throw error;
  }
}

export const hasCode = (error: unknown, ...codes: StoreError['code'][]): boolean =>
  error instanceof StoreError && codes.includes(error.code);

export const uriOf = (store: ObjectStore, key: string): string => `s3://${store.bucket}/${key}`;
