/**
 * The one record of an input line, as a line of results.jsonl or errors.jsonl. Three kinds: an answer, an HTTP error
 * (both with `response`, `error` null), and a line without an answer (`response` null, `error` with line and key).
 */
import { readAnswer, shortMessage } from './answer.ts';
import { oneLineJson } from './json.ts';
import {
  noUsage,
  MAX_ANSWER_BYTES,
  type Endpoint,
  type IndexedLine,
  type LineError,
  type LineRecord,
  type Outcome,
  type Shard,
} from './model.ts';

/** Which line a record is for. */
export interface LineIdentity {
  jobUID: string;
  /** 0-based position over the whole job. */
  ordinal: number;
  /** Physical line number in its source. */
  line: number;
  customId: string | null;
}

/** The identity of the n-th line of a shard. */
export function lineIdentity(jobUID: string, shard: Shard, position: number): LineIdentity {
  const { line, customId } = shard.lines[position] as IndexedLine;
  return { jobUID, ordinal: shard.firstOrdinal + position, line, customId };
}

/** The same for the same line of the same job, whoever writes it, and different for every other line. */
export const recordId = (jobUID: string, ordinal: number): string =>
  `batch_req_${jobUID.replaceAll('-', '')}${ordinal.toString(16).padStart(8, '0')}`;

export interface EngineAnswer {
  status: number;
  /** What the engine calls the request, or what we sent as x-request-id. */
  requestId: string;
  /** As received. */
  body: Uint8Array;
  /** The answer was over MAX_ANSWER_BYTES and was not kept. */
  tooLarge?: boolean;
  /** Not looked at: the bytes decide whether the answer is JSON. */
  contentType?: string;
}

/**
 * The record of a line that got an HTTP answer: `completed` for a 2xx that is one JSON object without `error`,
 * else `failed`. Usage is counted in both cases, since the engine worked.
 */
export function answerRecord(identity: LineIdentity, endpoint: Endpoint, answer: EngineAnswer): LineRecord {
  const { status, requestId } = answer;
  const read = readAnswer(endpoint, status, answer.tooLarge === true ? tooLargeBody() : answer.body);
  const ok = status >= 200 && status < 300 && read.isJsonObject && !read.errorInside;
  const head =
    `{"id":${JSON.stringify(recordId(identity.jobUID, identity.ordinal))},` +
    `"custom_id":${oneLineJson(identity.customId)},` +
    `"response":{"status_code":${status},"request_id":${oneLineJson(requestId)},"body":`;
  const record: LineRecord = {
    ordinal: identity.ordinal,
    line: identity.line,
    outcome: ok ? 'completed' : 'failed',
    usage: read.usage,
    bytes: Buffer.concat([Buffer.from(head), read.body, Buffer.from('},"error":null}')]),
  };
  if (!ok) {
    const error = read.error ?? { code: `http_${status}`, message: `The engine answered ${status}.` };
    record.error = { customId: identity.customId, code: error.code, message: shortMessage(error.message) };
  }
  return record;
}

const tooLargeBody = (): Uint8Array =>
  Buffer.from(
    oneLineJson({
      error: {
        message: `The answer is longer than ${MAX_ANSWER_BYTES} bytes, the most that is kept.`,
        type: 'server_error',
        param: null,
        code: 'answer_too_large',
      },
    }),
  );

/**
 * The record of a line without an HTTP answer: one that cannot run (its LineError, outcome `failed`), or one that did
 * not get to run (`batch_expired`, `batch_cancelled`, `batch_failed`, `request_failed`).
 * @param key the object the user named, as in Source.inputKey
 */
export function neverRanRecord(
  identity: LineIdentity,
  key: string,
  outcome: Exclude<Outcome, 'completed'>,
  error: LineError,
): LineRecord {
  const { code, message, param } = error;
  return {
    ordinal: identity.ordinal,
    line: identity.line,
    outcome,
    usage: noUsage(),
    bytes: Buffer.from(
      oneLineJson({
        id: recordId(identity.jobUID, identity.ordinal),
        custom_id: identity.customId,
        response: null,
        error: { code, message, param, line: identity.line, key },
      }),
    ),
    error: { customId: identity.customId, code, message: shortMessage(message) },
  };
}

/** The record of a line whose index entry carries an error. */
export const invalidLineRecord = (identity: LineIdentity, key: string, error: LineError): LineRecord =>
  neverRanRecord(identity, key, 'failed', error);

/** Why the rest of a job did not run. Same shape as the queue's StopCause, without its reason where none is shown. */
export type EndCause =
  { kind: 'Cancelled' } | { kind: 'Expired' } | { kind: 'Failed'; reason: string; message: string };

/** The record of a line that did not get to run before its job ended. */
export function unfinishedRecord(identity: LineIdentity, key: string, cause: EndCause): LineRecord {
  switch (cause.kind) {
    case 'Cancelled':
      return neverRanRecord(identity, key, 'cancelled', {
        code: 'batch_cancelled',
        message: 'The job was cancelled before this line got its answer.',
        param: null,
      });
    case 'Expired':
      return neverRanRecord(identity, key, 'expired', {
        code: 'batch_expired',
        message: 'The completion window ended before this line got its answer.',
        param: null,
      });
    case 'Failed':
      return neverRanRecord(identity, key, 'failed', {
        code: 'batch_failed',
        message: `The job failed before this line got its answer: ${cause.reason}: ${cause.message}`,
        param: null,
      });
  }
}
