/** The object store over S3, by the SDK. Every call is retried, measured and judged in one place (`Caller`). */
import {
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  type GetObjectCommandOutput,
  type S3Client,
} from '@aws-sdk/client-s3';
import { Readable } from 'node:stream';
import { ResumingBody } from './body.ts';
import type { Clients, ClientLease, ConditionSupport } from './clients.ts';
import { clientId } from './clients.ts';
import { probeConditions } from './conditions.ts';
import {
  StoreError,
  type GetOptions,
  type MultipartUpload,
  type ObjectInfo,
  type ObjectStore,
  type PutOptions,
  type S3Connection,
} from './contract.ts';
import { abortUpload, S3MultipartUpload } from './multipart.ts';
import { backOff, withRetries, type CallDependencies, type Caller } from './retry.ts';

/** S3 deletes at most this many keys in one request. */
const DELETE_BATCH = 1000;
const SINGLE_DELETES_AT_ONCE = 16;

export class S3Store implements ObjectStore {
  readonly bucket: string;
  readonly #connection: S3Connection;
  readonly #clientId: string;
  readonly #clients: Clients;
  readonly #deps: CallDependencies;

  constructor(connection: S3Connection, clients: Clients, deps: CallDependencies) {
    this.bucket = connection.bucket;
    this.#connection = connection;
    this.#clientId = clientId(connection);
    this.#clients = clients;
    this.#deps = deps;
  }

  async head(key: string, signal?: AbortSignal): Promise<ObjectInfo> {
    return this.#head(key, undefined, signal);
  }

  async get(key: string, options: GetOptions = {}): Promise<{ info: ObjectInfo; body: Readable }> {
    const { range, ifMatch, signal } = options;
    if (range !== undefined && range.end <= range.start) {
      // S3 has no way to ask for nothing, and a reader of an empty range still wants to know that the object is there.
      return { info: await this.#head(key, ifMatch, signal), body: Readable.from([]) };
    }
    const lease = this.#lease();
    try {
      const opened = await this.#open(lease, key, range, ifMatch, signal);
      const call = { operation: 'GetObject', bucket: this.bucket, key, signal };
      const body = new ResumingBody(opened.body, {
        call,
        expectedBytes: opened.end - opened.start,
        maxAttempts: this.#deps.settings.maxAttempts,
        backOff: (n) => backOff(this.#deps, n, call),
        reopen: async (received) => {
          const rest = { start: opened.start + received, end: opened.end };
          return (await this.#open(lease, key, rest, opened.info.etag, signal)).body;
        },
        closed: () => lease.release(),
      });
      return { info: opened.info, body };
    } catch (error) {
      lease.release();
      throw error;
    }
  }

  async getBytes(key: string, options: GetOptions = {}): Promise<{ info: ObjectInfo; bytes: Buffer }> {
    const { info, body } = await this.get(key, options);
    const chunks: Buffer[] = [];
    for await (const chunk of body) chunks.push(chunk as Buffer);
    const only = chunks[0];
    return { info, bytes: chunks.length === 1 && only !== undefined ? only : Buffer.concat(chunks) };
  }

  async put(key: string, bytes: Uint8Array, options: PutOptions = {}): Promise<{ etag: string }> {
    const input = {
      Bucket: this.bucket,
      Key: key,
      Body: bytes,
      ContentLength: bytes.length,
      ContentType: options.contentType,
      Metadata: options.metadata,
      IfNoneMatch: options.ifNoneMatch === true ? '*' : undefined,
      IfMatch: options.ifMatch,
    };
    const answer = await this.#call('PutObject', key, options.signal, (client, callOptions) =>
      client.send(new PutObjectCommand(input), callOptions),
    );
    return { etag: answer.ETag ?? '' };
  }

  async createMultipart(
    key: string,
    options: { metadata?: Record<string, string>; contentType?: string; signal?: AbortSignal } = {},
  ): Promise<MultipartUpload> {
    const input = {
      Bucket: this.bucket,
      Key: key,
      Metadata: options.metadata,
      ContentType: options.contentType,
    };
    const answer = await this.#call('CreateMultipartUpload', key, options.signal, (client, callOptions) =>
      client.send(new CreateMultipartUploadCommand(input), callOptions),
    );
    if (answer.UploadId === undefined) throw this.#broken(key, 'the store gave no id for the new upload');
    return new S3MultipartUpload(this.#call, this.bucket, key, answer.UploadId);
  }

  async listUploads(keyOrPrefix: string, signal?: AbortSignal): Promise<{ key: string; uploadId: string }[]> {
    const uploads: { key: string; uploadId: string }[] = [];
    let marker: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } = {};
    for (;;) {
      const input = { Bucket: this.bucket, Prefix: keyOrPrefix, ...marker };
      const page = await this.#call('ListMultipartUploads', keyOrPrefix, signal, (client, options) =>
        client.send(new ListMultipartUploadsCommand(input), options),
      );
      for (const { Key, UploadId } of page.Uploads ?? []) {
        if (Key !== undefined && UploadId !== undefined && Key.startsWith(keyOrPrefix))
          uploads.push({ key: Key, uploadId: UploadId });
      }
      if (page.IsTruncated !== true) return uploads;
      const next = { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker };
      if (next.KeyMarker === marker.KeyMarker && next.UploadIdMarker === marker.UploadIdMarker)
        throw this.#broken(keyOrPrefix, 'the store lists the same page of uploads for ever');
      marker = next;
    }
  }

  async abortUpload(key: string, uploadId: string): Promise<void> {
    await abortUpload(this.#call, this.bucket, key, uploadId);
  }

  async *list(
    prefix: string,
    options: { startAfter?: string; signal?: AbortSignal } = {},
  ): AsyncIterable<ObjectInfo> {
    let token: string | undefined;
    for (;;) {
      const input = {
        Bucket: this.bucket,
        Prefix: prefix,
        ContinuationToken: token,
        StartAfter: options.startAfter,
      };
      const page = await this.#call('ListObjectsV2', prefix, options.signal, (client, callOptions) =>
        client.send(new ListObjectsV2Command(input), callOptions),
      );
      for (const { Key, ETag, Size } of page.Contents ?? []) {
        if (Key !== undefined) yield { key: Key, etag: ETag ?? '', bytes: Size ?? 0 };
      }
      if (page.IsTruncated !== true) return;
      if (page.NextContinuationToken === undefined || page.NextContinuationToken === token)
        throw this.#broken(prefix, 'the store lists the same page of objects for ever');
      token = page.NextContinuationToken;
    }
  }

  async delete(key: string): Promise<void> {
    const input = { Bucket: this.bucket, Key: key };
    try {
      await this.#call('DeleteObject', key, undefined, (client, options) =>
        client.send(new DeleteObjectCommand(input), options),
      );
    } catch (error) {
      // S3 answers 204 for a key that is not there; some stores do not.
      if (!(error instanceof StoreError && error.code === 'NoSuchKey')) throw error;
    }
  }

  async deleteMany(keys: string[]): Promise<void> {
    for (let at = 0; at < keys.length; at += DELETE_BATCH) {
      const batch = keys.slice(at, at + DELETE_BATCH);
      const left = await this.#deleteBatch(batch);
      for (let n = 0; n < left.length; n += SINGLE_DELETES_AT_ONCE) {
        await Promise.all(left.slice(n, n + SINGLE_DELETES_AT_ONCE).map((key) => this.delete(key)));
      }
    }
  }

  async honoursConditions(probePrefix: string): Promise<ConditionSupport> {
    const lease = this.#lease();
    try {
      lease.facts.conditions ??= probeConditions(this, probePrefix);
      return await lease.facts.conditions;
    } catch (error) {
      lease.facts.conditions = undefined;
      throw error;
    } finally {
      lease.release();
    }
  }

  readonly #call: Caller = async (operation, key, signal, send) => {
    const lease = this.#lease();
    try {
      const answer = await this.#attempts(lease, operation, key, signal, send);
      return answer;
    } finally {
      lease.release();
    }
  };

  async #attempts<T>(
    lease: ClientLease,
    operation: string,
    key: string | undefined,
    signal: AbortSignal | undefined,
    send: (client: S3Client, options: { abortSignal?: AbortSignal }) => Promise<T>,
  ): Promise<T> {
    const call = { operation, bucket: this.bucket, key, signal };
    const answer = await withRetries(this.#deps, call, () =>
      send(lease.client, signal === undefined ? {} : { abortSignal: signal }),
    );
    lease.facts.exists = true;
    return answer;
  }

  /** The answer to HEAD has no body, so its 403 and 404 do not say why; a ranged GET of the same key does. */
  async #head(
    key: string,
    ifMatch: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<ObjectInfo> {
    const lease = this.#lease();
    try {
      const input = { Bucket: this.bucket, Key: key, IfMatch: ifMatch };
      const answer = await this.#attempts(lease, 'HeadObject', key, signal, (client, options) =>
        client.send(new HeadObjectCommand(input), options),
      );
      return infoOf(key, answer, answer.ContentLength ?? 0);
    } catch (error) {
      if (!(error instanceof StoreError) || !this.#needsExplanation(error, lease)) throw error;
      const { info, body } = await this.#open(lease, key, { start: 0, end: 1 }, ifMatch, signal);
      body.destroy();
      return info;
    } finally {
      lease.release();
    }
  }

  #needsExplanation(error: StoreError, lease: ClientLease): boolean {
    if (error.code === 'NoSuchKey') return !lease.facts.exists;
    return error.code === 'AccessDenied' || error.code === 'InvalidRequest';
  }

  /** Opens one connection to the bytes [start, end) of an object, clipped to its size. */
  async #open(
    lease: ClientLease,
    key: string,
    range: { start: number; end: number } | undefined,
    ifMatch: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<{ info: ObjectInfo; body: Readable; start: number; end: number }> {
    const input = {
      Bucket: this.bucket,
      Key: key,
      Range: range === undefined ? undefined : `bytes=${range.start}-${range.end - 1}`,
      IfMatch: ifMatch === '' ? undefined : ifMatch,
    };
    const answer = await this.#attempts(lease, 'GetObject', key, signal, (client, options) =>
      client.send(new GetObjectCommand(input), options),
    );
    const body = answer.Body as Readable;
    const sent = sentRange(answer);
    if (sent === undefined || (range !== undefined && (sent.start !== range.start || sent.end > range.end))) {
      body.destroy();
      throw this.#broken(
        key,
        `the store answered bytes ${answer.ContentRange ?? 'of the whole object'} for ${input.Range}`,
      );
    }
    return { info: infoOf(key, answer, sent.total), body, start: sent.start, end: sent.end };
  }

  /** @returns keys that must be deleted one by one, where the store has no DeleteObjects. */
  async #deleteBatch(keys: string[]): Promise<string[]> {
    const input = {
      Bucket: this.bucket,
      Delete: { Quiet: true, Objects: keys.map((Key) => ({ Key })) },
    };
    try {
      const answer = await this.#call('DeleteObjects', undefined, undefined, (client, options) =>
        client.send(new DeleteObjectsCommand(input), options),
      );
      return (answer.Errors ?? []).flatMap(({ Key }) => (Key === undefined ? [] : [Key]));
    } catch (error) {
      if (error instanceof StoreError && error.code === 'InvalidRequest') return keys;
      throw error;
    }
  }

  #lease(): ClientLease {
    return this.#clients.lease(this.#connection, this.#clientId);
  }

  #broken(key: string, why: string): StoreError {
    return new StoreError('InvalidRequest', this.bucket, key, `s3://${this.bucket}/${key}: ${why}`);
  }
}

interface Answer {
  ETag?: string | undefined;
  Metadata?: Record<string, string> | undefined;
}

/** `bytes` is the size of the whole object, also when a range of it was read. */
const infoOf = (key: string, answer: Answer, bytes: number): ObjectInfo => ({
  key,
  etag: answer.ETag ?? '',
  bytes,
  metadata: answer.Metadata ?? {},
});

function sentRange(
  answer: GetObjectCommandOutput,
): { start: number; end: number; total: number } | undefined {
  if (answer.ContentRange === undefined) {
    const total = answer.ContentLength;
    return total === undefined ? undefined : { start: 0, end: total, total };
  }
  const [, first, last, total] = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(answer.ContentRange) ?? [];
  if (first === undefined || last === undefined || total === undefined) return undefined;
  return { start: Number(first), end: Number(last) + 1, total: Number(total) };
}
