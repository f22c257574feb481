/** Cuts checked lines into shards and shards into index chunks. Synchronous; finished chunks wait to be taken. */
import { ByteWriter } from './byte-writer.ts';
import { SHARDS_PER_CHUNK, SHARD_MAX_BYTES, SHARD_MAX_LINES, type LineError } from './model.ts';

export interface ShardLimits {
  maxLines: number;
  /** Of the byte range of a shard; a longer line is a shard of its own. */
  maxBytes: number;
}

export const SHARD_LIMITS: ShardLimits = { maxLines: SHARD_MAX_LINES, maxBytes: SHARD_MAX_BYTES };

/** A chunk object of the index, ready to be written. */
export interface ReadyChunk {
  chunk: number;
  bytes: Buffer;
}

/**
 * A shard's range starts with its first non-blank line and ends with the line break of its last; blank lines (and a
 * BOM) between shards belong to none. A shard never spans sources.
 */
export class ShardWriter {
  readonly #limits: ShardLimits;
  readonly #lines = new ByteWriter(64 * 1024);
  readonly #chunk = new ByteWriter(256 * 1024);
  #source = 0;
  #shard = 0;
  #ordinal = 0;
  #shardsInChunk = 0;
  #linesInShard = 0;
  #firstOrdinal = 0;
  #start = 0;
  #end = 0;
  #chunkNumber = 0;
  #ready: ReadyChunk[] = [];
  /** Ordinal of the first line of each chunk. */
  readonly chunkFirstOrdinals: number[] = [];

  constructor(limits: ShardLimits = SHARD_LIMITS) {
    this.#limits = limits;
  }

  /** Shards closed so far. */
  get shards(): number {
    return this.#shard;
  }

  /** Lines taken so far. */
  get lines(): number {
    return this.#ordinal;
  }

  /**
   * Adds the next non-blank line: bytes [offset, offset + length) of the current source.
   * @param id the buffer with the JSON string of its custom_id at [idStart, idEnd), quotes included; undefined: none
   */
  add(
    line: number,
    offset: number,
    length: number,
    id: Uint8Array | undefined,
    idStart: number,
    idEnd: number,
    error: LineError | undefined,
  ): void {
    const end = offset + length;
    if (
      this.#linesInShard === this.#limits.maxLines ||
      (this.#linesInShard > 0 && end - this.#start > this.#limits.maxBytes)
    ) {
      this.#closeShard();
    }
    const out = this.#lines;
    if (this.#linesInShard === 0) {
      this.#start = offset;
      this.#firstOrdinal = this.#ordinal;
      out.ascii('{"line":');
    } else out.ascii(',{"line":');
    out.number(line);
    out.ascii(',"customId":');
    if (id === undefined) out.ascii('null');
    else out.bytes(id, idStart, idEnd);
    if (error !== undefined) {
      out.ascii(',"error":');
      out.utf8(JSON.stringify(error));
    }
    out.ascii('}');
    this.#end = end;
    this.#linesInShard++;
    this.#ordinal++;
  }

  /** Ends the current source; following lines belong to the next one. */
  endSource(): void {
    this.#closeShard();
    this.#source++;
  }

  /** Ends the index: the last chunk becomes ready, too. */
  end(): void {
    this.#closeShard();
    this.#closeChunk();
  }

  /** The chunks finished since the last call. */
  takeReady(): ReadyChunk[] {
    const ready = this.#ready;
    if (ready.length > 0) this.#ready = [];
    return ready;
  }

  #closeShard(): void {
    if (this.#linesInShard === 0) return;
    const out = this.#chunk;
    if (this.#shardsInChunk === 0) this.chunkFirstOrdinals.push(this.#firstOrdinal);
    out.ascii('{"shard":');
    out.number(this.#shard);
    out.ascii(',"source":');
    out.number(this.#source);
    out.ascii(',"offset":');
    out.number(this.#start);
    out.ascii(',"length":');
    out.number(this.#end - this.#start);
    out.ascii(',"firstOrdinal":');
    out.number(this.#firstOrdinal);
    out.ascii(',"lines":[');
    out.append(this.#lines);
    out.ascii(']}\n');
    this.#lines.clear();
    this.#linesInShard = 0;
    this.#shard++;
    this.#shardsInChunk++;
    if (this.#shardsInChunk === SHARDS_PER_CHUNK) this.#closeChunk();
  }

  #closeChunk(): void {
    if (this.#shardsInChunk === 0) return;
    this.#ready.push({ chunk: this.#chunkNumber, bytes: this.#chunk.copy() });
    this.#chunkNumber++;
    this.#chunk.clear();
    this.#shardsInChunk = 0;
  }
}
