/**
 * Keeps an open shard's finished records until its result is written. Every few seconds, or megabytes, those not yet
 * in S3 are written as one checkpoint object and leave the memory.
 */
import { encodeCheckpoint } from '../../batch/checkpoint.ts';
import type { LineRecord } from '../../batch/model.ts';
import type { FailPoint } from '../../observability/contract.ts';
import type { ByteBudget } from './byte-budget.ts';

export interface CheckpointerDependencies {
  jobUID: string;
  shard: number;
  /** Unique over all workers and openings of this shard, so that two writers never share a key. */
  writer: string;
  /** Writes one object under this sequence number; retries by itself until it succeeds or the shard is given up. */
  write: (sequence: number, bytes: Uint8Array) => Promise<void>;
  budget: Pick<ByteBudget, 'release'>;
  failPoint: FailPoint;
  settings: { checkpointIntervalMilliseconds: number; checkpointBytes: number };
  /** A checkpoint that could not be written. */
  onError: (error: unknown) => void;
}

export class Checkpointer {
  readonly #deps: CheckpointerDependencies;
  #unsaved: LineRecord[] = [];
  #unsavedBytes = 0;
  #sequence = 0;
  #writing: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: CheckpointerDependencies) {
    this.#deps = deps;
  }

  /** Whether some records are only in S3. */
  get wrote(): boolean {
    return this.#sequence > 0;
  }

  /** Records that are in memory only. */
  get unsaved(): readonly LineRecord[] {
    return this.#unsaved;
  }

  add(record: LineRecord): void {
    this.#unsaved.push(record);
    this.#unsavedBytes += record.bytes.byteLength;
    if (this.#unsavedBytes >= this.#deps.settings.checkpointBytes) this.#flushSoon();
    else
      this.#timer ??= setTimeout(() => this.#flushSoon(), this.#deps.settings.checkpointIntervalMilliseconds);
  }

  /** Writes what is unsaved; one write at a time, in order. */
  flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    // One that failed leaves its records unsaved, for the next one.
    this.#writing = this.#writing.catch(() => undefined).then(() => this.#write());
    return this.#writing;
  }

  /** Lets go of everything in memory. */
  discard(): void {
    clearTimeout(this.#timer);
    this.#deps.budget.release(this.#unsavedBytes);
    this.#unsaved = [];
    this.#unsavedBytes = 0;
  }

  #flushSoon(): void {
    this.flush().catch(this.#deps.onError);
  }

  async #write(): Promise<void> {
    if (this.#unsaved.length === 0) return;
    const records = this.#unsaved;
    const bytes = this.#unsavedBytes;
    this.#unsaved = [];
    this.#unsavedBytes = 0;
    try {
      const { jobUID, shard, writer } = this.#deps;
      await this.#deps.write(this.#sequence, encodeCheckpoint({ jobUID, shard, writer }, records));
    } catch (error) {
      this.#unsaved = [...records, ...this.#unsaved];
      this.#unsavedBytes += bytes;
      throw error;
    }
    this.#sequence += 1;
    this.#deps.budget.release(bytes);
    await this.#deps.failPoint('worker.checkpoint.written');
  }
}
