/**
 * Where a job's objects lie. Published files lie directly under the output prefix; everything else under
 * `<prefix>_tidegate/<job UID>/`, so that a re-created job never takes an older one's answers for its own.
 */
import { SHARDS_PER_CHUNK } from './model.ts';

export interface JobLayout {
  results: string;
  errors: string;
  manifest: string;
  /** Created with If-None-Match; its body names the job that owns the prefix. */
  claim: string;
  /** Prefix of all working objects of this job. */
  work: string;
  summary: string;
  chunk(shard: number): string;
  chunkByNumber(chunk: number): string;
  unpacked(source: number): string;
  /** Prefix of the checkpoints of one shard. */
  checkpoints(shard: number): string;
  checkpoint(shard: number, writer: string, sequence: number): string;
  shardResult(shard: number): string;
  shardResults: string;
  /** What one publish appended: the segments with the ETag they were read at. */
  published(firstShard: number): string;
  publishedPrefix: string;
}

const pad = (n: number): string => String(n).padStart(8, '0');

export function jobLayout(outputPrefix: string, jobUID: string): JobLayout {
  const work = `${outputPrefix}_tidegate/${jobUID}/`;
  return {
    results: `${outputPrefix}results.jsonl`,
    errors: `${outputPrefix}errors.jsonl`,
    manifest: `${outputPrefix}manifest.json`,
    claim: `${outputPrefix}_tidegate/claim.json`,
    work,
    summary: `${work}index/summary.json`,
    chunk: (shard) => `${work}index/chunk-${pad(Math.floor(shard / SHARDS_PER_CHUNK))}.jsonl`,
    chunkByNumber: (chunk) => `${work}index/chunk-${pad(chunk)}.jsonl`,
    unpacked: (source) => `${work}unpacked/${pad(source)}.jsonl`,
    checkpoints: (shard) => `${work}checkpoints/${pad(shard)}/`,
    checkpoint: (shard, writer, sequence) =>
      `${work}checkpoints/${pad(shard)}/${writer}-${pad(sequence)}.jsonl`,
    shardResult: (shard) => `${work}results/${pad(shard)}`,
    shardResults: `${work}results/`,
    published: (firstShard) => `${work}published/${pad(firstShard)}.jsonl`,
    publishedPrefix: `${work}published/`,
  };
}
