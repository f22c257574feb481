/** Builders of the tests of this room: input lines, sources and whole index passes over bytes in memory. */
import { buildIndex, type IndexOptions } from './index-builder.ts';
import { parseChunk } from './index-format.ts';
import type { LineRules } from './line.ts';
import type { IndexSummary, Shard } from './model.ts';
import { MemorySpill } from './spill.ts';

export const CHAT_RULES: LineRules = {
  endpoint: '/v1/chat/completions',
  model: 'llama-3-8b',
  aliases: ['llama', 'default/model'],
};

/** A valid chat line as text, without line break; `over` replaces top-level fields, undefined removes them. */
export function chatLine(customId: string, over: Record<string, unknown> = {}): string {
  return JSON.stringify({
    custom_id: customId,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'llama-3-8b', messages: [{ role: 'user', content: 'hi' }] },
    ...over,
  });
}

/** Cuts bytes into chunks of these sizes, the last size repeated. Each chunk is a copy. */
export async function* inChunks(bytes: Uint8Array, ...sizes: number[]): AsyncGenerator<Uint8Array> {
  let at = 0;
  for (let i = 0; at < bytes.length; i++) {
    const size = Math.max(1, sizes[Math.min(i, sizes.length - 1)] ?? bytes.length);
    yield new Uint8Array(bytes.subarray(at, at + size));
    at += size;
  }
}

export interface IndexedJob {
  summary: IndexSummary;
  shards: Shard[];
  /** Chunk numbers in the order in which they were written. */
  writes: number[];
}

/** Indexes inputs in memory, by key. */
export async function indexJob(
  inputs: Record<string, string | Uint8Array>,
  options: Partial<IndexOptions> & { chunkBytes?: number } = {},
): Promise<IndexedJob> {
  const chunks = new Map<number, Uint8Array>();
  const writes: number[] = [];
  const summary = await buildIndex({
    jobUID: '0b0b2c6e-93a4-4cb5-8f0e-6b9a5c1d2e3f',
    rules: CHAT_RULES,
    spill: new MemorySpill(),
    hashKey: Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8]),
    sources: Object.entries(inputs).map(([key, content]) => ({
      inputKey: key,
      chunks: inChunks(Buffer.from(content), options.chunkBytes ?? 64 * 1024),
      describe: (bytes) => ({ bucket: 'b', key, etag: 'e', bytes, inputKey: key, inputEtag: 'e' }),
    })),
    writeChunk: async (chunk, bytes) => {
      writes.push(chunk);
      chunks.set(chunk, bytes);
    },
    readChunk: async (chunk) => chunks.get(chunk)!,
    ...options,
  });
  const shards = [...chunks.keys()].sort((a, b) => a - b).flatMap((chunk) => parseChunk(chunks.get(chunk)!));
  return { summary, shards, writes };
}
