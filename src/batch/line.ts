/**
 * Whether an input line may run. The first fault found is the line's error, in the order of the checks below; codes
 * are OpenAI's (docs/reference/errors.md). Nothing is parsed into values: 2^53+1, 1e400, duplicate keys and lone
 * surrogate escapes are the engine's business and stay as they are.
 */
import { isUtf8 } from 'node:buffer';
import { excerpt, lineError } from './errors.ts';
import { FieldScanner, kindAt, sameBytes, textOf, valueOf } from './json.ts';
import type { Endpoint, LineError } from './model.ts';

/** The longest custom_id that may run, in bytes of UTF-8. */
export const MAX_CUSTOM_ID_BYTES = 512;
/** A longer custom_id is not even kept for the record of its line, so that the index stays bounded. */
export const MAX_KEPT_CUSTOM_ID_BYTES = 2048;

export interface LineRules {
  endpoint: Endpoint;
  /** The name the engine knows. */
  model: string;
  /** Other names that lines may use for it. */
  aliases: readonly string[];
}

export interface CheckedLine {
  /** null where the line has none that can be read, or one too long to keep. */
  customId: string | null;
  /** Present when the line must not run. */
  error?: LineError;
}

/** Slots of LINE_FIELDS. */
const CUSTOM_ID = 0;
const METHOD = 1;
const URL = 2;
const BODY = 3;
const MODEL = 4;
const STREAM = 5;
const MESSAGES = 6;

const LINE_FIELDS = [
  { key: 'custom_id', slot: CUSTOM_ID },
  { key: 'method', slot: METHOD },
  { key: 'url', slot: URL },
  {
    key: 'body',
    slot: BODY,
    inside: [
      { key: 'model', slot: MODEL },
      { key: 'stream', slot: STREAM },
      { key: 'messages', slot: MESSAGES },
    ],
  },
];

const REQUIRED = [
  [CUSTOM_ID, 'custom_id'],
  [METHOD, 'method'],
  [URL, 'url'],
  [BODY, 'body'],
] as const;

const quoted = (text: string): Uint8Array => Buffer.from(JSON.stringify(text));

/** Checks many lines by the same rules. Holds the places of the last line; not re-entrant. */
export class LineChecker {
  readonly #rules: LineRules;
  readonly #scanner = new FieldScanner(LINE_FIELDS);
  readonly #method = quoted('POST');
  readonly #url: Uint8Array;
  readonly #models: Uint8Array[];

  constructor(rules: LineRules) {
    this.#rules = rules;
    this.#url = quoted(rules.endpoint);
    this.#models = [rules.model, ...rules.aliases].map(quoted);
  }

  /** Where the JSON string of the last line's custom_id starts, quote included; −1 where it has none that can be kept. */
  idStart = -1;
  idEnd = -1;
  /** Whether its JSON string spells it in plain ASCII: no escape, no control character. */
  idIsPlain = false;

  /**
   * Checks bytes [start, end), a line without its line break. `validUtf8`: what the caller already knows of them.
   * Returns the error, or undefined when the line may run.
   */
  check(bytes: Uint8Array, start: number, end: number, validUtf8?: boolean): LineError | undefined {
    this.idStart = -1;
    this.idEnd = -1;
    this.idIsPlain = false;
    const { starts, ends } = this.#scanner;
    const value = this.#scanner.scan(bytes, start, end);
    if (value < 0) return notJson(bytes, start, end, ~value);
    const idStart = starts[CUSTOM_ID]!;
    const idEnd = ends[CUSTOM_ID]!;
    const utf8 = validUtf8 ?? isUtf8(bytes.subarray(start, end));
    if (
      idStart >= 0 &&
      bytes[idStart] === 0x22 &&
      (utf8 || isUtf8(bytes.subarray(idStart, idEnd))) &&
      (idEnd - idStart - 2 <= MAX_KEPT_CUSTOM_ID_BYTES ||
        Buffer.byteLength(textOf(bytes, idStart, idEnd)) <= MAX_KEPT_CUSTOM_ID_BYTES)
    ) {
      this.idStart = idStart;
      this.idEnd = idEnd;
      this.idIsPlain = isPlain(bytes, idStart + 1, idEnd - 1);
    }
    if (!utf8) return notUtf8(bytes, start, end);
    if (bytes[value] !== 0x7b) {
      return lineError(
        'invalid_json_line',
        null,
        `The line must be a JSON object; found ${aKind(bytes, value)}.`,
      );
    }
    for (const [slot, name] of REQUIRED) {
      const at = starts[slot]!;
      if (at < 0 || bytes[at] === 0x6e) {
        return lineError(
          'missing_required_parameter',
          name,
          `The line has no ${name}${at < 0 ? '' : ' (found null)'}; custom_id, method, url and body are required.`,
        );
      }
    }
    return (
      this.#customIdError(bytes) ??
      this.#methodError(bytes) ??
      this.#urlError(bytes) ??
      this.#bodyError(bytes)
    );
  }

  /** The custom_id of the line checked last, decoded. */
  customId(bytes: Uint8Array): string | null {
    return this.idStart < 0 ? null : textOf(bytes, this.idStart, this.idEnd);
  }

  #customIdError(bytes: Uint8Array): LineError | undefined {
    const { starts, ends } = this.#scanner;
    const start = starts[CUSTOM_ID]!;
    const end = ends[CUSTOM_ID]!;
    if (bytes[start] !== 0x22) {
      return lineError(
        'invalid_type',
        'custom_id',
        `custom_id must be a string; found ${aKind(bytes, start)}.`,
      );
    }
    const spelledBytes = end - start - 2;
    if (this.idIsPlain && spelledBytes >= 1 && spelledBytes <= MAX_CUSTOM_ID_BYTES) return undefined;

    const text = textOf(bytes, start, end);
    if (text === '') {
      return lineError('invalid_value', 'custom_id', 'custom_id must not be empty.');
    }
    const length = Buffer.byteLength(text);
    if (length > MAX_CUSTOM_ID_BYTES) {
      return lineError(
        'invalid_value',
        'custom_id',
        `custom_id has ${length} bytes; at most ${MAX_CUSTOM_ID_BYTES} are allowed. It starts with ${shown(text)}.`,
      );
    }
    const control = /[\u0000-\u001f\u007f-\u009f]/.exec(text);
    if (control !== null) {
      const code = control[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, '0');
      return lineError(
        'invalid_value',
        'custom_id',
        `custom_id must hold no control characters; found U+${code} at position ${control.index + 1}.`,
      );
    }
    return undefined;
  }

  #methodError(bytes: Uint8Array): LineError | undefined {
    if (this.#is(bytes, METHOD, this.#method)) return undefined;
    const found = this.#text(bytes, METHOD);
    if (found === 'POST') return undefined;
    return lineError('invalid_method', 'method', `method must be POST; found ${this.#found(bytes, METHOD)}.`);
  }

  #urlError(bytes: Uint8Array): LineError | undefined {
    if (this.#is(bytes, URL, this.#url)) return undefined;
    const found = this.#text(bytes, URL);
    if (found === this.#rules.endpoint) return undefined;
    return lineError(
      'invalid_url',
      'url',
      `url must be the endpoint of the job, "${this.#rules.endpoint}"; found ${this.#found(bytes, URL)}.`,
    );
  }

  #bodyError(bytes: Uint8Array): LineError | undefined {
    const { starts } = this.#scanner;
    const body = starts[BODY]!;
    if (bytes[body] !== 0x7b) {
      return lineError('invalid_type', 'body', `body must be a JSON object; found ${aKind(bytes, body)}.`);
    }
    return this.#modelError(bytes) ?? this.#streamError(bytes) ?? this.#messagesError();
  }

  #modelError(bytes: Uint8Array): LineError | undefined {
    for (const model of this.#models) if (this.#is(bytes, MODEL, model)) return undefined;
    const { model, aliases } = this.#rules;
    const start = this.#scanner.starts[MODEL]!;
    const allowed = [model, ...aliases].map((name) => `"${name}"`).join(', ');
    if (start < 0 || bytes[start] !== 0x22) {
      const found = start < 0 ? 'it is absent' : `found ${aKind(bytes, start)}`;
      return lineError(
        'invalid_request',
        'body.model',
        `body.model must be a string, one of ${excerpt(allowed, 500)}; ${found}.`,
      );
    }
    const found = this.#text(bytes, MODEL);
    if (found === model || (found !== undefined && aliases.includes(found))) return undefined;
    return lineError(
      'model_not_found',
      'body.model',
      `body.model must be one of ${excerpt(allowed, 500)}; found ${this.#found(bytes, MODEL)}.`,
    );
  }

  /** Anything but false and null: engines read 1, "true" or "yes" as true, too. */
  #streamError(bytes: Uint8Array): LineError | undefined {
    const start = this.#scanner.starts[STREAM]!;
    if (start < 0 || bytes[start] === 0x66 || bytes[start] === 0x6e) return undefined;
    return lineError(
      'streaming_unsupported',
      'body.stream',
      `body.stream must be false or absent, since a batch line has one answer; found ${this.#found(bytes, STREAM)}.`,
    );
  }

  #messagesError(): LineError | undefined {
    if (this.#rules.endpoint !== '/v1/chat/completions' || this.#scanner.starts[MESSAGES]! >= 0)
      return undefined;
    return lineError(
      'invalid_request',
      'body.messages',
      `body.messages is absent; ${this.#rules.endpoint} requires it.`,
    );
  }

  #is(bytes: Uint8Array, slot: number, expected: Uint8Array): boolean {
    const start = this.#scanner.starts[slot]!;
    return (
      start >= 0 && this.#scanner.ends[slot]! - start === expected.length && sameBytes(bytes, start, expected)
    );
  }

  /** Decodes a short string; undefined for anything else (no name we compare with is that long). */
  #text(bytes: Uint8Array, slot: number): string | undefined {
    const start = this.#scanner.starts[slot]!;
    const end = this.#scanner.ends[slot]!;
    if (start < 0 || bytes[start] !== 0x22 || end - start > 64 * 1024) return undefined;
    return textOf(bytes, start, end);
  }

  #found(bytes: Uint8Array, slot: number): string {
    const start = this.#scanner.starts[slot]!;
    const end = this.#scanner.ends[slot]!;
    const kind = kindAt(bytes, start);
    if (kind === 'object' || kind === 'array' || end - start > 64 * 1024) return aKind(bytes, start);
    return kind === 'string' ? shown(textOf(bytes, start, end)) : String(valueOf(bytes, start, end));
  }
}

/** Checks one line (without its line break). For many lines keep a LineChecker. */
export function checkLine(bytes: Uint8Array, rules: LineRules): CheckedLine {
  const checker = new LineChecker(rules);
  const error = checker.check(bytes, 0, bytes.length);
  const customId = checker.customId(bytes);
  return error === undefined ? { customId } : { customId, error };
}

/** The error of a line that framing did not keep. */
export const lineTooLarge = (lengthBytes: number, maxLineBytes: number): LineError =>
  lineError(
    'line_too_large',
    null,
    `The line has ${lengthBytes} bytes; at most ${maxLineBytes} bytes are allowed.`,
  );

function isPlain(bytes: Uint8Array, start: number, end: number): boolean {
  for (let i = start; i < end; i++) {
    const byte = bytes[i]!;
    if (byte === 0x5c || byte >= 0x7f) return false;
  }
  return true;
}

const shown = (text: string): string => JSON.stringify(excerpt(text, 100));

function aKind(bytes: Uint8Array, at: number): string {
  const kind = kindAt(bytes, at);
  if (kind === 'null') return 'null';
  return `${kind === 'object' || kind === 'array' ? 'an' : 'a'} ${kind}`;
}

function notJson(bytes: Uint8Array, start: number, end: number, at: number): LineError {
  if (!isUtf8(bytes.subarray(start, end))) return notUtf8(bytes, start, end);
  const found =
    at >= end
      ? 'it ends too early'
      : `unexpected ${byteShown(bytes[at]!)} at byte ${at - start + 1} of the line`;
  return lineError('invalid_json_line', null, `The line is not valid JSON: ${found}.`);
}

const byteShown = (byte: number): string =>
  byte > 0x20 && byte < 0x7f
    ? `"${String.fromCharCode(byte)}"`
    : `byte 0x${byte.toString(16).toUpperCase().padStart(2, '0')}`;

function notUtf8(bytes: Uint8Array, start: number, end: number): LineError {
  const at = firstInvalidUtf8(bytes, start, end);
  return lineError(
    'invalid_json_line',
    null,
    `The line is not valid UTF-8: unexpected ${byteShown(bytes[at]!)} at byte ${at - start + 1} of the line.`,
  );
}

/** Where the first character starts that is not well-formed UTF-8 (RFC 3629). */
function firstInvalidUtf8(bytes: Uint8Array, start: number, end: number): number {
  let i = start;
  while (i < end) {
    const lead = bytes[i]!;
    const length =
      lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length === 0 || (length > 1 && !isUtf8(bytes.subarray(i, Math.min(i + length, end))))) return i;
    i += length;
  }
  return i;
}
