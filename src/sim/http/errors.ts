/** Errors as vLLM 0.32 shapes them (seen on the real one). */

export class ApiError extends Error {
  readonly status: number;
  readonly body: object;
  constructor(status: number, body: object) {
    super(JSON.stringify(body));
    this.name = 'ApiError';
    this.status = status;
    this.body = body;
  }
}

const shaped = (status: number, type: string, message: string, param: string | null): ApiError =>
  new ApiError(status, { error: { message, type, param, code: status } });

export const badRequest = (message: string, param: string | null = null): ApiError =>
  shaped(400, 'BadRequestError', message, param);

export const missingField = (field: string): ApiError =>
  shaped(
    400,
    'Bad Request',
    `1 validation error:\n  {'type': 'missing', 'loc': ('body', '${field}'), 'msg': 'Field required'}`,
    field,
  );

export const invalidJson = (detail: string): ApiError =>
  shaped(
    400,
    'Bad Request',
    `[{'type': 'json_invalid', 'msg': 'JSON decode error', 'ctx': {'error': '${detail}'}}]`,
    null,
  );

export const modelNotFound = (model: string): ApiError =>
  shaped(404, 'NotFoundError', `The model \`${model}\` does not exist.`, 'model');

export const routeNotFound = (): ApiError => new ApiError(404, { detail: 'Not Found' });
export const methodNotAllowed = (): ApiError => new ApiError(405, { detail: 'Method Not Allowed' });
export const unauthorized = (): ApiError => new ApiError(401, { error: 'Unauthorized' });

export const promptTooLong = (limit: number, tokens: number): ApiError =>
  badRequest(
    `This model's maximum context length is ${limit} tokens. However, your request has ${tokens} input tokens. ` +
      'Please reduce the length of the input messages.',
    'input_tokens',
  );

export const outputTooLong = (limit: number, tokens: number, asked: number): ApiError =>
  badRequest(
    `'max_tokens' or 'max_completion_tokens' is too large: ${asked}. This model's maximum context length is ` +
      `${limit} tokens and your request has ${tokens} input tokens (${asked} > ${limit} - ${tokens}).`,
    'max_tokens',
  );
