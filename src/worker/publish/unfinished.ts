/** The results of shards that will not run any more: what their checkpoints hold, and one error record for each other line. */
import { BatchError } from '../../batch/errors.ts';
import { chunkOf, parseChunk } from '../../batch/index-format.ts';
import type { IndexSummary, LineRecord, Shard } from '../../batch/model.ts';
import { invalidLineRecord, lineIdentity, unfinishedRecord, type EndCause } from '../../batch/records.ts';
import { ByteBudget } from '../shards/byte-budget.ts';
import { readSaved, type SavedRecord } from '../shards/saved-records.ts';
import { RESULT_PART_BYTES, writeShardResult } from '../shards/write-result.ts';
import type { PublishContext } from './context.ts';

const NO_RECORDS: ReadonlyMap<number, SavedRecord> = new Map();

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
  const { settings } = context;
  const memory = new ByteBudget(settings.checkpointBytesInFlight);
  const chunks = new ChunkReader(context);
  let next = 0;
  const finishOn = async (): Promise<void> => {
    for (let n = next++; n < shards.length; n = next++) {
      const number = shards[n] as number;
      const { shard, hasCheckpoints } = await chunks.shard(number);
      const known = hasCheckpoints ? (await readSaved({ ...context, memory }, number)).records : NO_RECORDS;
      await finishShard(context, summary, shard, known, cause, memory);
      await context.failPoint('finalize.shard-finished');
    }
  };
  const lanes = Array.from({ length: Math.min(settings.shardsInFlight, shards.length) }, finishOn);
  try {
    await Promise.all(lanes);
  } finally {
    // After a failure nothing new is begun, and nothing goes on behind the caller's back.
    next = shards.length;
    await Promise.allSettled(lanes);
  }
}

/** A worker, another finalizer or our own earlier try may be first; headers are read from what is there. */
async function finishShard(
  context: PublishContext,
  summary: IndexSummary,
  shard: Shard,
  known: ReadonlyMap<number, SavedRecord>,
  cause: EndCause,
  memory: ByteBudget,
): Promise<void> {
  const records = endRecords(context.jobUID, summary, shard, known, cause);
  const writer = `finalize-${context.newId()}`;
  await writeShardResult({ ...context, writer, memory, partBytes: RESULT_PART_BYTES }, shard, records);
}

/** Exactly one record for each line: the finished one, else the line's own error, else the cause of the end. */
export function endRecords(
  jobUID: string,
  summary: Pick<IndexSummary, 'sources'>,
  shard: Shard,
  known: ReadonlyMap<number, SavedRecord>,
  cause: EndCause,
): (SavedRecord | LineRecord)[] {
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

interface UnfinishedShard {
  shard: Shard;
  /** Most shards that never ran have none. */
  hasCheckpoints: boolean;
}

/** Reads and lists once for all shards of a chunk; keeps the last two, since neighbours are finished together. */
class ChunkReader {
  readonly #context: PublishContext;
  readonly #chunks = new Map<number, Promise<Map<number, UnfinishedShard>>>();

  constructor(context: PublishContext) {
    this.#context = context;
  }

  async shard(number: number): Promise<UnfinishedShard> {
    const chunk = chunkOf(number);
    let shards = this.#chunks.get(chunk);
    if (shards === undefined) {
      shards = this.#read(chunk);
      this.#chunks.set(chunk, shards);
      const oldest = Math.min(...this.#chunks.keys());
      if (this.#chunks.size > 2) this.#chunks.delete(oldest);
    }
    const found = (await shards).get(number);
    if (found === undefined)
      throw new BatchError('CorruptObject', `Index chunk ${chunk} has no shard ${number}.`);
    return found;
  }

  async #read(chunk: number): Promise<Map<number, UnfinishedShard>> {
    const { store, layout, signal } = this.#context;
    const { bytes } = await store.getBytes(layout.chunkByNumber(chunk), { signal });
    const shards = parseChunk(bytes);
    const begun = await this.#begun(shards);
    return new Map(shards.map((shard) => [shard.shard, { shard, hasCheckpoints: begun.has(shard.shard) }]));
  }

  /** Shards that have a checkpoint. */
  async #begun(shards: readonly Shard[]): Promise<Set<number>> {
    const { store, layout, signal } = this.#context;
    const begun = new Set<number>();
    const [first, last] = [shards[0], shards.at(-1)];
    if (first === undefined || last === undefined) return begun;
    // Keys come in order, so those of this chunk's shards lie between these two.
    const startAfter = layout.checkpoints(first.shard);
    const end = layout.checkpoints(last.shard + 1);
    let shard = first.shard;
    for await (const { key } of store.list(layout.work, { startAfter, signal })) {
      if (key >= end) break;
      while (shard < last.shard && !key.startsWith(layout.checkpoints(shard))) shard += 1;
      begun.add(shard);
    }
    return begun;
  }
}
