/**
 * - `OutputExists`: an object under the output prefix, or the claim on it, is not this job's; it is never overwritten.
 * - `Superseded`: another publisher was faster or took over; what it published stands. Nothing to do but look again.
 * - `ResultChanged`: a shard result is not the one that was used before (only on stores without conditional writes).
 * - `PublishedDamaged`: a published file is not what its metadata says: someone else wrote to it.
 * - `IndexMissing`: a job that is said to be complete has no index.
 */
export type PublishErrorCode =
  'OutputExists' | 'Superseded' | 'ResultChanged' | 'PublishedDamaged' | 'IndexMissing';

export class PublishError extends Error {
  readonly code: PublishErrorCode;
  constructor(code: PublishErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'PublishError';
    this.code = code;
  }
}
