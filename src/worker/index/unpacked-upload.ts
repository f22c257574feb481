/** Writes the plain bytes of a packed input object beside the index, while the index pass reads them. */
import { type MultipartUpload, type ObjectStore, StoreError } from '../../storage/contract.ts';

const MiB = 1024 * 1024;

/** Part sizes that reach 1 TiB within the 10,000 parts an upload may have, and stay small for small objects. */
const partBytes = (part: number): number => (part <= 1_000 ? 16 * MiB : part <= 3_000 ? 64 * MiB : 136 * MiB);

export class UnpackedUpload {
  readonly #store: ObjectStore;
  readonly #key: string;
  readonly #signal: AbortSignal;
  #upload: MultipartUpload | undefined;
  #part = 1;
  #pieces: Uint8Array[] = [];
  #pieceBytes = 0;

  constructor(store: ObjectStore, key: string, signal: AbortSignal) {
    this.#store = store;
    this.#key = key;
    this.#signal = signal;
  }

  /** Passes the chunks on, and uploads them. */
  async *tee(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const chunk of chunks) {
      // A chunk may be reused by its producer, so it is copied before it is passed on.
      this.#pieces.push(new Uint8Array(chunk));
      this.#pieceBytes += chunk.length;
      yield chunk;
      if (this.#pieceBytes >= partBytes(this.#part)) await this.#uploadPart();
    }
  }

  /** Ends the object after the last chunk. */
  async finish(): Promise<{ etag: string }> {
    if (this.#upload === undefined)
      return this.#store.put(this.#key, this.#takePieces(), { signal: this.#signal });
    if (this.#pieceBytes > 0) await this.#uploadPart();
    const completed = await this.#upload.complete({ signal: this.#signal });
    this.#upload = undefined;
    return completed;
  }

  /** Leaves no upload behind; after `finish` there is none. */
  async abort(): Promise<void> {
    try {
      await this.#upload?.abort();
    } catch (error) {
      // Clean-up aborts what is left under the job's prefix.
      if (!(error instanceof StoreError)) throw error;
    }
  }

  async #uploadPart(): Promise<void> {
    this.#upload ??= await this.#store.createMultipart(this.#key, { signal: this.#signal });
    await this.#upload.uploadPart(this.#part, this.#takePieces(), this.#signal);
    this.#part += 1;
  }

  #takePieces(): Buffer {
    const bytes = Buffer.concat(this.#pieces, this.#pieceBytes);
    this.#pieces = [];
    this.#pieceBytes = 0;
    return bytes;
  }
}
