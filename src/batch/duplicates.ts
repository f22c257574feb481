/**
 * Finds every custom_id that was used before, exactly, over a whole job, in memory that does not grow with it:
 *
 * 1. While lines are read, (keyed hash, ordinal) of each id goes to one of 256 spilled partitions.
 * 2. Each partition is streamed through a table of first occurrences; lines with an equal hash are marked.
 * 3. The index chunks with marked lines are read in order, and the ids of these lines spilled, again by hash.
 * 4. Each of those partitions is streamed through a map of ids, which decides exactly; what is a duplicate is spilled
 *    by chunk range, with where its first occurrence stands.
 * 5. The chunks concerned are rewritten, once each.
 *
 * Without equal hashes it ends after step 2. Every step is linear in its input.
 */
import { excerpt, lineError } from './errors.ts';
import type { IdHash } from './id-hash.ts';
import { encodeChunk, parseChunk } from './index-format.ts';
import type { IndexedLine, Shard } from './model.ts';
import { OrdinalSet } from './ordinal-set.ts';
import type { SpillStore } from './spill.ts';

const PARTITIONS = 256;
/** low and high word of the hash, low and high word of the ordinal */
const ENTRY_WORDS = 4;
const ENTRY_BYTES = ENTRY_WORDS * 4;
const BUFFERED_ENTRIES = 1024;
const WORD = 2 ** 32;

/** A line that became a duplicate, for the summary. */
export interface FoundDuplicate {
  ordinal: number;
  source: number;
  line: IndexedLine;
}

export interface ChunkAccess {
  /** Ordinal of the first line of each chunk. */
  firstOrdinals: readonly number[];
  read(chunk: number): Promise<Uint8Array>;
  rewrite(chunk: number, bytes: Uint8Array): Promise<void>;
  /** The key the user knows of a source. */
  inputKey(source: number): string;
}

export class DuplicateFinder {
  readonly #spill: SpillStore;
  readonly #hash: IdHash;
  readonly #out = new Uint32Array(2);
  readonly #buffers: Uint32Array[] = [];
  readonly #buffered = new Uint16Array(PARTITIONS);
  readonly #entries = new Float64Array(PARTITIONS);
  #full: { partition: number; entries: Uint32Array }[] = [];
  /** Spilled buffers, to be filled again. */
  readonly #spare: Uint32Array[] = [];

  constructor(spill: SpillStore, hash: IdHash) {
    this.#spill = spill;
    this.#hash = hash;
    for (let p = 0; p < PARTITIONS; p++) this.#buffers.push(new Uint32Array(BUFFERED_ENTRIES * ENTRY_WORDS));
  }

  /** Notes the id in bytes [start, end) of the line with this ordinal. Ordinals must grow. */
  add(ordinal: number, bytes: Uint8Array, start: number, end: number): void {
    this.#hash(bytes, start, end, this.#out);
    const partition = this.#out[1]! >>> 24;
    const buffer = this.#buffers[partition]!;
    const at = this.#buffered[partition]! * ENTRY_WORDS;
    buffer[at] = this.#out[0]!;
    buffer[at + 1] = this.#out[1]!;
    buffer[at + 2] = ordinal % WORD;
    buffer[at + 3] = Math.floor(ordinal / WORD);
    this.#entries[partition]!++;
    if (++this.#buffered[partition]! === BUFFERED_ENTRIES) this.#flush(partition);
  }

  #flush(partition: number): void {
    this.#full.push({ partition, entries: this.#buffers[partition]! });
    this.#buffers[partition] = this.#spare.pop() ?? new Uint32Array(BUFFERED_ENTRIES * ENTRY_WORDS);
    this.#buffered[partition] = 0;
  }

  /** Spills what is full. To be awaited between chunks of input, so that it does not pile up. */
  async settle(): Promise<void> {
    const full = this.#full;
    if (full.length === 0) return;
    this.#full = [];
    for (const { partition, entries } of full) {
      await this.#spill.append(`hash-${partition}`, asBytes(entries, BUFFERED_ENTRIES));
      this.#spare.push(entries);
    }
  }

  /**
   * Steps 2 to 5, after the last line. Calls `found` for each duplicate that had no error of its own, in input order.
   */
  async resolve(
    access: ChunkAccess,
    found: (duplicate: FoundDuplicate) => void,
    signal?: AbortSignal,
  ): Promise<void> {
    await this.settle();
    const suspects = new OrdinalSet();
    for (let p = 0; p < PARTITIONS; p++) {
      signal?.throwIfAborted();
      if (this.#entries[p]! > 1) await this.#markEqualHashes(p, suspects);
    }
    if (suspects.size === 0) return;
    const chunksPerRange = Math.ceil(access.firstOrdinals.length / PARTITIONS);
    const suspectPartitions = await this.#spillSuspects(access, suspects, signal);
    for (const p of suspectPartitions) {
      signal?.throwIfAborted();
      await this.#compareIds(p, chunksPerRange);
    }
    for (let range = 0; range < PARTITIONS; range++) {
      await this.#rewrite(range, access, found, signal);
    }
  }

  /** Step 2 for one partition: the table holds distinct hashes only, so that one id used a million times costs one slot. */
  async #markEqualHashes(partition: number, suspects: OrdinalSet): Promise<void> {
    let slots = 16;
    while (slots < this.#entries[partition]! * 2) slots *= 2;
    const low = new Uint32Array(slots);
    const high = new Uint32Array(slots);
    const first = new Float64Array(slots).fill(-1);
    const mask = slots - 1;
    const take = (bytes: Buffer): void => {
      for (let at = 0; at < bytes.length; at += ENTRY_BYTES) {
        const entryLow = bytes.readUInt32LE(at);
        const entryHigh = bytes.readUInt32LE(at + 4);
        const ordinal = bytes.readUInt32LE(at + 8) + bytes.readUInt32LE(at + 12) * WORD;
        let slot = entryLow & mask;
        while (first[slot]! >= 0 && (low[slot] !== entryLow || high[slot] !== entryHigh))
          slot = (slot + 1) & mask;
        if (first[slot]! < 0) {
          low[slot] = entryLow;
          high[slot] = entryHigh;
          first[slot] = ordinal;
        } else {
          suspects.add(first[slot]!);
          suspects.add(ordinal);
        }
      }
    };
    const buffered = asBytes(this.#buffers[partition]!, this.#buffered[partition]!);
    if (this.#entries[partition]! * ENTRY_BYTES > buffered.length) {
      for await (const bytes of whole(this.#spill.read(`hash-${partition}`), () => ENTRY_BYTES)) take(bytes);
    }
    take(buffered);
  }

  /** Step 3. Returns the partitions written. */
  async #spillSuspects(
    access: ChunkAccess,
    suspects: OrdinalSet,
    signal: AbortSignal | undefined,
  ): Promise<number[]> {
    const writer = new PartitionWriter(this.#spill, 'id');
    for (const [chunk, from] of access.firstOrdinals.entries()) {
      signal?.throwIfAborted();
      if (!suspects.hasAnyIn(from, access.firstOrdinals[chunk + 1] ?? suspects.end)) continue;
      const bytes = await access.read(chunk);
      for (const shard of parseChunk(bytes)) {
        for (const [position, { line, customId }] of shard.lines.entries()) {
          const ordinal = shard.firstOrdinal + position;
          if (customId === null || !suspects.has(ordinal)) continue;
          // As JSON text, which keeps lone surrogates apart where UTF-8 would not.
          const id = Buffer.from(JSON.stringify(customId));
          this.#hash(id, 0, id.length, this.#out);
          const entry = Buffer.allocUnsafe(SUSPECT_HEAD_BYTES + id.length);
          entry.writeDoubleLE(ordinal, 0);
          entry.writeDoubleLE(line, 8);
          entry.writeUInt32LE(shard.source, 16);
          entry.writeUInt32LE(chunk, 20);
          entry.writeUInt32LE(id.length, 24);
          entry.set(id, SUSPECT_HEAD_BYTES);
          await writer.append(this.#out[1]! >>> 24, entry);
        }
      }
    }
    return writer.end();
  }

  /** Step 4 for one partition. Entries come in input order, so that the first one of an id is its first use. */
  async #compareIds(partition: number, chunksPerRange: number): Promise<void> {
    const firsts = new Map<string, { source: number; line: number }>();
    const writer = new PartitionWriter(this.#spill, 'duplicate');
    const sizeAt = (bytes: Buffer, at: number): number =>
      bytes.length - at < SUSPECT_HEAD_BYTES ? Infinity : SUSPECT_HEAD_BYTES + bytes.readUInt32LE(at + 24);
    for await (const bytes of whole(this.#spill.read(`id-${partition}`), sizeAt)) {
      for (let at = 0; at < bytes.length; at += sizeAt(bytes, at)) {
        const id = bytes.toString('utf8', at + SUSPECT_HEAD_BYTES, at + sizeAt(bytes, at));
        const first = firsts.get(id);
        if (first === undefined) {
          firsts.set(id, { source: bytes.readUInt32LE(at + 16), line: bytes.readDoubleLE(at + 8) });
          continue;
        }
        const entry = Buffer.allocUnsafe(DUPLICATE_BYTES);
        entry.writeDoubleLE(bytes.readDoubleLE(at), 0);
        entry.writeDoubleLE(first.line, 8);
        entry.writeUInt32LE(first.source, 16);
        const chunk = bytes.readUInt32LE(at + 20);
        entry.writeUInt32LE(chunk, 20);
        await writer.append(Math.floor(chunk / chunksPerRange), entry);
      }
    }
    await writer.end();
  }

  /** Step 5 for one range of chunks. */
  async #rewrite(
    range: number,
    access: ChunkAccess,
    found: (duplicate: FoundDuplicate) => void,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const byChunk = new Map<number, Map<number, { source: number; line: number }>>();
    for await (const bytes of whole(this.#spill.read(`duplicate-${range}`), () => DUPLICATE_BYTES)) {
      for (let at = 0; at < bytes.length; at += DUPLICATE_BYTES) {
        const chunk = bytes.readUInt32LE(at + 20);
        const duplicates = byChunk.get(chunk) ?? new Map<number, { source: number; line: number }>();
        duplicates.set(bytes.readDoubleLE(at), {
          line: bytes.readDoubleLE(at + 8),
          source: bytes.readUInt32LE(at + 16),
        });
        byChunk.set(chunk, duplicates);
      }
    }
    for (const chunk of [...byChunk.keys()].sort((a, b) => a - b)) {
      signal?.throwIfAborted();
      const shards = parseChunk(await access.read(chunk));
      if (mark(shards, byChunk.get(chunk)!, access, found)) await access.rewrite(chunk, encodeChunk(shards));
    }
  }
}

const asBytes = ({ buffer }: Uint32Array, entries: number): Buffer =>
  Buffer.from(buffer as ArrayBuffer, 0, entries * ENTRY_BYTES);

/** Gives duplicates their error; returns whether any line changed. A line that cannot run anyway keeps its own error. */
function mark(
  shards: readonly Shard[],
  duplicates: ReadonlyMap<number, { source: number; line: number }>,
  access: ChunkAccess,
  found: (duplicate: FoundDuplicate) => void,
): boolean {
  let changed = false;
  for (const shard of shards) {
    for (const [position, line] of shard.lines.entries()) {
      const ordinal = shard.firstOrdinal + position;
      const first = duplicates.get(ordinal);
      if (first === undefined || line.error !== undefined) continue;
      line.error = lineError(
        'duplicate_custom_id',
        'custom_id',
        `custom_id ${JSON.stringify(excerpt(line.customId ?? '', 100))} was already used by line ${first.line} ` +
          `of ${access.inputKey(first.source)}; each must be unique in the whole job.`,
      );
      changed = true;
      found({ ordinal, source: shard.source, line });
    }
  }
  return changed;
}

/** ordinal f64, line f64, source u32, chunk u32, length of the id u32; then the id as JSON text */
const SUSPECT_HEAD_BYTES = 28;
/** ordinal f64, line of the first f64, source of the first u32, chunk u32 */
const DUPLICATE_BYTES = 24;

/** Collects small entries per partition into appends of about 8 KiB. */
class PartitionWriter {
  readonly #spill: SpillStore;
  readonly #name: string;
  readonly #open = new Map<number, { entries: Uint8Array[]; bytes: number }>();
  readonly #written = new Set<number>();

  constructor(spill: SpillStore, name: string) {
    this.#spill = spill;
    this.#name = name;
  }

  async append(partition: number, entry: Uint8Array): Promise<void> {
    const open = this.#open.get(partition) ?? { entries: [], bytes: 0 };
    open.entries.push(entry);
    open.bytes += entry.length;
    this.#open.set(partition, open);
    this.#written.add(partition);
    if (open.bytes >= 8 * 1024) await this.#flush(partition);
  }

  /** Returns the partitions written, in order. */
  async end(): Promise<number[]> {
    for (const partition of [...this.#open.keys()]) await this.#flush(partition);
    return [...this.#written].sort((a, b) => a - b);
  }

  async #flush(partition: number): Promise<void> {
    const open = this.#open.get(partition);
    if (open === undefined) return;
    this.#open.delete(partition);
    await this.#spill.append(`${this.#name}-${partition}`, Buffer.concat(open.entries));
  }
}

/** Rejoins chunks cut anywhere into buffers of whole entries; `sizeAt` may answer Infinity for a head that is cut. */
async function* whole(
  chunks: AsyncIterable<Uint8Array>,
  sizeAt: (bytes: Buffer, at: number) => number,
): AsyncGenerator<Buffer> {
  let carry: Buffer = Buffer.alloc(0);
  for await (const chunk of chunks) {
    const bytes = carry.length === 0 ? Buffer.from(chunk) : Buffer.concat([carry, chunk]);
    let end = 0;
    while (end < bytes.length) {
      const next = end + sizeAt(bytes, end);
      if (next > bytes.length) break;
      end = next;
    }
    if (end > 0) yield bytes.subarray(0, end);
    carry = bytes.subarray(end);
  }
}
