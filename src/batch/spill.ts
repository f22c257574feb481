/** Where the index pass puts what does not fit in memory. The worker hands in one on disk (a sized emptyDir). */

export interface SpillStore {
  /**
   * Appends to a partition, which exists from its first append. The bytes may be reused once this resolves; only then
   * is the next append called.
   * Rejects with BatchError `DiskFull` when there is no room.
   */
  append(partition: string, bytes: Uint8Array): Promise<void>;
  /** The bytes appended so far, in order; nothing for a partition that does not exist. Chunks may be cut anywhere. */
  read(partition: string): AsyncIterable<Uint8Array>;
  /** Removes everything. Idempotent. */
  close(): Promise<void>;
}

/** Keeps everything in memory: for small inputs and tests. */
export class MemorySpill implements SpillStore {
  readonly #partitions = new Map<string, Uint8Array[]>();

  append(partition: string, bytes: Uint8Array): Promise<void> {
    const parts = this.#partitions.get(partition) ?? [];
    parts.push(new Uint8Array(bytes));
    this.#partitions.set(partition, parts);
    return Promise.resolve();
  }

  async *read(partition: string): AsyncIterable<Uint8Array> {
    yield* this.#partitions.get(partition) ?? [];
  }

  close(): Promise<void> {
    this.#partitions.clear();
    return Promise.resolve();
  }
}
