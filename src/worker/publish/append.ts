/**
 * Appends to one published file: a multipart upload that copies the file inside the store, adds the new bytes, and
 * replaces the file in one atomic step.
 *
 * Two publishers may be at work at once, and one may be frozen at any line below and go on hours later. Why a
 * reader nevertheless only ever sees versions of which each is a byte prefix of the next:
 *
 * Each publisher P does, in this order, (1) create its upload, (2) list the uploads of the key and abort all others,
 * (3) look whether the file is still the version E it starts from, and give up if not, (4) complete. Claim: when P
 * completes, the file is still E. Suppose another publisher Q completed between (3) and (4) of P.
 *   - If P created before Q listed, then Q aborted P's upload in its step 2, thus before Q completed, thus before P
 *     completes: the store refuses P's Complete with NoSuchUpload.
 *   - Otherwise Q listed before P created. Q created before it listed, so before P created, so before P listed:
 *     P aborted Q's upload in its step 2, before its step 3, and Q cannot have completed after that.
 * Either way one of the two Completes fails, so nothing comes between (3) and (4). (Where the abort and the Complete
 * of one upload meet, the store lets one of them win; if it is the Complete, it came before the aborter's step 3,
 * which then sees the new version.) The argument needs a store that answers list, head and abort with its latest
 * state, and that every writer of these keys uses multipart uploads, however small the file is. It needs no
 * conditional writes; where CompleteMultipartUpload honours If-Match, that refuses the same cases once more.
 */
import type { MultipartUpload } from '../../storage/contract.ts';
import { hasCode, headIfThere, JOB_UID, uriOf, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';
import { encodeMetadata, type FileName, type PublishedFile } from './position.ts';
import { MAX_PARTS_EACH } from './settings.ts';

export interface Append {
  file: FileName;
  /** The version that is added to; undefined where the file does not exist yet. */
  before: PublishedFile | undefined;
  /** What the file will be. */
  after: Omit<PublishedFile, 'etag' | 'publishId'>;
  /** Exactly `after.bytes - before.bytes` bytes. */
  tail: () => AsyncIterable<Buffer>;
}

/** How often a version that lost its metadata is written again, before the store is taken to keep none. */
const REWRITES = 3;

/** @throws PublishError Superseded, PublishedDamaged; StoreError; whatever reading the tail throws. */
export async function append(
  context: PublishContext,
  change: Append,
  rewrites = REWRITES,
): Promise<PublishedFile> {
  const { store, layout, jobUID, signal, failPoint } = context;
  const { file, before } = change;
  const key = layout[file];
  const after = { ...change.after, publishId: context.newId() };
  await failPoint(`publish.${file}.begin`);
  const upload = await store.createMultipart(key, {
    metadata: encodeMetadata(jobUID, after),
    contentType: 'application/jsonl',
    signal,
  });
  try {
    await failPoint(`publish.${file}.upload-created`);
    await abortOthers(context, key, upload);
    await failPoint(`publish.${file}.others-aborted`);
    const now = await headIfThere(store, key, signal);
    if (now?.etag !== before?.etag) throw superseded(context, key);
    await failPoint(`publish.${file}.checked`);
    await uploadAll(context, change, upload);
    await failPoint(`publish.${file}.parts-uploaded`);
    const etag = await complete(context, key, upload, before, after.publishId);
    await failPoint(`publish.${file}.completed`);
    return await labelled(context, file, { ...after, etag }, rewrites);
  } catch (error) {
    await upload.abort().catch(() => undefined);
    throw error;
  }
}

/**
 * Makes sure that the version just written has its metadata. A store may lose it without a word where somebody's abort
 * of the upload meets its Complete (seen on versitygw 1.8); then the same bytes are written once more.
 */
async function labelled(
  context: PublishContext,
  file: FileName,
  written: PublishedFile,
  rewrites: number,
): Promise<PublishedFile> {
  const { store, layout, signal, logger, jobUID } = context;
  const now = await headIfThere(store, layout[file], signal);
  if (now?.etag !== written.etag || now.metadata?.[JOB_UID] !== undefined) return written;
  if (rewrites === 0) {
    const message = `${uriOf(store, layout[file])}: the store does not keep the metadata of multipart uploads`;
    throw new PublishError('PublishedDamaged', message);
  }
  logger.warn('published file lost its metadata; writing it again', { job: jobUID, file });
  const { etag: _, publishId: __, ...after } = written;
  return append(context, { file, before: written, after, tail: nothing }, rewrites - 1);
}

async function* nothing(): AsyncGenerator<Buffer> {}

async function abortOthers(
  { store, signal }: PublishContext,
  key: string,
  own: MultipartUpload,
): Promise<void> {
  for (const other of await store.listUploads(key, signal)) {
    if (other.key === key && other.uploadId !== own.uploadId) await store.abortUpload(key, other.uploadId);
  }
}

async function uploadAll(context: PublishContext, change: Append, upload: MultipartUpload): Promise<void> {
  const { store, layout, settings, signal } = context;
  const { before, after, file } = change;
  const key = layout[file];
  const tailLength = after.bytes - (before?.bytes ?? 0);
  const partBytes = Math.max(settings.partBytes, Math.ceil(tailLength / MAX_PARTS_EACH));
  try {
    const parts = new PartWriter(upload, partBytes, settings.partsInFlight, signal);
    if (before !== undefined && before.bytes >= settings.minCopyBytes) {
      parts.next = await copyAll(context, key, before, upload);
    } else if (before !== undefined && before.bytes > 0) {
      const { bytes } = await store.getBytes(key, { ifMatch: before.etag, signal });
      await parts.write(bytes);
    }
    let added = 0;
    for await (const chunk of change.tail()) {
      added += chunk.length;
      await parts.write(chunk);
    }
    await parts.end();
    if (added !== tailLength) throw new Error(`tail of ${key} has ${added} bytes instead of ${tailLength}`);
  } catch (error) {
    // Our upload was aborted, or the file is no longer the one we copy from: somebody else publishes.
    if (hasCode(error, 'NoSuchUpload', 'PreconditionFailed', 'NoSuchKey'))
      throw superseded(context, key, error);
    throw error;
  }
}

/** Equal ranges, none below the smallest part that S3 takes. @returns the next part number. */
async function copyAll(
  { settings, signal }: PublishContext,
  key: string,
  before: PublishedFile,
  upload: MultipartUpload,
): Promise<number> {
  const wanted = Math.ceil(before.bytes / settings.copyRangeBytes);
  const ranges = Math.min(wanted, Math.floor(before.bytes / settings.minCopyBytes), MAX_PARTS_EACH);
  const border = (n: number): number => Math.floor((before.bytes * n) / ranges);
  let next = 0;
  const copyOn = async (): Promise<void> => {
    while (next < ranges) {
      const n = next++;
      await upload.copyPart(n + 1, key, { start: border(n), end: border(n + 1) }, before.etag, signal);
    }
  };
  const lanes = Array.from({ length: Math.min(settings.copiesInFlight, ranges) }, copyOn);
  try {
    await Promise.all(lanes);
  } finally {
    next = ranges;
    await Promise.allSettled(lanes);
  }
  return ranges + 1;
}

/** Gathers bytes into parts and keeps a few of them in flight. */
class PartWriter {
  next = 1;
  readonly #upload: MultipartUpload;
  readonly #partBytes: number;
  readonly #inFlight: number;
  readonly #signal: AbortSignal;
  readonly #running: Promise<void>[] = [];
  #chunks: Buffer[] = [];
  #bytes = 0;

  constructor(upload: MultipartUpload, partBytes: number, inFlight: number, signal: AbortSignal) {
    this.#upload = upload;
    this.#partBytes = partBytes;
    this.#inFlight = inFlight;
    this.#signal = signal;
  }

  async write(chunk: Buffer): Promise<void> {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes >= this.#partBytes) await this.#send();
  }

  async end(): Promise<void> {
    if (this.#bytes > 0) await this.#send();
    await Promise.all(this.#running);
  }

  async #send(): Promise<void> {
    const part = this.#upload.uploadPart(this.next++, Buffer.concat(this.#chunks), this.#signal);
    part.catch(() => undefined);
    this.#running.push(part);
    this.#chunks = [];
    this.#bytes = 0;
    if (this.#running.length >= this.#inFlight) await this.#running.shift();
  }
}

async function complete(
  context: PublishContext,
  key: string,
  upload: MultipartUpload,
  before: PublishedFile | undefined,
  publishId: string,
): Promise<string> {
  const { store, layout, signal } = context;
  const conditions = await store.honoursConditions(`${layout.work}probe/`);
  const unchanged = before === undefined ? { ifNoneMatch: true } : { ifMatch: before.etag };
  try {
    return (await upload.complete({ ...(conditions.complete ? unchanged : {}), signal })).etag;
  } catch (error) {
    // An answer that got lost, and the refusal of our own second try, both leave our version in place.
    const now = await headIfThere(store, key).catch(() => undefined);
    if (now?.metadata?.['tidegate-publish'] === publishId) return now.etag;
    if (hasCode(error, 'NoSuchUpload', 'PreconditionFailed')) throw superseded(context, key, error);
    throw error;
  }
}

const superseded = ({ store }: PublishContext, key: string, cause?: unknown): PublishError =>
  new PublishError('Superseded', `another publisher is at work on ${uriOf(store, key)}`, { cause });
