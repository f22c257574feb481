/**
 * What an engine answered, as it is kept: the engine's own bytes, with only the line breaks between tokens removed and
 * U+2028, U+2029 and U+0085 escaped, so that one answer is one line for every reader. An answer that is no JSON object
 * is kept as the text of an error.
 */
import { isUtf8 } from 'node:buffer';
import { excerpt } from './errors.ts';
import { FieldScanner, kindAt, oneLineJson, valueOf } from './json.ts';
import { noUsage, type Endpoint, type Usage } from './model.ts';
import { usageFrom } from './usage.ts';

/** Of an answer that is no JSON object at most this much text is kept, in bytes of UTF-8. */
export const MAX_FOREIGN_TEXT_BYTES = 8 * 1024;

/** What status.recentErrors says of a failed line. */
export interface AnswerError {
  code: string;
  message: string;
}

export interface Answer {
  /** JSON object on one line: the engine's, or `{"error":{message,type,param,code}}` made from its text. */
  body: Uint8Array;
  /** Whether the engine's bytes were one JSON object. */
  isJsonObject: boolean;
  /** Whether the object has a top-level `error` other than null (a 200 may hold one). */
  errorInside: boolean;
  /** Code and message of the error inside, or of the text. */
  error: AnswerError | undefined;
  usage: Usage;
}

const ERROR = 0;
const USAGE = 1;
const ANSWER_FIELDS = [
  { key: 'error', slot: ERROR },
  { key: 'usage', slot: USAGE },
];
/** An `error` or `usage` larger than this is not parsed. */
const MAX_PARSED_BYTES = 256 * 1024;

/** Reads an answer in one pass. */
export function readAnswer(endpoint: Endpoint, status: number, bytes: Uint8Array): Answer {
  const json = withoutBom(bytes);
  const scanner = scanObject(json);
  if (scanner === undefined) {
    const error = foreignError(status, json);
    return {
      body: Buffer.from(oneLineJson({ error })),
      isJsonObject: false,
      errorInside: true,
      error: { code: error.code, message: error.message },
      usage: noUsage(),
    };
  }
  const [errorStart, errorEnd] = [scanner.starts[ERROR]!, scanner.ends[ERROR]!];
  const [usageStart, usageEnd] = [scanner.starts[USAGE]!, scanner.ends[USAGE]!];
  const errorInside = hasError(json, scanner);
  const usage =
    usageStart >= 0 && usageEnd - usageStart <= MAX_PARSED_BYTES
      ? usageFrom(endpoint, valueOf(json, usageStart, usageEnd))
      : noUsage();
  let error: AnswerError | undefined;
  if (errorInside) {
    const value = errorEnd - errorStart <= MAX_PARSED_BYTES ? valueOf(json, errorStart, errorEnd) : undefined;
    error = describeError(status, value);
  }
  return { body: oneLine(json), isJsonObject: true, errorInside, error, usage };
}

/** The body of the record for an answer; see Answer.body. */
export const answerBody = (status: number, bytes: Uint8Array): Uint8Array => {
  const json = withoutBom(bytes);
  return scanObject(json) === undefined
    ? Buffer.from(oneLineJson({ error: foreignError(status, json) }))
    : oneLine(json);
};

/** Whether the bytes are one JSON object in UTF-8 (a BOM before it is tolerated). */
export const isJsonObject = (bytes: Uint8Array): boolean => scanObject(withoutBom(bytes)) !== undefined;

/** Whether the bytes are one JSON object with a top-level `error` other than null; of duplicates the last counts. */
export function hasErrorInside(bytes: Uint8Array): boolean {
  const json = withoutBom(bytes);
  const scanner = scanObject(json);
  return scanner !== undefined && hasError(json, scanner);
}

/** Code and message of an answer's error, for status and logs; undefined where it holds none. */
export const errorInside = (status: number, bytes: Uint8Array): AnswerError | undefined =>
  readAnswer('/v1/chat/completions', status, bytes).error;

/** The tokens that an answer reports. */
export const usageOf = (endpoint: Endpoint, bytes: Uint8Array): Usage =>
  readAnswer(endpoint, 200, bytes).usage;

const withoutBom = (bytes: Uint8Array): Uint8Array =>
  bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? bytes.subarray(3) : bytes;

function scanObject(bytes: Uint8Array): FieldScanner | undefined {
  const scanner = new FieldScanner(ANSWER_FIELDS);
  const value = scanner.scan(bytes, 0, bytes.length);
  return value >= 0 && bytes[value] === 0x7b && isUtf8(bytes) ? scanner : undefined;
}

function hasError(bytes: Uint8Array, scanner: FieldScanner): boolean {
  const start = scanner.starts[ERROR]!;
  return start >= 0 && kindAt(bytes, start) !== 'null';
}

function describeError(status: number, value: unknown): AnswerError {
  const fallback: AnswerError = {
    code: `http_${status}`,
    message: `The engine answered ${status} with an error.`,
  };
  if (typeof value === 'string') return { ...fallback, message: value === '' ? fallback.message : value };
  if (typeof value !== 'object' || value === null) return fallback;
  const { code, type, message } = value as Record<string, unknown>;
  return {
    code: nonEmpty(code) ?? nonEmpty(type) ?? fallback.code,
    message: nonEmpty(message) ?? fallback.message,
  };
}

function nonEmpty(value: unknown): string | undefined {
  if (typeof value === 'number') return String(value);
  return typeof value === 'string' && value !== '' ? value : undefined;
}

interface ForeignError extends AnswerError {
  type: string;
  param: null;
}

function foreignError(status: number, bytes: Uint8Array): ForeignError {
  const text = decodeAtMost(bytes, MAX_FOREIGN_TEXT_BYTES);
  return {
    message: text === '' ? `The engine answered ${status} with an empty body.` : text,
    type: status >= 400 && status < 500 ? 'invalid_request_error' : 'server_error',
    param: null,
    code: status >= 200 && status < 300 ? 'invalid_answer' : `http_${status}`,
  };
}

/** Decodes at most `maxBytes`, never half a character; invalid bytes become U+FFFD. */
function decodeAtMost(bytes: Uint8Array, maxBytes: number): string {
  let end = Math.min(bytes.length, maxBytes);
  if (end < bytes.length) {
    for (let back = 0; back < 3 && end > 0 && (bytes[end]! & 0xc0) === 0x80; back++) end--;
  }
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes.subarray(0, end));
  // U+FFFD takes three bytes where the wrong byte took one.
  return Buffer.byteLength(text) <= maxBytes ? text : text.slice(0, Math.floor(maxBytes / 3));
}

/**
 * A valid JSON text on one line. In valid JSON the bytes 0x0A and 0x0D stand between tokens only, and tokens that
 * touch after their removal are separated by punctuation anyway.
 */
function oneLine(json: Uint8Array): Uint8Array {
  const start = trimStart(json);
  const end = trimEnd(json, start);
  let clean = start;
  while (clean < end && !breaksLine(json, clean)) clean++;
  if (clean === end) return json.subarray(start, end);
  let added = 0;
  for (let i = clean; i < end; i++) {
    if (json[i]! >= 0x80 && breaksLine(json, i)) added += json[i] === 0xe2 ? 3 : 4;
  }
  const line = Buffer.allocUnsafe(end - start + added);
  line.set(json.subarray(start, clean));
  let to = clean - start;
  for (let i = clean; i < end; i++) {
    const byte = json[i]!;
    if (!breaksLine(json, i)) line[to++] = byte;
    else if (byte >= 0x80) {
      const escape = byte === 0xc2 ? '\\u0085' : json[i + 2] === 0xa8 ? '\\u2028' : '\\u2029';
      to += line.write(escape, to, 'latin1');
      i += byte === 0xe2 ? 2 : 1;
    }
  }
  return line.subarray(0, to);
}

function breaksLine(bytes: Uint8Array, at: number): boolean {
  const byte = bytes[at]!;
  if (byte < 0x80) return byte === 0x0a || byte === 0x0d;
  if (byte === 0xc2) return bytes[at + 1] === 0x85;
  return byte === 0xe2 && bytes[at + 1] === 0x80 && (bytes[at + 2] === 0xa8 || bytes[at + 2] === 0xa9);
}

const isSpace = (byte: number): boolean => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);

function trimStart(bytes: Uint8Array): number {
  let i = 0;
  while (i < bytes.length && isSpace(bytes[i]!)) i++;
  return i;
}

function trimEnd(bytes: Uint8Array, start: number): number {
  let i = bytes.length;
  while (i > start && isSpace(bytes[i - 1]!)) i--;
  return i;
}

/** A message as status shows it. */
export const shortMessage = (message: string): string => excerpt(message, 256);
