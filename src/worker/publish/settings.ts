const MiB = 1024 * 1024;

export interface PublishSettings {
  /** Size of uploaded parts; S3 wants at least 5 MiB for all but the last. */
  partBytes: number;
  partsInFlight: number;
  /** A published file of at least this size is copied by the store; S3 refuses smaller copied parts. */
  minCopyBytes: number;
  /**
   * Largest range copied in one call. S3 allows 5 GiB, but a call is given up when the connection is silent for a
   * minute, and stores that really copy need about 4 s for each GiB.
   */
  copyRangeBytes: number;
  copiesInFlight: number;
  /** Small reads (headers, small segments) at a time. */
  readsInFlight: number;
  /** Segments up to this size are read ahead whole; larger ones are streamed. */
  readAheadBytes: number;
  /** Shards appended by one publish at most: bounds the memory for their headers (about 1 kB each). */
  maxShards: number;
  /** How often finalize tries again after another publisher was faster. */
  supersededRetries: number;
  /** Grows with each of these. */
  supersededPauseMilliseconds: number;
  /** Unfinished shards given their records at a time, and bytes of checkpoints and results held for that. */
  shardsInFlight: number;
  checkpointBytesInFlight: number;
}

export const defaultPublishSettings: PublishSettings = {
  partBytes: 8 * MiB,
  partsInFlight: 2,
  minCopyBytes: 5 * MiB,
  copyRangeBytes: 1024 * MiB,
  copiesInFlight: 4,
  readsInFlight: 16,
  readAheadBytes: MiB,
  maxShards: 50_000,
  supersededRetries: 10,
  supersededPauseMilliseconds: 200,
  shardsInFlight: 16,
  checkpointBytesInFlight: 64 * MiB,
};

/** S3 allows 10,000 parts; what is copied and what is uploaded get half of them each. */
export const MAX_PARTS_EACH = 4_900;
