/**
 * What went wrong, in the words of contract.ts. S3 servers agree on HTTP status and, mostly, on error codes; where
 * they differ the code wins over the status. Messages carry the server's own sentence, never the error object: that
 * holds the access key and the signed string.
 */
import { isNativeError } from 'node:util/types';
import { StoreError, type StoreErrorCode } from './contract.ts';

/** One failed call: the error to hand out, whether the same call may succeed when repeated, and its metric label. */
export interface Failure {
  error: StoreError;
  retryable: boolean;
  /** Bounded: the server's error code where we know it, else the HTTP status or the kind of network fault. */
  label: string;
}

/** Server codes by meaning; anything not listed is judged by its HTTP status. */
const BY_CODE: ReadonlyMap<string, StoreErrorCode> = new Map([
  ['NoSuchKey', 'NoSuchKey'],
  ['NotFound', 'NoSuchKey'],
  ['NoSuchBucket', 'NoSuchBucket'],
  ['AccessDenied', 'AccessDenied'],
  ['AllAccessDisabled', 'AccessDenied'],
  ['AccountProblem', 'AccessDenied'],
  ['InvalidAccessKeyId', 'InvalidCredentials'],
  ['InvalidAccessKey', 'InvalidCredentials'],
  ['SignatureDoesNotMatch', 'InvalidCredentials'],
  ['InvalidToken', 'InvalidCredentials'],
  ['InvalidSecurity', 'InvalidCredentials'],
  ['ExpiredToken', 'InvalidCredentials'],
  ['TokenRefreshRequired', 'InvalidCredentials'],
  ['UnrecognizedClientException', 'InvalidCredentials'],
  ['CredentialsProviderError', 'InvalidCredentials'],
  // versitygw, for an access key that nobody has.
  ['XAdminUserNotFound', 'InvalidCredentials'],
  ['PreconditionFailed', 'PreconditionFailed'],
  ['NoSuchUpload', 'NoSuchUpload'],
  // versitygw, where an upload is aborted while it is being completed.
  ['InvalidPart', 'NoSuchUpload'],
  ['EntityTooSmall', 'EntityTooSmall'],
  ['NotImplemented', 'InvalidRequest'],
  ['InvalidObjectState', 'InvalidRequest'],
  ['PermanentRedirect', 'InvalidRequest'],
  ['AuthorizationHeaderMalformed', 'InvalidRequest'],
  ['SlowDown', 'Unavailable'],
  ['ServiceUnavailable', 'Unavailable'],
  ['InternalError', 'Unavailable'],
  ['RequestTimeout', 'Unavailable'],
  ['RequestTimeTooSkewed', 'Unavailable'],
  ['OperationAborted', 'Unavailable'],
  ['ConditionalRequestConflict', 'Unavailable'],
  ['BadDigest', 'Unavailable'],
  ['IncompleteBody', 'Unavailable'],
  ['TimeoutError', 'Unavailable'],
]);

/** Codes whose cause users can mend, with how. */
const ADVICE: ReadonlyMap<string, string> = new Map([
  [
    'PermanentRedirect',
    'the bucket lies in another region or behind another endpoint; set region and endpoint',
  ],
  ['AuthorizationHeaderMalformed', 'the region is not the one of the bucket; set region'],
  ['InvalidObjectState', 'the object is archived; restore it first'],
  ['RequestTimeTooSkewed', 'the clocks of this machine and of the store differ too much'],
  ['CredentialsProviderError', 'no credentials: name a Secret, or give the worker an identity'],
]);

const NETWORK = new Set([
  ...['ECONNRESET', 'ECONNREFUSED', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'],
  ...['EHOSTDOWN', 'ENETDOWN', 'ENOTFOUND', 'EAI_AGAIN', 'ERR_STREAM_PREMATURE_CLOSE', 'EPROTO'],
  ...['ERR_SOCKET_CLOSED', 'ERR_STREAM_DESTROYED', 'EADDRNOTAVAIL', 'EMFILE'],
]);

const TLS = /^(CERT_|ERR_TLS_|UNABLE_TO_|SELF_SIGNED_CERT|DEPTH_ZERO_|HOSTNAME_MISMATCH|ERR_SSL_)/;

interface SdkError extends Error {
  code?: unknown;
  Code?: unknown;
  $metadata?: { httpStatusCode?: number; requestId?: string };
  $response?: { statusCode?: number };
  errors?: (SdkError | undefined)[];
}

export interface CallContext {
  operation: string;
  bucket: string;
  key?: string | undefined;
  signal?: AbortSignal | undefined;
}

/** Judges whatever a call threw. Errors that are neither the store's nor the network's are defects and pass unchanged. */
export function judge(thrown: unknown, call: CallContext): Failure {
  const where = `${call.operation} s3://${call.bucket}/${call.key ?? ''}`;
  const failure = (code: StoreErrorCode, why: string, label: string): Failure => ({
    error: new StoreError(code, call.bucket, call.key, `${where}: ${why}`),
    retryable: code === 'Unavailable',
    label,
  });
  if (thrown instanceof StoreError) return { error: thrown, retryable: false, label: thrown.code };
  if (call.signal?.aborted === true) return failure('Aborted', 'aborted', 'Aborted');
  if (!isNativeError(thrown)) throw thrown;

  const error: SdkError = thrown;
  if (error.name === 'AbortError') return failure('Aborted', 'aborted', 'Aborted');
  if (error.code === 'AddressRefused') return failure('InvalidRequest', error.message, 'AddressRefused');
  const network = networkCode(error);
  if (network !== undefined && TLS.test(network)) {
    return failure(
      'InvalidRequest',
      `the certificate of the endpoint is not trusted (${network}); give its authority in caBundleRef`,
      'Tls',
    );
  }
  const status = error.$metadata?.httpStatusCode ?? error.$response?.statusCode;
  if (network !== undefined && status === undefined) return failure('Unavailable', network, 'Network');

  const code = typeof error.Code === 'string' ? error.Code : error.name;
  if (error.message.startsWith('Checksum mismatch'))
    return failure('Unavailable', 'damaged on its way', 'Checksum');
  const known = BY_CODE.get(code) ?? (status === undefined ? undefined : byStatus(status));
  // A server that answers 200 with something unreadable in it is broken in a way that may pass.
  const meaning = known ?? (error.$response !== undefined ? 'Unavailable' : undefined);
  if (meaning === undefined) throw thrown;
  return failure(
    meaning,
    describe(error, code, status),
    BY_CODE.has(code) ? code : String(status ?? 'Unreadable'),
  );
}

/** A 404 is judged by its code alone: taking some other answer for "no such key" would lose an object. */
function byStatus(status: number): StoreErrorCode | undefined {
  if (status === 401) return 'InvalidCredentials';
  if (status === 403) return 'AccessDenied';
  if (status === 412) return 'PreconditionFailed';
  if (status === 408 || status === 429) return 'Unavailable';
  if (status === 501) return 'InvalidRequest';
  if (status >= 500) return 'Unavailable';
  return status >= 300 ? 'InvalidRequest' : undefined;
}

function describe(error: SdkError, code: string, status: number | undefined): string {
  const sentence = error.message === '' || error.message === code ? '' : `: ${error.message.slice(0, 300)}`;
  const advice = ADVICE.get(code);
  const parts = [status === undefined ? '' : `HTTP ${status} `, code, sentence];
  return `${parts.join('')}${advice === undefined ? '' : ` (${advice})`}`;
}

/** Node puts several failed addresses of one name into an AggregateError. */
function networkCode(error: SdkError): string | undefined {
  const candidates: unknown[] = [error.code];
  for (const each of error.errors ?? []) candidates.push(each?.code);
  if (error.name === 'TimeoutError') candidates.push('ETIMEDOUT');
  if (error.message === 'aborted' || error.message === 'socket hang up') candidates.push('ECONNRESET');
  return candidates.find(
    (each): each is string =>
      typeof each === 'string' && (NETWORK.has(each) || TLS.test(each) || each.startsWith('HPE_')),
  );
}
