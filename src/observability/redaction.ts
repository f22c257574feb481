/**
 * What must never reach a log: secrets by the name of their field, secrets by their looks, and things too large
 * to be read by anyone. Pure.
 */

const REDACTED = '[redacted]';
const MAX_DEPTH = 6;
const MAX_ITEMS = 100;
const MAX_TEXT = 8 * 1024;

/** Names of fields that hold a secret, without separators and in lower case; `tokens` (a count) is none of them. */
const SECRET_NAME =
  /(authorization|password|passwd|passphrase|secret|secretkey|apikey|accesskey|accesskeyid|privatekey|token|cookie|credentials)$/;

/** Secrets that are recognised inside any text, with what is kept of them. */
const SECRET_TEXT: readonly [pattern: RegExp, replacement: string][] = [
  [/\b(bearer)\s+[\w.~+/=-]{6,}/gi, `$1 ${REDACTED}`],
  [/\b(basic)\s+[A-Za-z0-9+/]{16,}={0,2}/gi, `$1 ${REDACTED}`],
  [/\b(?:AKIA|ASIA)[0-9A-Z]{16}\b/g, REDACTED],
  [/\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*/g, REDACTED],
  [/\bsk-[\w-]{16,}/g, REDACTED],
  [/\b(x-amz-(?:signature|credential|security-token)=)[^&\s"']+/gi, `$1${REDACTED}`],
  [
    /\b((?:aws_?)?(?:secret_?access_?key|session_?token|api_?key|password)["']?\s*[=:]\s*["']?)[^\s"',;&}]+/gi,
    `$1${REDACTED}`,
  ],
  [/\b([a-z][a-z0-9+.-]*:\/\/)[^\s/@:]*:[^\s/@]+@/gi, `$1${REDACTED}@`],
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g, REDACTED],
];

/** The text without anything that looks like a secret, at most 8 KiB of it. */
export function redactText(text: string): string {
  let clean = text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}… (${text.length} characters)` : text;
  for (const [pattern, replacement] of SECRET_TEXT) clean = clean.replace(pattern, replacement);
  return clean;
}

function describeError(error: Error, depth: number): Record<string, unknown> {
  const { code, status, reason } = error as { code?: unknown; status?: unknown; reason?: unknown };
  // Errors of client libraries drag requests and responses along: only what explains them is taken.
  const described: Record<string, unknown> = { name: error.name, message: redactText(error.message) };
  if (typeof code === 'string' || typeof code === 'number') described['code'] = code;
  if (typeof status === 'number') described['status'] = status;
  if (typeof reason === 'string') described['reason'] = redactText(reason);
  if (error.stack !== undefined) described['stack'] = redactText(error.stack);
  if (error.cause !== undefined) described['cause'] = redact(error.cause, depth + 1);
  if (error instanceof AggregateError) described['errors'] = redact(error.errors, depth + 1);
  return described;
}

/** A copy of the value fit for a log line: no secrets, bounded in depth and length, errors with stack, code and cause. */
export function redact(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return redactText(value);
  if (typeof value === 'bigint') return value.toString();
  if (typeof value === 'function' || typeof value === 'symbol') return undefined;
  if (typeof value !== 'object' || value === null) return value;
  if (depth > MAX_DEPTH) return '[deeper]';
  if (value instanceof Error) return describeError(value, depth);
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'Invalid Date' : value.toISOString();
  if (value instanceof Uint8Array) return `[${value.byteLength} bytes]`;
  if (Array.isArray(value) || value instanceof Set) {
    const items = [...value];
    const kept = items.slice(0, MAX_ITEMS).map((item) => redact(item, depth + 1));
    return items.length > MAX_ITEMS ? [...kept, `… ${items.length - MAX_ITEMS} more`] : kept;
  }
  const entries = value instanceof Map ? [...value.entries()] : Object.entries(value);
  const copy: Record<string, unknown> = {};
  for (const [name, item] of entries.slice(0, MAX_ITEMS)) {
    const key = String(name);
    copy[key] = isSecretName(key) && holdsSomething(item) ? REDACTED : redact(item, depth + 1);
  }
  return copy;
}

const isSecretName = (name: string): boolean =>
  SECRET_NAME.test(name.toLowerCase().replace(/[^a-z0-9]/g, ''));

/** Numbers, booleans and empty fields under such a name tell nothing and help to understand. */
const holdsSomething = (value: unknown): boolean =>
  (typeof value === 'string' && value !== '') || (typeof value === 'object' && value !== null);
