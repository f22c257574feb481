const newline = 0x0a;

/** More than this no Kubernetes object has (etcd refuses far smaller ones). */
const longestLineBytes = 64 * 1024 * 1024;

/**
 * Cuts a stream of bytes into lines on 0x0A. Synchronous, so that chunks cannot overtake each other, and on bytes, so
 * that a character cut in two by a chunk stays whole.
 */
export class LineFramer {
  #pending: Uint8Array[] = [];
  #pendingBytes = 0;

  /** The lines that end in `chunk`, without their newline; empty ones are left out. */
  push(chunk: Uint8Array): Buffer[] {
    const lines: Buffer[] = [];
    let start = 0;
    for (let end = chunk.indexOf(newline); end !== -1; end = chunk.indexOf(newline, start)) {
      const line = this.#complete(chunk.subarray(start, end));
      if (line.length > 0) lines.push(line);
      start = end + 1;
    }
    if (start < chunk.length) {
      this.#pending.push(chunk.subarray(start));
      this.#pendingBytes += chunk.length - start;
      if (this.#pendingBytes > longestLineBytes) {
        throw new RangeError(`a line of more than ${longestLineBytes} bytes`);
      }
    }
    return lines;
  }

  /** Whether the stream stopped in the middle of a line. */
  get isTorn(): boolean {
    return this.#pendingBytes > 0;
  }

  #complete(last: Uint8Array): Buffer {
    if (this.#pendingBytes === 0) return Buffer.from(last.buffer, last.byteOffset, last.byteLength);
    const line = Buffer.concat([...this.#pending, last]);
    this.#pending = [];
    this.#pendingBytes = 0;
    return line;
  }
}
