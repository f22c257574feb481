/**
 * Lines of a byte stream, cut at byte 0x0A only (it is never part of a multi-byte UTF-8 character, while readline of
 * Node 24 also cuts at U+2028 and U+2029). One BOM at offset 0 and one trailing CR are dropped, blank lines are
 * skipped but counted, and a line over the limit is reported without being kept.
 */
import { MAX_LINE_BYTES } from './model.ts';

export interface Frame {
  /** Physical line number, from 1, blank lines counted. */
  line: number;
  /** Where the line starts in the stream, in bytes; behind the BOM for the first line of a stream that has one. */
  offset: number;
  /** Bytes including the line break. */
  length: number;
  /** The line without its line break, a copy of its own; undefined when the line is over the limit. */
  bytes: Uint8Array | undefined;
}

/**
 * Called for each non-blank line: it is bytes [start, end) of `buffer`, valid only during the call.
 * `buffer` is undefined for a line over the limit.
 */
export type FrameSink = (
  buffer: Uint8Array | undefined,
  start: number,
  end: number,
  line: number,
  offset: number,
  length: number,
) => void;

export interface FramerOptions {
  /** Limit of a line without its line break, in bytes. Default MAX_LINE_BYTES. */
  maxLineBytes?: number;
  /** Whether the stream starts at offset 0 of an object, so that a BOM there is dropped. Default true. */
  startsObject?: boolean;
}

const LF = 0x0a;
const CR = 0x0d;
const BOM = [0xef, 0xbb, 0xbf] as const;
/** A carry buffer that had to grow beyond this is let go after its line. */
const KEPT_CARRY_BYTES = 1024 * 1024;

const isBlank = (byte: number): boolean => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);

/** Memory: one copy of the line that crosses a chunk border, at most `maxLineBytes`. */
export class Framer {
  readonly #maxLineBytes: number;
  #carry = new Uint8Array(64 * 1024);
  /** Bytes of the open line so far, whether or not they were kept. */
  #openBytes = 0;
  #openIsBlank = true;
  #openEndsInCr = false;
  #line = 1;
  #lineOffset = 0;
  #bomSeen = 0;
  #bomPending: boolean;
  #blankLines = 0;

  constructor(options: FramerOptions = {}) {
    this.#maxLineBytes = options.maxLineBytes ?? MAX_LINE_BYTES;
    this.#bomPending = options.startsObject ?? true;
  }

  /** Blank and whitespace-only lines met so far. */
  get blankLines(): number {
    return this.#blankLines;
  }

  /** Bytes taken so far. */
  get bytes(): number {
    return this.#lineOffset + this.#openBytes + (this.#bomPending ? this.#bomSeen : 0);
  }

  /** Whether the next chunk continues a line that has begun. */
  get insideLine(): boolean {
    return this.#openBytes > 0;
  }

  /** The frames that this chunk completes. */
  push(chunk: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    this.feed(chunk, collect(frames));
    return frames;
  }

  /** The last line, when the stream does not end in a line break. */
  end(): Frame[] {
    const frames: Frame[] = [];
    this.finish(collect(frames));
    return frames;
  }

  /** As push, without an object per line. */
  feed(chunk: Uint8Array, sink: FrameSink): void {
    let at = 0;
    if (this.#bomPending) {
      at = this.#skipBom(chunk);
      if (this.#bomPending) return;
    }
    if (this.#openBytes > 0) {
      const lf = chunk.indexOf(LF, at);
      if (lf < 0) {
        this.#keep(chunk, at, chunk.length);
        return;
      }
      this.#keep(chunk, at, lf);
      this.#endOpenLine(1, sink);
      at = lf + 1;
    }
    for (;;) {
      const lf = chunk.indexOf(LF, at);
      if (lf < 0) break;
      this.#wholeLine(chunk, at, lf, sink);
      at = lf + 1;
    }
    if (at < chunk.length) this.#keep(chunk, at, chunk.length);
  }

  finish(sink: FrameSink): void {
    if (this.#bomPending) {
      this.#bomPending = false;
      if (this.#bomSeen > 0) this.#keep(Uint8Array.from(BOM), 0, this.#bomSeen);
    }
    if (this.#openBytes > 0) this.#endOpenLine(0, sink);
  }

  /** Position after what belongs to a BOM; a beginning that turns out to be none becomes part of the line. */
  #skipBom(chunk: Uint8Array): number {
    let at = 0;
    while (at < chunk.length && this.#bomSeen < BOM.length) {
      if (chunk[at] !== BOM[this.#bomSeen]) {
        this.#bomPending = false;
        if (this.#bomSeen > 0) this.#keep(Uint8Array.from(BOM), 0, this.#bomSeen);
        return at;
      }
      this.#bomSeen++;
      at++;
    }
    if (this.#bomSeen === BOM.length) {
      this.#bomPending = false;
      this.#lineOffset = BOM.length;
    }
    return at;
  }

  #wholeLine(chunk: Uint8Array, start: number, lf: number, sink: FrameSink): void {
    const end = lf > start && chunk[lf - 1] === CR ? lf - 1 : lf;
    let first = start;
    while (first < end && isBlank(chunk[first]!)) first++;
    const length = lf + 1 - start;
    if (first === end) this.#blankLines++;
    else if (end - start > this.#maxLineBytes) sink(undefined, 0, 0, this.#line, this.#lineOffset, length);
    else sink(chunk, start, end, this.#line, this.#lineOffset, length);
    this.#line++;
    this.#lineOffset += length;
  }

  /** Adds to the open line. One byte beyond the limit is kept room for: it may be the CR of the line break. */
  #keep(chunk: Uint8Array, start: number, end: number): void {
    if (start === end) return;
    const added = end - start;
    for (let i = start; this.#openIsBlank && i < end; i++) this.#openIsBlank = isBlank(chunk[i]!);
    this.#openEndsInCr = chunk[end - 1] === CR;
    const total = this.#openBytes + added;
    if (total <= this.#maxLineBytes + 1) {
      if (total > this.#carry.length) this.#grow(total);
      this.#carry.set(chunk.subarray(start, end), this.#openBytes);
    }
    this.#openBytes = total;
  }

  #grow(needed: number): void {
    const size = Math.min(Math.max(needed, this.#carry.length * 2), this.#maxLineBytes + 1);
    const larger = new Uint8Array(Math.max(size, needed));
    larger.set(this.#carry.subarray(0, this.#openBytes));
    this.#carry = larger;
  }

  #endOpenLine(breakBytes: number, sink: FrameSink): void {
    const end = this.#openEndsInCr ? this.#openBytes - 1 : this.#openBytes;
    const length = this.#openBytes + breakBytes;
    const line = this.#line++;
    const offset = this.#lineOffset;
    const blank = this.#openIsBlank;
    this.#lineOffset += length;
    this.#openBytes = 0;
    this.#openIsBlank = true;
    this.#openEndsInCr = false;
    if (blank) this.#blankLines++;
    else if (end > this.#maxLineBytes) sink(undefined, 0, 0, line, offset, length);
    else sink(this.#carry, 0, end, line, offset, length);
    if (this.#carry.length > KEPT_CARRY_BYTES) this.#carry = new Uint8Array(64 * 1024);
  }
}

function collect(frames: Frame[]): FrameSink {
  return (buffer, start, end, line, offset, length) => {
    // A frame may outlive the chunk and the carry buffer: hence a copy.
    frames.push({ line, offset, length, bytes: buffer && new Uint8Array(buffer.subarray(start, end)) });
  };
}
