import { createHash } from 'node:crypto';
import { describe, expect, test } from '@jest/globals';
import { crc32, crc32Text } from './crc.ts';
import { ManifestBuilder, type Manifest, type ManifestFile, type ManifestJob } from './manifest.ts';
import { answerRecord, unfinishedRecord } from './records.ts';
import { composeShardResult, readShardResult } from './shard-result.ts';

const UID = '0b0b2c6e-93a4-4cb5-8f0e-6b9a5c1d2e3f';
const JOB: ManifestJob = {
  uid: UID,
  namespace: 'claims',
  name: 'claims-2026-11',
  model: 'llama-3-8b',
  endpoint: '/v1/completions',
  ending: 'Cancelled',
};

/** Shards of two lines; in the odd ones the second line was cancelled, in the last both. */
function shards(count: number) {
  return Array.from({ length: count }, (_, shard) => {
    const lines = [1, 2].map((n) => ({ line: shard * 2 + n, customId: `id-${shard}-${n}` }));
    const records = lines.map(({ line, customId }, i) => {
      const identity = { jobUID: UID, ordinal: shard * 2 + i, line, customId };
      return shard === count - 1 || (shard % 2 === 1 && i === 1)
        ? unfinishedRecord(identity, 'k', { kind: 'Cancelled' })
        : answerRecord(identity, '/v1/completions', {
            status: 200,
            requestId: 'r',
            body: Buffer.from('{"usage":{"prompt_tokens":2,"completion_tokens":1}}'),
          });
    });
    const result = composeShardResult(
      { jobUID: UID, writer: 'w' },
      { shard, firstOrdinal: shard * 2, lines },
      records,
    );
    return readShardResult(Buffer.concat(result.parts), { jobUID: UID, shard });
  });
}

const encoded = (builder: ManifestBuilder): Manifest =>
  JSON.parse(Buffer.concat([...builder.encode(JOB)]).toString()) as Manifest;

describe('the manifest', () => {
  test.each([1, 2, 5, 1200])(
    'of %d shards names every segment, with sums and checksums that hold',
    (count) => {
      const builder = new ManifestBuilder({ results: 'out/results.jsonl', errors: 'out/errors.jsonl' });
      const all = shards(count);
      for (const { header } of all) builder.add(header);
      const manifest = encoded(builder);
      expect(manifest).toEqual(JSON.parse(JSON.stringify(builder.build(JOB))));
      expect(manifest.shards).toBe(count);
      const files = {
        results: Buffer.concat(all.map((s) => s.results)),
        errors: Buffer.concat(all.map((s) => s.errors)),
      };
      for (const [name, bytes] of Object.entries(files) as ['results' | 'errors', Buffer][]) {
        if (bytes.length === 0) {
          expect(manifest[name]).toBeNull();
          continue;
        }
        const file = manifest[name] as ManifestFile;
        expect(file).toMatchObject({
          key: `out/${name}.jsonl`,
          bytes: bytes.length,
          crc32: crc32Text(crc32(bytes)),
        });
        expect(file.lines).toBe(bytes.toString().split('\n').length - 1);
        let at = 0;
        for (const piece of file.segments) {
          expect(piece.offset).toBe(at);
          at += piece.bytes;
          const own = bytes.subarray(piece.offset, at);
          expect(createHash('sha256').update(own).digest('hex')).toBe(piece.sha256);
          expect(own.toString().split('\n')).toHaveLength(piece.lines + 1);
        }
        expect(at).toBe(bytes.length);
      }
      const { completed, cancelled, total } = manifest.counts;
      expect([completed, completed + cancelled]).toEqual([manifest.results?.lines ?? 0, total]);
      expect(manifest.usage.inputTokens).toBe(2 * completed);
      expect(builder.sizes).toMatchObject({
        resultsBytes: files.results.length,
        errorsBytes: files.errors.length,
      });
    },
  );

  test('of a job without records has no files', () => {
    const builder = new ManifestBuilder({ results: 'r', errors: 'e' });
    expect(encoded(builder)).toMatchObject({ results: null, errors: null, shards: 0, counts: { total: 0 } });
  });

  test('refuses shards out of order, twice or with a gap', () => {
    const [first, second] = shards(2) as [ReturnType<typeof shards>[0], ReturnType<typeof shards>[0]];
    const builder = new ManifestBuilder({ results: 'r', errors: 'e' });
    expect(() => builder.add(second.header)).toThrow('expects shard 0 next; found shard 1');
    builder.add(first.header);
    expect(() => builder.add(first.header)).toThrow('expects shard 1 next; found shard 0');
  });
});
