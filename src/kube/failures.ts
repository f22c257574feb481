/** How failed calls become KubeErrors, and what may be read from one. Nothing secret gets through here. */
import type { KubeErrorCause } from './contract.ts';
import { KubeError } from './contract.ts';
import { truncateUtf8 } from './text.ts';

/** Reasons of KubeErrors with status 0: no answer came. */
export type NoAnswerReason =
  /** No connection was made, so the server cannot have acted. */
  | 'ConnectionRefused'
  /** The connection broke after the request may have been sent. */
  | 'ConnectionLost'
  | 'Timeout'
  | 'Aborted';

const neverConnected = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
]);

const isCertificateProblem = (code: string): boolean => /CERT|SELF_SIGNED|ERR_TLS|ERR_SSL/.test(code);

/** The error of a call that got no answer. `target` names method and path, never a query or a body. */
export function noAnswer(error: unknown, target: string): KubeError {
  if (error instanceof KubeError) return error;
  const code = codeOf(error);
  const reason: NoAnswerReason =
    neverConnected.has(code) || isCertificateProblem(code) ? 'ConnectionRefused' : 'ConnectionLost';
  const detail = error instanceof Error ? redact(error.message) : 'unknown failure';
  return new KubeError(0, reason, `${target}: ${code === '' ? detail : `${code}: ${detail}`}`, {
    cause: error,
  });
}

function codeOf(error: unknown): string {
  for (let at = error; at instanceof Error; at = at.cause) {
    if ('code' in at && typeof at.code === 'string') return at.code;
  }
  return '';
}

interface StatusBody {
  kind?: unknown;
  message?: unknown;
  reason?: unknown;
  code?: unknown;
  details?: { causes?: unknown; retryAfterSeconds?: unknown } | null;
}

/** The error that a metav1.Status tells, from an answer's body or from an ERROR event of a watch. */
export function kubeErrorOf(
  httpStatus: number,
  body: unknown,
  target: string,
  retryAfterHeader?: string,
): KubeError {
  const status = isStatus(body) ? body : {};
  const code = typeof status.code === 'number' ? status.code : httpStatus;
  const message =
    typeof status.message === 'string'
      ? truncateUtf8(redact(status.message), 4096)
      : `answered ${httpStatus} without a Status`;
  const told = status.details?.retryAfterSeconds;
  return new KubeError(
    code,
    typeof status.reason === 'string' && status.reason !== '' ? status.reason : `HTTP${code}`,
    `${target}: ${message}`,
    {
      causes: causesOf(status.details?.causes),
      retryAfterSeconds:
        secondsOf(retryAfterHeader) ?? (typeof told === 'number' && told > 0 ? told : undefined),
    },
  );
}

const isStatus = (body: unknown): body is StatusBody =>
  typeof body === 'object' && body !== null && (body as StatusBody).kind === 'Status';

function causesOf(causes: unknown): KubeErrorCause[] {
  if (!Array.isArray(causes)) return [];
  return causes.slice(0, 32).flatMap((cause: unknown) => {
    if (typeof cause !== 'object' || cause === null) return [];
    const { field, message, reason } = cause as Record<string, unknown>;
    return [
      {
        ...(typeof field === 'string' && { field }),
        ...(typeof message === 'string' && { message: truncateUtf8(redact(message)) }),
        ...(typeof reason === 'string' && { reason }),
      },
    ];
  });
}

/** Kubernetes sends seconds; a date, as a proxy might, is left to our own back-off. */
function secondsOf(header: string | undefined): number | undefined {
  if (header === undefined || !/^\d{1,9}$/.test(header.trim())) return undefined;
  return Number(header);
}

/** Without bearer tokens, basic credentials and passwords in URLs. */
export function redact(text: string): string {
  return text
    .replace(/\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+/gi, '$1 [redacted]')
    .replace(/\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*/g, '[redacted]')
    .replace(/\/\/[^/\s:@]+:[^/\s@]+@/g, '//[redacted]@');
}

/** Whatever a reader held is too old: a full list is needed. */
export const isExpired = (error: KubeError): boolean =>
  error.status === 410 || error.reason === 'Expired' || error.reason === 'Gone';

/** The server has not yet seen what we ask for, as after a restore of etcd. */
export const isTooLargeResourceVersion = (error: KubeError): boolean =>
  error.causes.some((cause) => cause.reason === 'ResourceVersionTooLarge') ||
  (error.status === 504 && /too large resource version/i.test(error.message));

/** A write into a namespace that is being deleted: there is nothing left to do, and nothing to report. */
export const isNamespaceTerminating = (error: unknown): boolean =>
  error instanceof KubeError &&
  error.status === 403 &&
  error.causes.some((cause) => cause.reason === 'NamespaceTerminating');

/** `delete` found another object under the name than the one it was told to delete. */
export const isOtherUID = (error: KubeError): boolean =>
  error.status === 409 && /UID in (the )?precondition/i.test(error.message);
