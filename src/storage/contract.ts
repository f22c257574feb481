/**
 * What the rest of Tidegate may ask of an object store. One implementation speaks S3; the same conformance
 * table (store.conformance.test.ts) runs on every one.
 */
import type { Readable } from 'node:stream';

export interface ObjectInfo {
  key: string;
  etag: string;
  bytes: number;
  /** User metadata, keys in lower case; absent in listings. */
  metadata?: Record<string, string>;
}

/** `PreconditionFailed` is never retried inside the store: it is an answer, not a fault. */
export type StoreErrorCode =
  | 'NoSuchKey'
  | 'NoSuchBucket'
  | 'AccessDenied'
  | 'InvalidCredentials'
  | 'PreconditionFailed'
  | 'NoSuchUpload'
  | 'EntityTooSmall'
  | 'InvalidRequest'
  /** Timeouts, 5xx, SlowDown, connection faults: already retried a few times; waiting may help. */
  | 'Unavailable'
  | 'Aborted';

export class StoreError extends Error {
  readonly code: StoreErrorCode;
  readonly bucket: string;
  readonly key: string | undefined;
  constructor(
    code: StoreErrorCode,
    bucket: string,
    key: string | undefined,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = 'StoreError';
    this.code = code;
    this.bucket = bucket;
    this.key = key;
  }
}

export interface GetOptions {
  /** Bytes [start, end). */
  range?: { start: number; end: number };
  ifMatch?: string;
  signal?: AbortSignal;
}

export interface PutOptions {
  ifNoneMatch?: boolean;
  ifMatch?: string;
  metadata?: Record<string, string>;
  contentType?: string;
  signal?: AbortSignal;
}

/** One open multipart upload. Parts may be uploaded in any order; numbers start at 1. */
export interface MultipartUpload {
  readonly uploadId: string;
  uploadPart(part: number, bytes: Uint8Array, signal?: AbortSignal): Promise<void>;
  /** Copies bytes [start, end) of `sourceKey` inside the store; at most 5 GiB; fails with PreconditionFailed when the ETag differs. */
  copyPart(
    part: number,
    sourceKey: string,
    range: { start: number; end: number },
    sourceEtag: string,
    signal?: AbortSignal,
  ): Promise<void>;
  complete(options?: {
    ifMatch?: string;
    ifNoneMatch?: boolean;
    signal?: AbortSignal;
  }): Promise<{ etag: string }>;
  abort(): Promise<void>;
}

/** One bucket seen with one set of credentials. Closing is the provider's business. */
export interface ObjectStore {
  readonly bucket: string;
  head(key: string, signal?: AbortSignal): Promise<ObjectInfo>;
  /** The body must be consumed or destroyed. A cut connection is resumed from the last byte with If-Match. */
  get(key: string, options?: GetOptions): Promise<{ info: ObjectInfo; body: Readable }>;
  getBytes(key: string, options?: GetOptions): Promise<{ info: ObjectInfo; bytes: Buffer }>;
  put(key: string, bytes: Uint8Array, options?: PutOptions): Promise<{ etag: string }>;
  createMultipart(
    key: string,
    options?: { metadata?: Record<string, string>; contentType?: string; signal?: AbortSignal },
  ): Promise<MultipartUpload>;
  listUploads(keyOrPrefix: string, signal?: AbortSignal): Promise<{ key: string; uploadId: string }[]>;
  abortUpload(key: string, uploadId: string): Promise<void>;
  /** All pages, in key order. */
  list(prefix: string, options?: { startAfter?: string; signal?: AbortSignal }): AsyncIterable<ObjectInfo>;
  delete(key: string): Promise<void>;
  deleteMany(keys: string[]): Promise<void>;
  /** Whether If-None-Match on PUT and on CompleteMultipartUpload is honoured; probed once per bucket below `probePrefix`. */
  honoursConditions(probePrefix: string): Promise<{ put: boolean; complete: boolean }>;
}

export interface S3Connection {
  bucket: string;
  region?: string | undefined;
  endpoint?: string | undefined;
  forcePathStyle?: boolean | undefined;
  /** PEM. */
  caBundle?: string | undefined;
  /** Absent: the process's own identity. */
  credentials?:
    { accessKeyId: string; secretAccessKey: string; sessionToken?: string | undefined } | undefined;
}
