/**
 * Bounds the bytes a worker holds: input of open shards and answers on their way to S3. Dispatch waits while it is
 * full, so a slow store slows the engine's work down instead of filling the memory.
 */
export class ByteBudget {
  readonly #limit: number;
  #used = 0;
  readonly #waiting: { bytes: number; grant: () => void }[] = [];
  readonly #listeners = new Set<() => void>();

  /** @param limit bytes; one item larger than that is let in alone. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  get used(): number {
    return this.#used;
  }

  /** Whether new work may start. What is already running may still `charge` beyond the limit. */
  get open(): boolean {
    return this.#used < this.#limit && this.#waiting.length === 0;
  }

  /** Waits, first come first served, until `bytes` fit or nothing else is held. Rejects with the signal's reason. */
  async acquire(bytes: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#waiting.length === 0 && this.#fits(bytes)) {
      this.#used += bytes;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const onAbort = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(entry), 1);
        this.#serve();
        reject(signal.reason as Error);
      };
      const entry = {
        bytes,
        grant: () => {
          signal.removeEventListener('abort', onAbort);
          resolve();
        },
      };
      signal.addEventListener('abort', onAbort, { once: true });
      this.#waiting.push(entry);
    });
  }

  /** Books bytes that already exist, such as an answer that has arrived. */
  charge(bytes: number): void {
    this.#used += bytes;
  }

  release(bytes: number): void {
    this.#used -= bytes;
    this.#serve();
  }

  /** Called whenever bytes were released. */
  onRelease(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #fits(bytes: number): boolean {
    return this.#used === 0 || this.#used + bytes <= this.#limit;
  }

  #serve(): void {
    for (
      let first = this.#waiting[0];
      first !== undefined && this.#fits(first.bytes);
      first = this.#waiting[0]
    ) {
      this.#waiting.shift();
      this.#used += first.bytes;
      first.grant();
    }
    for (const listener of this.#listeners) listener();
  }
}
