/**
 * JSON on bytes: accepts exactly what RFC 8259 (and JSON.parse) accepts, tells where values lie, and never decodes or
 * copies. UTF-8 validity is the caller's question (node:buffer isUtf8 answers it faster than any loop here).
 *
 * Positions are offsets into the given array. A negative result `r` means: wrong byte (or end) at position `~r`.
 */

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const COMMA = 0x2c;
const COLON = 0x3a;

const isSpace = (byte: number): boolean => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
const isDigit = (byte: number): boolean => byte >= 0x30 && byte <= 0x39;
const isHex = (byte: number): boolean =>
  isDigit(byte) || (byte >= 0x61 && byte <= 0x66) || (byte >= 0x41 && byte <= 0x46);

/** `"`, `\`, `/`, b, f, n, r, t */
const isPlainEscape = (byte: number): boolean =>
  byte === QUOTE ||
  byte === BACKSLASH ||
  byte === 0x2f ||
  byte === 0x62 ||
  byte === 0x66 ||
  byte === 0x6e ||
  byte === 0x72 ||
  byte === 0x74;

export function skipSpace(bytes: Uint8Array, at: number, end: number): number {
  let i = at;
  while (i < end && isSpace(bytes[i]!)) i++;
  return i;
}

/**
 * `at` is the opening quote; returns the position after the closing one. Prompts are most of a line, so four bytes are
 * looked at in one step (a third faster than one by one): a byte of `x` is below n exactly when (x - n) & ~x has its
 * high bit set and no lower byte borrowed; a borrow can only stop too early, never too late.
 * @param view over the same bytes
 */
function skipString(bytes: Uint8Array, view: DataView, at: number, end: number): number {
  let i = at + 1;
  const lastWord = end - 4;
  while (i < end) {
    while (i <= lastWord) {
      const x = view.getInt32(i, true);
      const quotes = x ^ 0x22222222;
      const backslashes = x ^ 0x5c5c5c5c;
      const stops =
        ((quotes - 0x01010101) & ~quotes) |
        ((backslashes - 0x01010101) & ~backslashes) |
        ((x - 0x20202020) & ~x);
      if ((stops & 0x80808080) !== 0) break;
      i += 4;
    }
    while (i < end && bytes[i]! >= 0x20 && bytes[i] !== QUOTE && bytes[i] !== BACKSLASH) i++;
    if (i >= end) break;
    const byte = bytes[i]!;
    if (byte === QUOTE) return i + 1;
    if (byte === BACKSLASH) {
      i++;
      if (i >= end) break;
      const escape = bytes[i]!;
      if (isPlainEscape(escape)) i++;
      else if (escape === 0x75) {
        const last = i + 4;
        for (i++; i <= last; i++) {
          if (i >= end) return ~end;
          if (!isHex(bytes[i]!)) return ~i;
        }
      } else return ~i;
    } else return ~i;
  }
  return ~end;
}

function skipDigits(bytes: Uint8Array, at: number, end: number): number {
  let i = at;
  while (i < end && isDigit(bytes[i]!)) i++;
  return i === at ? ~i : i;
}

function skipNumber(bytes: Uint8Array, at: number, end: number): number {
  let i = at;
  if (bytes[i] === 0x2d) i++;
  if (i < end && bytes[i] === 0x30) i++;
  else {
    i = skipDigits(bytes, i, end);
    if (i < 0) return i;
  }
  if (i < end && bytes[i] === 0x2e) {
    i = skipDigits(bytes, i + 1, end);
    if (i < 0) return i;
  }
  if (i < end && (bytes[i]! | 0x20) === 0x65) {
    i++;
    if (i < end && (bytes[i] === 0x2b || bytes[i] === 0x2d)) i++;
    i = skipDigits(bytes, i, end);
  }
  return i;
}

function skipLiteral(bytes: Uint8Array, at: number, end: number, literal: string): number {
  for (let k = 0; k < literal.length; k++) {
    if (at + k >= end || bytes[at + k] !== literal.charCodeAt(k)) return ~Math.min(at + k, end);
  }
  return at + literal.length;
}

/** A string, number, true, false or null; not an object or array. */
function skipScalar(bytes: Uint8Array, view: DataView, at: number, end: number): number {
  switch (bytes[at]) {
    case QUOTE:
      return skipString(bytes, view, at, end);
    case 0x74:
      return skipLiteral(bytes, at, end, 'true');
    case 0x66:
      return skipLiteral(bytes, at, end, 'false');
    case 0x6e:
      return skipLiteral(bytes, at, end, 'null');
    default:
      return skipNumber(bytes, at, end);
  }
}

/** From anywhere before a key to the position after its colon. */
function skipKey(bytes: Uint8Array, view: DataView, at: number, end: number): number {
  let i = skipSpace(bytes, at, end);
  if (i >= end || bytes[i] !== QUOTE) return ~i;
  i = skipString(bytes, view, i, end);
  if (i < 0) return i;
  i = skipSpace(bytes, i, end);
  return i < end && bytes[i] === COLON ? i + 1 : ~i;
}

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null';

/** The kind of the (valid) value that starts at `at`. */
export function kindAt(bytes: Uint8Array, at: number): JsonKind {
  switch (bytes[at]) {
    case OPEN_OBJECT:
      return 'object';
    case OPEN_ARRAY:
      return 'array';
    case QUOTE:
      return 'string';
    case 0x74:
    case 0x66:
      return 'boolean';
    case 0x6e:
      return 'null';
    default:
      return 'number';
  }
}

/** A key to look for; `slot` is where FieldScanner notes the value, `inside` is looked for in it when it is an object. */
export interface WantedField {
  key: string;
  slot: number;
  inside?: readonly WantedField[];
}

interface Wanted {
  key: string;
  keyBytes: Uint8Array;
  slot: number;
  inside: readonly Wanted[];
}

const compile = (fields: readonly WantedField[]): readonly Wanted[] =>
  fields.map(({ key, slot, inside }) => ({
    key,
    keyBytes: Buffer.from(key),
    slot,
    inside: compile(inside ?? []),
  }));

const slotsOf = (fields: readonly Wanted[]): number =>
  fields.reduce((most, { slot, inside }) => Math.max(most, slot + 1, slotsOf(inside)), 0);

/**
 * Validates one JSON text and notes where the wanted fields of its top-level object lie. Of duplicate keys the last
 * counts, as in JSON.parse; a later duplicate of a parent also forgets what was found inside the earlier one.
 * Reusable, not re-entrant.
 */
export class FieldScanner {
  /** Value of slot k lies in [starts[k], ends[k]); −1 where absent. */
  readonly starts: Int32Array;
  readonly ends: Int32Array;
  readonly #fields: readonly Wanted[];
  /** 1 = object, 0 = array, per open container. Grows: JSON.parse has no depth limit either. */
  #open = new Uint8Array(64);
  /** The array scanned last, and a view over it: many lines come from one chunk. */
  #viewed: Uint8Array = new Uint8Array(0);
  #view: DataView = new DataView(new ArrayBuffer(0));

  constructor(fields: readonly WantedField[]) {
    this.#fields = compile(fields);
    const slots = slotsOf(this.#fields);
    this.starts = new Int32Array(slots).fill(-1);
    this.ends = new Int32Array(slots).fill(-1);
  }

  /**
   * Scans bytes [start, end), which must be one JSON text, white space around it allowed.
   * Returns where its value starts, or `~position` of the first wrong byte (`~end`: it ends too early).
   */
  scan(bytes: Uint8Array, start: number, end: number): number {
    this.starts.fill(-1);
    this.ends.fill(-1);
    if (bytes !== this.#viewed) {
      this.#viewed = bytes;
      this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    }
    const value = skipSpace(bytes, start, end);
    if (value >= end) return ~end;
    const after =
      bytes[value] === OPEN_OBJECT
        ? this.#scanObject(bytes, value, end, this.#fields)
        : this.#skipValue(bytes, value, end);
    if (after < 0) return after;
    const rest = skipSpace(bytes, after, end);
    return rest === end ? value : ~rest;
  }

  #scanObject(bytes: Uint8Array, at: number, end: number, fields: readonly Wanted[]): number {
    let i = skipSpace(bytes, at + 1, end);
    if (i < end && bytes[i] === CLOSE_OBJECT) return i + 1;
    for (;;) {
      i = skipSpace(bytes, i, end);
      if (i >= end || bytes[i] !== QUOTE) return ~i;
      const keyStart = i + 1;
      i = keyStart;
      while (i < end && bytes[i] !== QUOTE && bytes[i] !== BACKSLASH && bytes[i]! >= 0x20) i++;
      const escaped = bytes[i] === BACKSLASH;
      i = i < end && bytes[i] === QUOTE ? i + 1 : skipString(bytes, this.#view, keyStart - 1, end);
      if (i < 0) return i;
      const keyEnd = i - 1;
      i = skipSpace(bytes, i, end);
      if (i >= end || bytes[i] !== COLON) return ~i;
      i = skipSpace(bytes, i + 1, end);
      if (i >= end) return ~end;
      const field = escaped
        ? matchEscaped(bytes, keyStart, keyEnd, fields)
        : match(bytes, keyStart, keyEnd, fields);
      const valueStart = i;
      if (field === undefined) i = this.#skipValue(bytes, i, end);
      else {
        this.#forget(field.inside);
        i =
          field.inside.length > 0 && bytes[i] === OPEN_OBJECT
            ? this.#scanObject(bytes, i, end, field.inside)
            : this.#skipValue(bytes, i, end);
        this.starts[field.slot] = valueStart;
        this.ends[field.slot] = i;
      }
      if (i < 0) return i;
      i = skipSpace(bytes, i, end);
      if (i >= end) return ~end;
      const separator = bytes[i]!;
      if (separator === CLOSE_OBJECT) return i + 1;
      if (separator !== COMMA) return ~i;
      i++;
    }
  }

  #forget(fields: readonly Wanted[]): void {
    for (const field of fields) {
      this.starts[field.slot] = -1;
      this.ends[field.slot] = -1;
      this.#forget(field.inside);
    }
  }

  /** Skips the value at `at` without recursion, so that depth costs no stack. */
  #skipValue(bytes: Uint8Array, at: number, end: number): number {
    const view = this.#view;
    let depth = 0;
    let i = at;
    for (;;) {
      i = skipSpace(bytes, i, end);
      if (i >= end) return ~end;
      const byte = bytes[i]!;
      if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
        const close = byte + 2;
        i = skipSpace(bytes, i + 1, end);
        if (i < end && bytes[i] === close) i++;
        else {
          if (depth === this.#open.length) this.#deepen();
          this.#open[depth++] = byte === OPEN_OBJECT ? 1 : 0;
          if (byte === OPEN_OBJECT) {
            i = skipKey(bytes, view, i, end);
            if (i < 0) return i;
          }
          continue;
        }
      } else {
        i = skipScalar(bytes, view, i, end);
        if (i < 0) return i;
      }
      while (depth > 0) {
        i = skipSpace(bytes, i, end);
        if (i >= end) return ~end;
        const separator = bytes[i]!;
        const inObject = this.#open[depth - 1] === 1;
        if (separator === COMMA) {
          i++;
          if (inObject) {
            i = skipKey(bytes, view, i, end);
            if (i < 0) return i;
          }
          break;
        }
        if (separator !== (inObject ? CLOSE_OBJECT : CLOSE_ARRAY)) return ~i;
        i++;
        depth--;
      }
      if (depth === 0) return i;
    }
  }

  #deepen(): void {
    const deeper = new Uint8Array(this.#open.length * 2);
    deeper.set(this.#open);
    this.#open = deeper;
  }
}

function match(bytes: Uint8Array, start: number, end: number, fields: readonly Wanted[]): Wanted | undefined {
  const length = end - start;
  for (const field of fields) {
    if (field.keyBytes.length === length && sameBytes(bytes, start, field.keyBytes)) return field;
  }
  return undefined;
}

/** For keys such as "mo\u0064el". */
function matchEscaped(
  bytes: Uint8Array,
  start: number,
  end: number,
  fields: readonly Wanted[],
): Wanted | undefined {
  const key = textOf(bytes, start - 1, end + 1);
  return fields.find((field) => field.key === key);
}

/** Whether `expected` stands in `bytes` at `at`. */
export function sameBytes(bytes: Uint8Array, at: number, expected: Uint8Array): boolean {
  for (let k = 0; k < expected.length; k++) if (bytes[at + k] !== expected[k]) return false;
  return true;
}

const asBuffer = (bytes: Uint8Array): Buffer =>
  Buffer.from(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.byteLength);

/** Decodes the JSON string in [start, end), quotes included. */
export const textOf = (bytes: Uint8Array, start: number, end: number): string =>
  JSON.parse(asBuffer(bytes).toString('utf8', start, end)) as string;

/** Parses the JSON value in [start, end); only for small, already validated spans. */
export const valueOf = (bytes: Uint8Array, start: number, end: number): unknown =>
  JSON.parse(asBuffer(bytes).toString('utf8', start, end));

/**
 * JSON text that stays on one line for every reader: U+2028, U+2029 and U+0085 escaped too, since many clients split
 * there (cases.md "Inputs and outputs" 21 and 22). Lone surrogates come out as \uXXXX escapes.
 */
export const oneLineJson = (value: unknown): string =>
  JSON.stringify(value).replace(/[\u0085\u2028\u2029]/g, (c) =>
    c === '\u0085' ? '\\u0085' : c === '\u2028' ? '\\u2028' : '\\u2029',
  );
