/** A growing byte buffer for the index writer: at millions of lines a string per line costs more than the check. */
export class ByteWriter {
  #bytes: Buffer;
  #length = 0;

  constructor(capacity: number) {
    this.#bytes = Buffer.allocUnsafeSlow(capacity);
  }

  get length(): number {
    return this.#length;
  }

  clear(): void {
    this.#length = 0;
  }

  /** A copy of what was written. */
  copy(): Buffer {
    return Buffer.from(this.#bytes.subarray(0, this.#length));
  }

  /** ASCII text. */
  ascii(text: string): void {
    this.#reserve(text.length);
    for (let i = 0; i < text.length; i++) this.#bytes[this.#length++] = text.charCodeAt(i);
  }

  utf8(text: string): void {
    this.#reserve(text.length * 3);
    this.#length += this.#bytes.write(text, this.#length, 'utf8');
  }

  /** A whole number from 0, in decimal. */
  number(value: number): void {
    this.#reserve(16);
    let digits = 1;
    for (let power = 10; power <= value; power *= 10) digits++;
    let rest = value;
    for (let i = this.#length + digits - 1; i >= this.#length; i--) {
      const next = Math.floor(rest / 10);
      this.#bytes[i] = 0x30 + (rest - next * 10);
      rest = next;
    }
    this.#length += digits;
  }

  /** Bytes [start, end) of another array. */
  bytes(source: Uint8Array, start: number, end: number): void {
    const count = end - start;
    this.#reserve(count);
    if (count > 64) this.#bytes.set(source.subarray(start, end), this.#length);
    else for (let i = 0; i < count; i++) this.#bytes[this.#length + i] = source[start + i]!;
    this.#length += count;
  }

  append(other: ByteWriter): void {
    this.#reserve(other.#length);
    this.#bytes.set(other.#bytes.subarray(0, other.#length), this.#length);
    this.#length += other.#length;
  }

  #reserve(count: number): void {
    const needed = this.#length + count;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(needed, this.#bytes.length * 2));
    larger.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = larger;
  }
}
