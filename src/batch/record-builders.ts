/** Builders of the tests of this room: a shard of five lines and a record of each kind for them. */
import type { LineRecord, Shard } from './model.ts';
import { answerRecord, lineIdentity, unfinishedRecord } from './records.ts';

export const UID = '0b0b2c6e-93a4-4cb5-8f0e-6b9a5c1d2e3f';

export const SHARD: Shard = {
  shard: 7,
  source: 0,
  offset: 0,
  length: 500,
  firstOrdinal: 100,
  lines: [0, 1, 2, 3, 4].map((i) => ({ line: 11 + i, customId: `id-${i}` })),
};

const answer = (position: number, status: number, body: string): LineRecord =>
  answerRecord(lineIdentity(UID, SHARD, position), '/v1/completions', {
    status,
    requestId: `r-${position}`,
    body: Buffer.from(body),
  });

export const RECORDS: LineRecord[] = [
  answer(0, 200, '{"usage":{"prompt_tokens":5,"completion_tokens":2}}'),
  answer(1, 400, '{"error":{"message":"too long","code":"context_length_exceeded"}}'),
  answer(2, 200, '{"text":"é","usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1}}}'),
  unfinishedRecord(lineIdentity(UID, SHARD, 3), 'k', { kind: 'Cancelled' }),
  unfinishedRecord(lineIdentity(UID, SHARD, 4), 'k', { kind: 'Expired' }),
];

/** What decodeCheckpoint gives for these records. */
export const checkpointCases = (records: readonly LineRecord[]): LineRecord[] =>
  records.map((record) => ({ ...record, bytes: Buffer.from(record.bytes) }));
