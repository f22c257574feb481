/** One multipart upload over the SDK. Parts are remembered here, so that completing needs no listing. */
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  UploadPartCommand,
  UploadPartCopyCommand,
  type CompletedPart,
} from '@aws-sdk/client-s3';
import { StoreError, type MultipartUpload } from './contract.ts';
import type { Caller } from './retry.ts';

export class S3MultipartUpload implements MultipartUpload {
  readonly uploadId: string;
  readonly #call: Caller;
  readonly #bucket: string;
  readonly #key: string;
  readonly #parts = new Map<number, CompletedPart>();

  constructor(call: Caller, bucket: string, key: string, uploadId: string) {
    this.#call = call;
    this.#bucket = bucket;
    this.#key = key;
    this.uploadId = uploadId;
  }

  get #target() {
    return { Bucket: this.#bucket, Key: this.#key, UploadId: this.uploadId };
  }

  async uploadPart(part: number, bytes: Uint8Array, signal?: AbortSignal): Promise<void> {
    const input = { ...this.#target, PartNumber: part, Body: bytes, ContentLength: bytes.length };
    const answer = await this.#call('UploadPart', this.#key, signal, (client, options) =>
      client.send(new UploadPartCommand(input), options),
    );
    this.#keep(part, answer);
  }

  async copyPart(
    part: number,
    sourceKey: string,
    range: { start: number; end: number },
    sourceEtag: string,
    signal?: AbortSignal,
  ): Promise<void> {
    const input = {
      ...this.#target,
      PartNumber: part,
      CopySource: `${this.#bucket}/${sourceKey.split('/').map(encodeURIComponent).join('/')}`,
      CopySourceRange: `bytes=${range.start}-${range.end - 1}`,
      CopySourceIfMatch: sourceEtag,
    };
    const answer = await this.#call('UploadPartCopy', this.#key, signal, (client, options) =>
      client.send(new UploadPartCopyCommand(input), options),
    );
    this.#keep(part, answer.CopyPartResult ?? {});
  }

  async complete(
    options: { ifMatch?: string; ifNoneMatch?: boolean; signal?: AbortSignal } = {},
  ): Promise<{ etag: string }> {
    const parts = [...this.#parts.values()].sort((a, b) => (a.PartNumber ?? 0) - (b.PartNumber ?? 0));
    const input = {
      ...this.#target,
      MultipartUpload: { Parts: parts },
      IfMatch: options.ifMatch,
      IfNoneMatch: options.ifNoneMatch === true ? '*' : undefined,
    };
    const answer = await this.#call(
      'CompleteMultipartUpload',
      this.#key,
      options.signal,
      (client, callOptions) => client.send(new CompleteMultipartUploadCommand(input), callOptions),
    );
    return { etag: answer.ETag ?? '' };
  }

  /** An upload that is gone already counts as aborted. */
  async abort(): Promise<void> {
    await abortUpload(this.#call, this.#bucket, this.#key, this.uploadId);
  }

  /** A store that checks parts against a checksum wants each of them named again when completing. */
  #keep(part: number, answer: Omit<CompletedPart, 'PartNumber'>): void {
    const { ETag, ChecksumCRC32, ChecksumCRC32C, ChecksumCRC64NVME, ChecksumSHA1, ChecksumSHA256 } = answer;
    if (ETag === undefined) {
      const why = `the store gave no ETag for part ${part} of s3://${this.#bucket}/${this.#key}`;
      throw new StoreError('InvalidRequest', this.#bucket, this.#key, why);
    }
    this.#parts.set(part, {
      PartNumber: part,
      ETag,
      ...{ ChecksumCRC32, ChecksumCRC32C, ChecksumCRC64NVME, ChecksumSHA1, ChecksumSHA256 },
    });
  }
}

export async function abortUpload(
  call: Caller,
  bucket: string,
  key: string,
  uploadId: string,
): Promise<void> {
  const input = { Bucket: bucket, Key: key, UploadId: uploadId };
  try {
    await call('AbortMultipartUpload', key, undefined, (client, options) =>
      client.send(new AbortMultipartUploadCommand(input), options),
    );
  } catch (error) {
    if (error instanceof StoreError && (error.code === 'NoSuchUpload' || error.code === 'NoSuchKey')) return;
    throw error;
  }
}
