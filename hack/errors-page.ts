/** Makes docs/reference/errors.md from the codes of src/batch. */
import { BATCH_ENDPOINTS } from '../src/api/inference-batch-job.ts';
import { LINE_ERROR_CODES, NEVER_RAN_CODES } from '../src/batch/errors.ts';

const table = (codes: Readonly<Record<string, string>>): string =>
  [
    '| Code | Meaning |',
    '| --- | --- |',
    ...Object.entries(codes).map(([code, text]) => `| \`${code}\` | ${text} |`),
  ].join('\n');

export const errorsPage = (): string => `<!-- Generated from src/batch by hack/generate.ts. Do not edit. -->

# Records and error codes

Every line of the input that is not blank has exactly one record: in \`results.jsonl\` where the engine answered it, in \`errors.jsonl\` otherwise. Both files are in input order. A file without records does not exist. Records have the shape of the OpenAI Batch API; match them to your lines by \`custom_id\`.

## Input lines

\`{"custom_id": "claim-77", "method": "POST", "url": "/v1/chat/completions", "body": {…}}\`, one JSON object a line, UTF-8, lines ended by byte 0x0A. \`url\` is the job's \`spec.endpoint\` (${BATCH_ENDPOINTS.map((endpoint) => `\`${endpoint}\``).join(', ')}), \`custom_id\` is unique over the whole job, and \`body\` goes to the engine byte for byte; only an alias in \`body.model\` is replaced by the model's own name.

## Answers

\`{"id": "batch_req_…", "custom_id": "claim-77", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}\`

An answer of the engine that is an error stands in \`errors.jsonl\` in the same shape: \`status_code\` and \`body\` are the engine's, \`error\` is null. An answer longer than the limit is replaced by a body with the code \`answer_too_large\`; one that is no JSON object by a body that quotes its beginning.

## Lines that did not run

\`{"id": "batch_req_…", "custom_id": "claim-77", "response": null, "error": {"code": "…", "message": "…", "param": "…", "line": 77, "key": "in/part-1.jsonl"}}\`

\`line\` is the physical line number in the object \`key\`, blank lines counted. \`custom_id\` is null where the line has none that can be read.

Lines that cannot run (counted as failed; with \`invalidLines: Fail\` they make the whole job fail):

${table(LINE_ERROR_CODES)}

Lines without an answer:

${table(NEVER_RAN_CODES)}

\`batch_expired\` and \`batch_cancelled\` have counts of their own in the status; all other lines of \`errors.jsonl\` are counted as failed.
`;
