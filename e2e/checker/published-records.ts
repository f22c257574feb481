/** results.jsonl and errors.jsonl as a strict reader sees them. */

export type FileName = 'results.jsonl' | 'errors.jsonl';
export type Outcome = 'completed' | 'failed' | 'expired' | 'cancelled';

export interface PublishedRecord {
  file: FileName;
  /** Physical line in the published file, from 1. */
  at: number;
  id: string;
  customId: string | null;
  response: { statusCode: number; body: unknown } | null;
  error: { code: string; line: number | undefined; key: string | undefined } | null;
  outcome: Outcome;
  /** The whole record as text, for finding markers. */
  text: string;
}

interface Shape {
  id?: unknown;
  custom_id?: unknown;
  response?: unknown;
  error?: unknown;
}

/** Reads a published file; every departure from the format goes to `violation`, and that record is left out. */
export function publishedRecords(
  file: FileName,
  bytes: Buffer,
  violation: (message: string) => void,
): PublishedRecord[] {
  if (bytes.length === 0) {
    violation(`${file} exists but is empty; a file without records must not exist`);
    return [];
  }
  if (bytes.at(-1) !== 0x0a) violation(`${file} does not end in a line break: it was cut`);
  const records: PublishedRecord[] = [];
  const lines = bytes.toString('utf8').split('\n');
  if (lines.at(-1) === '') lines.pop();
  for (const [index, text] of lines.entries()) {
    const where = `${file}:${index + 1}`;
    const record = recordOf(file, index + 1, text, (message) => violation(`${where}: ${message}`));
    if (record !== undefined) records.push(record);
  }
  return records;
}

function recordOf(
  file: FileName,
  at: number,
  text: string,
  violation: (message: string) => void,
): PublishedRecord | undefined {
  if (/[\r\u0085\u2028\u2029]/.test(text)) violation('contains a raw line separator that clients split at');
  let shape: Shape;
  try {
    shape = JSON.parse(text) as Shape;
  } catch {
    violation(`is not JSON: ${text.slice(0, 80)}`);
    return undefined;
  }
  const { id, custom_id: customId, response, error } = shape;
  if (typeof id !== 'string' || id === '') {
    violation('has no id');
    return undefined;
  }
  if (typeof customId !== 'string' && customId !== null) {
    violation(`custom_id is ${JSON.stringify(customId)}, neither a string nor null`);
    return undefined;
  }
  const answered = responseOf(response, violation);
  const failed = errorOf(error, violation);
  if (answered === undefined || failed === undefined) return undefined;
  if ((answered === null) === (failed === null)) {
    violation('must have exactly one of response and error');
    return undefined;
  }
  const outcome = outcomeOf(file, failed?.code);
  if (file === 'results.jsonl') {
    if (answered === null) violation('a record without an answer stands among the results');
    else if (!isSuccess(answered))
      violation(`no good answer (${answered.statusCode}) stands among the results`);
  } else if (answered !== null && isSuccess(answered)) {
    violation(`a good answer (${answered.statusCode}) stands among the errors`);
  }
  return { file, at, id, customId, response: answered, error: failed, outcome, text };
}

/** A 2xx with an `error` in its body is none. */
const isSuccess = ({ statusCode, body }: { statusCode: number; body: unknown }): boolean =>
  statusCode >= 200 &&
  statusCode <= 299 &&
  !('error' in (body as object) && (body as { error: unknown }).error);

function responseOf(
  value: unknown,
  violation: (message: string) => void,
): PublishedRecord['response'] | undefined {
  if (value === null) return null;
  const { status_code: statusCode, body } = (value ?? {}) as { status_code?: unknown; body?: unknown };
  if (typeof statusCode !== 'number' || statusCode < 100 || statusCode > 599) {
    violation(`response.status_code is ${JSON.stringify(statusCode)}`);
    return undefined;
  }
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    violation('response.body is no object');
    return undefined;
  }
  return { statusCode, body };
}

function errorOf(value: unknown, violation: (message: string) => void): PublishedRecord['error'] | undefined {
  if (value === null) return null;
  const { code, message, line, key } = (value ?? {}) as Record<string, unknown>;
  if (typeof code !== 'string' || code === '' || typeof message !== 'string' || message === '') {
    violation(`error needs code and message, found ${JSON.stringify(value)}`);
    return undefined;
  }
  return {
    code,
    line: typeof line === 'number' ? line : undefined,
    key: typeof key === 'string' ? key : undefined,
  };
}

function outcomeOf(file: FileName, code: string | undefined): Outcome {
  if (file === 'results.jsonl') return 'completed';
  if (code === 'batch_expired') return 'expired';
  if (code === 'batch_cancelled') return 'cancelled';
  return 'failed';
}
