/** Keys with the moment at which each is due, soonest first. A key is in it once, with the earliest moment given. */
export class DueHeap {
  /** A binary heap; entries whose moment is no longer the one in `#due` are outdated and skipped. */
  readonly #heap: { key: string; at: number }[] = [];
  readonly #due = new Map<string, number>();

  get size(): number {
    return this.#due.size;
  }

  /** The soonest moment, or undefined when nothing waits. */
  get next(): number | undefined {
    this.#dropOutdated();
    return this.#heap[0]?.at;
  }

  add(key: string, at: number): void {
    const known = this.#due.get(key);
    if (known !== undefined && known <= at) return;
    this.#due.set(key, at);
    this.#heap.push({ key, at });
    this.#up(this.#heap.length - 1);
  }

  /** Takes out one key that is due at `now`. */
  takeDue(now: number): string | undefined {
    this.#dropOutdated();
    const first = this.#heap[0];
    if (first === undefined || first.at > now) return undefined;
    this.#pop();
    this.#due.delete(first.key);
    return first.key;
  }

  clear(): void {
    this.#heap.length = 0;
    this.#due.clear();
  }

  #dropOutdated(): void {
    for (let first = this.#heap[0]; first && this.#due.get(first.key) !== first.at; first = this.#heap[0]) {
      this.#pop();
    }
  }

  #pop(): void {
    const last = this.#heap.pop();
    if (last === undefined || this.#heap.length === 0) return;
    this.#heap[0] = last;
    this.#down(0);
  }

  #at(index: number): number {
    return this.#heap[index]?.at ?? Infinity;
  }

  #swap(a: number, b: number): void {
    const [first, second] = [this.#heap[a], this.#heap[b]];
    if (first === undefined || second === undefined) return;
    this.#heap[a] = second;
    this.#heap[b] = first;
  }

  #up(from: number): void {
    for (let index = from; index > 0;) {
      const parent = (index - 1) >> 1;
      if (this.#at(parent) <= this.#at(index)) return;
      this.#swap(parent, index);
      index = parent;
    }
  }

  #down(from: number): void {
    for (let index = from; ;) {
      const left = 2 * index + 1;
      const child = this.#at(left + 1) < this.#at(left) ? left + 1 : left;
      if (this.#at(child) >= this.#at(index)) return;
      this.#swap(index, child);
      index = child;
    }
  }
}
