/**
 * The body of an object that outlives its connection: when it is cut, the rest is asked for again from the last
 * byte that arrived, pinned to the same ETag, so that a reader sees one unbroken object or an error.
 */
import { Readable } from 'node:stream';
import { StoreError } from './contract.ts';
import { judge, type CallContext } from './errors.ts';

export interface BodySource {
  call: CallContext;
  /** Bytes the whole body must have. */
  expectedBytes: number;
  /** The body from byte `received` on; tries as often as any other call. */
  reopen(received: number): Promise<Readable>;
  /** Waits after the n-th cut in a row (0-based) that brought no new byte. */
  backOff(n: number): Promise<void>;
  maxAttempts: number;
  /** Called once, when the body is over, however it ended. */
  closed(): void;
}

export class ResumingBody extends Readable {
  readonly #source: BodySource;
  #current: Readable | undefined;
  #received = 0;
  #cutsWithoutProgress = 0;
  /** The consumer asked for bytes that were not there yet. */
  #wanted = false;
  #cut = false;

  constructor(first: Readable, source: BodySource) {
    super({ highWaterMark: 256 * 1024 });
    this.#source = source;
    this.#follow(first);
  }

  override _read(): void {
    this.#wanted = true;
    if (this.#cut) this.#resume();
    else this.#current?.resume();
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#current?.destroy();
    this.#current = undefined;
    this.#source.closed();
    callback(error);
  }

  #follow(body: Readable): void {
    this.#current = body;
    this.#cut = false;
    const before = this.#received;
    body.on('data', (chunk: Buffer) => {
      if (this.#current !== body) return;
      this.#received += chunk.length;
      if (this.#received > this.#source.expectedBytes) {
        this.destroy(
          this.#error('Unavailable', `more than the announced ${this.#source.expectedBytes} bytes came`),
        );
        return;
      }
      this.#wanted = this.push(chunk);
      if (!this.#wanted) body.pause();
    });
    const ended = (thrown: unknown): void => {
      if (this.#current !== body) return;
      this.#current = undefined;
      body.destroy();
      if (this.#received === this.#source.expectedBytes) this.push(null);
      else this.#onCut(thrown, this.#received > before);
    };
    body.once('end', () => ended(undefined));
    body.once('error', ended);
    body.once('close', () => ended(undefined));
    // Errors after the first, such as those of our own destroy, have nobody to go to.
    body.on('error', () => undefined);
    if (!this.#wanted) body.pause();
  }

  #onCut(thrown: unknown, progressed: boolean): void {
    try {
      const failure = thrown === undefined ? undefined : judge(thrown, this.#source.call);
      if (failure?.retryable === false) {
        this.destroy(failure.error);
        return;
      }
    } catch (defect) {
      this.destroy(defect as Error);
      return;
    }
    this.#cutsWithoutProgress = progressed ? 0 : this.#cutsWithoutProgress + 1;
    if (this.#cutsWithoutProgress >= this.#source.maxAttempts) {
      const { expectedBytes } = this.#source;
      this.destroy(
        this.#error(
          'Unavailable',
          `cut ${this.#cutsWithoutProgress} times at byte ${this.#received} of ${expectedBytes}`,
        ),
      );
      return;
    }
    // A reader that pauses longer than sockets may idle comes back to a closed one: open again only when it reads.
    this.#cut = true;
    if (this.#wanted) this.#resume();
  }

  #resume(): void {
    this.#cut = false;
    const reopened = async (): Promise<void> => {
      await this.#source.backOff(this.#cutsWithoutProgress);
      if (this.destroyed) return;
      const body = await this.#source.reopen(this.#received);
      if (this.destroyed) body.destroy();
      else this.#follow(body);
    };
    reopened().catch((error: unknown) => this.destroy(error as Error));
  }

  #error(code: 'Unavailable', why: string): StoreError {
    const { bucket, key, operation } = this.#source.call;
    return new StoreError(code, bucket, key, `${operation} s3://${bucket}/${key ?? ''}: ${why}`);
  }
}
