/** No engine may make a line wait longer than this at its word alone. */
export const MAX_RETRY_AFTER_MILLISECONDS = 120_000;

/**
 * The pause that a Retry-After header asks for, from 0 to 120 s.
 * @param value seconds or an HTTP date (RFC 9110 §10.2.3); some servers send fractions of a second.
 * @returns milliseconds; undefined where there is no header or nobody can read it.
 */
export function retryAfterMilliseconds(
  value: string | undefined,
  nowEpochMilliseconds: number,
): number | undefined {
  const text = value?.trim() ?? '';
  const asked = /^\d+(\.\d+)?$/.test(text) ? Number(text) * 1_000 : httpDate(text) - nowEpochMilliseconds;
  if (Number.isNaN(asked)) return undefined;
  return Math.min(Math.max(0, Math.ceil(asked)), MAX_RETRY_AFTER_MILLISECONDS);
}

/** NaN for anything that does not begin like a date: Date.parse would take "-1" or "5 s" for one. */
const httpDate = (text: string): number =>
  /^(mon|tue|wed|thu|fri|sat|sun)/i.test(text) ? Date.parse(text) : Number.NaN;
