/**
 * Keeps an open shard's finished records until its result is written. Every few seconds, or megabytes, those not yet
 * in S3 are written as one checkpoint object and leave the memory.
 */
import { encodeCheckpoint } from '../../batch/checkpoint.ts';
import type { LineRecord } from '../../batch/model.ts';
import type { FailPoint } from '../../observability/contract.ts';
import type { ByteBudget } from './byte-budget.ts';
import { type SavedRecord, savedRecords } from './saved-records.ts';

export interface CheckpointerDependencies {
  jobUID: string;
  shard: number;
  /** Unique over all workers and openings of this shard, so that two writers never share a key. */
  writer: string;
  /** Writes one object under this sequence number; retries by itself until it succeeds or the shard is given up. */
  write: (sequence: number, bytes: Uint8Array) => Promise<{ key: string; etag: string }>;
  /** Told of records that left the memory. */
  onSaved: (records: SavedRecord[]) => void;
  budget: Pick<ByteBudget, 'open' | 'release'>;
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
  #isWriting = false;
  #discarded = false;
  #writing: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: CheckpointerDependencies) {
    this.#deps = deps;
  }

  /** Records that are in memory only. */
  get unsaved(): readonly LineRecord[] {
    return this.#unsaved;
  }

  /** The store does not keep up: as much as a checkpoint holds is being written, and as much again waits for it. */
  get congested(): boolean {
    return this.#isWriting && this.#unsavedBytes >= this.#deps.settings.checkpointBytes;
  }

  add(record: LineRecord): void {
    this.#unsaved.push(record);
    this.#unsavedBytes += record.bytes.byteLength;
    const { budget, settings } = this.#deps;
    // With the memory full, nothing more would be sent until the time is up.
    if (this.#unsavedBytes >= settings.checkpointBytes || !budget.open) this.#flushSoon();
    else this.#timer ??= setTimeout(() => this.#flushSoon(), settings.checkpointIntervalMilliseconds);
  }

  /**
   * Writes what is unsaved; one write at a time, in order.
   * @param attempts that unfinished lines have used up, by ordinal; a checkpoint is written for them alone as well.
   */
  flush(attempts: ReadonlyMap<number, number> = new Map()): Promise<void> {
    this.#stopTimer();
    // One that failed leaves its records unsaved, for the next one.
    this.#writing = this.#writing.catch(() => undefined).then(() => this.#write(attempts));
    return this.#writing;
  }

  /** Ends the write that is under way, if any, and begins no other: each record is either saved or unsaved now. */
  async settle(): Promise<void> {
    this.#stopTimer();
    await this.#writing.catch(() => undefined);
  }

  /** Lets go of everything in memory. */
  discard(): void {
    this.#stopTimer();
    this.#discarded = true;
    this.#deps.budget.release(this.#unsavedBytes);
    this.#unsaved = [];
    this.#unsavedBytes = 0;
  }

  #flushSoon(): void {
    this.flush().catch(this.#deps.onError);
  }

  #stopTimer(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  async #write(attempts: ReadonlyMap<number, number>): Promise<void> {
    if (this.#unsaved.length === 0 && attempts.size === 0) return;
    const { jobUID, shard, writer, budget, failPoint } = this.#deps;
    const records = this.#unsaved;
    const length = this.#unsavedBytes;
    this.#unsaved = [];
    this.#unsavedBytes = 0;
    this.#isWriting = true;
    try {
      const bytes = encodeCheckpoint({ jobUID, shard, writer }, records, attempts);
      const written = await this.#deps.write(this.#sequence, bytes);
      this.#deps.onSaved(savedRecords({ ...written, bytes }, { jobUID, shard }));
    } catch (error) {
      if (this.#discarded) {
        budget.release(length);
      } else {
        this.#unsaved = [...records, ...this.#unsaved];
        this.#unsavedBytes += length;
      }
      throw error;
    } finally {
      this.#isWriting = false;
    }
    this.#sequence += 1;
    budget.release(length);
    await failPoint('worker.checkpoint.written');
  }
}
