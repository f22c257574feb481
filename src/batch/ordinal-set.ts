/** A set of line ordinals: one bit each, in pages that exist only where there are members. */
const PAGE_BITS = 64 * 1024;

export class OrdinalSet {
  readonly #pages = new Map<number, Uint8Array>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Above every member. */
  get end(): number {
    let last = -1;
    for (const page of this.#pages.keys()) last = Math.max(last, page);
    return (last + 1) * PAGE_BITS;
  }

  add(ordinal: number): void {
    const page = Math.floor(ordinal / PAGE_BITS);
    let bits = this.#pages.get(page);
    if (bits === undefined) {
      bits = new Uint8Array(PAGE_BITS / 8);
      this.#pages.set(page, bits);
    }
    const bit = ordinal % PAGE_BITS;
    const mask = 1 << (bit & 7);
    if ((bits[bit >>> 3]! & mask) === 0) {
      bits[bit >>> 3]! |= mask;
      this.#size++;
    }
  }

  has(ordinal: number): boolean {
    const bits = this.#pages.get(Math.floor(ordinal / PAGE_BITS));
    const bit = ordinal % PAGE_BITS;
    return bits !== undefined && (bits[bit >>> 3]! & (1 << (bit & 7))) !== 0;
  }

  /** Whether any member lies in [from, to). */
  hasAnyIn(from: number, to: number): boolean {
    for (let page = Math.floor(from / PAGE_BITS); page * PAGE_BITS < to; page++) {
      if (!this.#pages.has(page)) continue;
      const last = Math.min(to, (page + 1) * PAGE_BITS);
      for (let ordinal = Math.max(from, page * PAGE_BITS); ordinal < last; ordinal++) {
        if (this.has(ordinal)) return true;
      }
    }
    return false;
  }
}
