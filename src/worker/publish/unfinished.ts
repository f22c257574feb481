/** The results of shards that will not run any more: what their checkpoints hold, and one error record for each other line. */
import { parseChunk, chunkOf } from '../../batch/index-format.ts';
import type { IndexSummary, LineRecord, Shard } from '../../batch/model.ts';
import { invalidLineRecord, lineIdentity, unfinishedRecord, type EndCause } from '../../batch/records.ts';
import { composeShardResult } from '../../batch/shard-result.ts';
import { ByteBudget } from '../shards/byte-budget.ts';
import { readCheckpoints } from '../shards/open-shard.ts';
import { hasCode, type PublishContext } from './context.ts';

/**
 * Writes a result for each of the shards, a few at a time. A result that somebody else wrote first counts.
 * @param shards in ascending order, so that each index chunk is read once.
 */
export async function finishShards(
  context: PublishContext,
  summary: IndexSummary,
  shards: readonly number[],
  cause: EndCause,
): Promise<void> {
  const { store, settings, signal } = context;
  const budget = new ByteBudget(settings.checkpointBytesInFlight);
  const conditions = await store.honoursConditions(`${context.layout.work}probe/`);
  const chunks = new ChunkReader(context);
  let next = 0;
  const finishOn = async (): Promise<void> => {
    for (let n = next++; n < shards.length; n = next++) {
      const number = shards[n] as number;
      const shard = await chunks.shard(number);
      const bytes = await checkpointBytes(context, number);
      await budget.acquire(bytes, signal);
      try {
        await finishShard(context, summary, shard, cause, conditions.put);
      } finally {
        budget.release(bytes);
      }
      await context.failPoint('finalize.shard-finished');
    }
  };
  await Promise.all(Array.from({ length: Math.min(settings.shardsInFlight, shards.length) }, finishOn));
}

async function finishShard(
  context: PublishContext,
  summary: IndexSummary,
  shard: Shard,
  cause: EndCause,
  conditional: boolean,
): Promise<void> {
  const { store, layout, jobUID, logger, signal } = context;
  const known = await readCheckpoints(store, layout, jobUID, shard.shard, logger, signal);
  const records = endRecords(jobUID, summary, shard, known, cause);
  const result = composeShardResult({ jobUID, writer: `finalize-${context.newId()}` }, shard, records);
  try {
    await store.put(layout.shardResult(shard.shard), Buffer.concat(result.parts), {
      ...(conditional ? { ifNoneMatch: true } : {}),
      signal,
    });
  } catch (error) {
    // A worker, another finalizer or our own earlier try was first; headers are read from what is there.
    if (!hasCode(error, 'PreconditionFailed')) throw error;
  }
}

/** Exactly one record for each line: the finished one, else the line's own error, else the cause of the end. */
export function endRecords(
  jobUID: string,
  summary: Pick<IndexSummary, 'sources'>,
  shard: Shard,
  known: ReadonlyMap<number, LineRecord>,
  cause: EndCause,
): LineRecord[] {
  const key = summary.sources[shard.source]?.inputKey ?? '';
  return shard.lines.map((line, position) => {
    const identity = lineIdentity(jobUID, shard, position);
    const finished = known.get(identity.ordinal);
    if (finished !== undefined) return finished;
    return line.error === undefined
      ? unfinishedRecord(identity, key, cause)
      : invalidLineRecord(identity, key, line.error);
  });
}

async function checkpointBytes({ store, layout, signal }: PublishContext, shard: number): Promise<number> {
  let sum = 0;
  for await (const { bytes } of store.list(layout.checkpoints(shard), { signal })) sum += bytes;
  return sum;
}

/** Reads each chunk once for its shards; keeps the last two, since neighbours are finished together. */
class ChunkReader {
  readonly #context: PublishContext;
  readonly #chunks = new Map<number, Promise<Shard[]>>();

  constructor(context: PublishContext) {
    this.#context = context;
  }

  async shard(number: number): Promise<Shard> {
    const chunk = chunkOf(number);
    let shards = this.#chunks.get(chunk);
    if (shards === undefined) {
      shards = this.#read(chunk);
      this.#chunks.set(chunk, shards);
      const oldest = Math.min(...this.#chunks.keys());
      if (this.#chunks.size > 2) this.#chunks.delete(oldest);
    }
    const found = (await shards).find((each) => each.shard === number);
    if (found === undefined) throw new Error(`index chunk ${chunk} has no shard ${number}`);
    return found;
  }

  async #read(chunk: number): Promise<Shard[]> {
    const { store, layout, signal } = this.#context;
    const { bytes } = await store.getBytes(layout.chunkByNumber(chunk), { signal });
    return parseChunk(bytes);
  }
}
