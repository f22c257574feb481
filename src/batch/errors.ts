/**
 * Every error of this room, with a stable code. Line errors are values that end up in errors.jsonl; a BatchError is
 * thrown where a whole object or job cannot be used. Messages name what was found and what is allowed.
 */
import type { LineError } from './model.ts';

/** Codes of lines that cannot run. OpenAI's names where OpenAI has one; line_too_large is ours. */
export const LINE_ERROR_CODES = {
  invalid_json_line: 'The line is not one JSON object in UTF-8.',
  missing_required_parameter: 'custom_id, method, url or body is absent or null.',
  invalid_type: 'A field has another JSON type than it must have.',
  invalid_value: 'custom_id is empty, longer than 512 bytes or holds control characters.',
  invalid_method: 'method is not POST.',
  invalid_url: 'url is not the endpoint of the job.',
  invalid_request: 'The body lacks a field that the endpoint cannot do without.',
  model_not_found: 'body.model is neither the model of this deployment nor one of its aliases.',
  streaming_unsupported: 'body.stream asks for a stream.',
  duplicate_custom_id: 'An earlier line of the job has the same custom_id.',
  line_too_large: 'The line is longer than the limit.',
} as const;
export type LineErrorCode = keyof typeof LINE_ERROR_CODES;

/** Codes of the records of lines that never ran, or ran without an HTTP answer. */
export const NEVER_RAN_CODES = {
  batch_expired: 'The completion window ended first.',
  batch_cancelled: 'The job was cancelled first.',
  batch_failed: 'The job failed first.',
  request_failed: 'All attempts ended without an HTTP answer.',
} as const;
export type NeverRanCode = keyof typeof NEVER_RAN_CODES;

export const lineError = (code: LineErrorCode, param: string | null, message: string): LineError => ({
  code,
  message,
  param,
});

/**
 * - `DiskFull`: the spill store has no room left.
 * - `LimitExceeded`: packed input unpacks to more than allowed.
 * - `InvalidInput`: an input object cannot be read as what it claims to be (truncated gzip, wrong compression).
 * - `CorruptObject`: a working object is torn, damaged or belongs elsewhere; it must not be used.
 * - `UnsupportedFormat`: a working object of another format version.
 */
export type BatchErrorCode =
  'DiskFull' | 'LimitExceeded' | 'InvalidInput' | 'CorruptObject' | 'UnsupportedFormat';

export class BatchError extends Error {
  readonly code: BatchErrorCode;
  constructor(code: BatchErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'BatchError';
    this.code = code;
  }
}

/** At most `maxChars` UTF-16 units of a text for a message; never ends inside a surrogate pair. */
export function excerpt(text: string, maxChars: number): string {
  if (text.length <= maxChars) return text;
  const last = text.charCodeAt(maxChars - 1);
  const cut = last >= 0xd800 && last <= 0xdbff ? maxChars - 1 : maxChars;
  return `${text.slice(0, cut)}…`;
}
