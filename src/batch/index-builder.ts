/** The index pass: streams the sources once, checks every line, writes the index chunks, and finds duplicate ids. */
import { isUtf8 } from 'node:buffer';
import { DuplicateFinder } from './duplicates.ts';
import { Framer, type FrameSink } from './framing.ts';
import { keyedIdHash, type IdHash } from './id-hash.ts';
import { LineChecker, lineTooLarge, type LineRules } from './line.ts';
import {
  FORMAT_VERSION,
  MAX_LINE_BYTES,
  type IndexSummary,
  type IndexedLine,
  type LineError,
  type Source,
} from './model.ts';
import { SHARD_LIMITS, ShardWriter, type ShardLimits } from './sharding.ts';
import type { SpillStore } from './spill.ts';

/** As many invalid lines as the summary names. */
export const MAX_FIRST_INVALID = 10;

/** One input object, plain or already being unpacked. */
export interface SourceInput {
  /** The key the user named; errors name it. */
  inputKey: string;
  /** Plain bytes. A chunk may be reused once the next one is asked for. */
  chunks: AsyncIterable<Uint8Array>;
  /** Called when all bytes have been read, for what the index says of the object that shards will point into. */
  describe(bytes: number): Source | Promise<Source>;
}

export interface IndexOptions {
  jobUID: string;
  /** In input order. */
  sources: AsyncIterable<SourceInput> | Iterable<SourceInput>;
  rules: LineRules;
  /** Emptied and closed by the caller. */
  spill: SpillStore;
  /** Eight random bytes (HASH_KEY_BYTES), new for each pass. */
  hashKey: Uint8Array;
  /** Writes an index chunk; called again for a chunk that duplicates were found in. */
  writeChunk(chunk: number, bytes: Uint8Array): Promise<void>;
  /** Reads back what writeChunk wrote. */
  readChunk(chunk: number): Promise<Uint8Array>;
  signal?: AbortSignal | undefined;
  /** Called after each piece of input. */
  onProgress?: ((progress: { bytes: number; lines: number }) => void) | undefined;
  /** For tests. */
  limits?: { shard?: ShardLimits; maxLineBytes?: number } | undefined;
  /** For tests; the default is keyed by hashKey. */
  hash?: IdHash | undefined;
}

/**
 * Builds the index of a job. The caller writes the summary, last. An input without lines gives a summary with
 * `total` 0. Memory: independent of the number of lines, up to the longest line and about 40 MB.
 * Rejects with what the sources, the spill store or the chunk callbacks reject with (among others BatchError
 * `DiskFull`, `LimitExceeded`, `InvalidInput`), or with the signal's reason.
 */
export async function buildIndex(options: IndexOptions): Promise<IndexSummary> {
  const pass = new IndexPass(options);
  for await (const source of options.sources as AsyncIterable<SourceInput>) await pass.read(source);
  return pass.finish();
}

class IndexPass {
  readonly #options: IndexOptions;
  readonly #checker: LineChecker;
  readonly #writer: ShardWriter;
  readonly #duplicates: DuplicateFinder;
  readonly #maxLineBytes: number;
  readonly #sources: Source[] = [];
  #firstInvalid: (IndexSummary['firstInvalid'][number] & { ordinal: number })[] = [];
  #invalid = 0;
  #bytes = 0;
  #writing: Promise<void> = Promise.resolve();

  constructor(options: IndexOptions) {
    this.#options = options;
    this.#checker = new LineChecker(options.rules);
    this.#writer = new ShardWriter(options.limits?.shard ?? SHARD_LIMITS);
    this.#duplicates = new DuplicateFinder(options.spill, options.hash ?? keyedIdHash(options.hashKey));
    this.#maxLineBytes = options.limits?.maxLineBytes ?? MAX_LINE_BYTES;
  }

  async read(source: SourceInput): Promise<void> {
    const framer = new Framer({ maxLineBytes: this.#maxLineBytes });
    const before = this.#bytes;
    let checkedChunk: Uint8Array | undefined;
    const sink: FrameSink = (buffer, start, end, line, offset, length) =>
      this.#takeLine(source.inputKey, buffer, start, end, line, offset, length, buffer === checkedChunk);
    for await (const chunk of source.chunks) {
      this.#options.signal?.throwIfAborted();
      // One call for the whole lines of a chunk is much cheaper than one per line; a failure is then looked for by line.
      const from = framer.insideLine ? chunk.indexOf(0x0a) + 1 : 0;
      const wholeLines = chunk.subarray(from, chunk.lastIndexOf(0x0a) + 1);
      checkedChunk = isUtf8(wholeLines) ? chunk : undefined;
      framer.feed(chunk, sink);
      this.#bytes += chunk.length;
      await this.#settle();
      this.#options.onProgress?.({ bytes: this.#bytes, lines: this.#writer.lines });
    }
    checkedChunk = undefined;
    framer.finish(sink);
    this.#writer.endSource();
    await this.#settle();
    this.#sources.push(await source.describe(this.#bytes - before));
  }

  async finish(): Promise<IndexSummary> {
    const options = this.#options;
    this.#writer.end();
    await this.#settle();
    await this.#writing;
    const { shards, lines } = this.#writer;
    await this.#duplicates.resolve(
      {
        firstOrdinals: this.#writer.chunkFirstOrdinals,
        read: (chunk) => options.readChunk(chunk),
        rewrite: (chunk, bytes) => options.writeChunk(chunk, bytes),
        inputKey: (source) => this.#sources[source]!.inputKey,
      },
      ({ ordinal, source, line }) =>
        this.#noteInvalid(this.#sources[source]!.inputKey, ordinal, line, line.error!),
      options.signal,
    );
    return {
      formatVersion: FORMAT_VERSION,
      jobUID: options.jobUID,
      sources: this.#sources,
      total: lines,
      invalid: this.#invalid,
      firstInvalid: this.#firstInvalid.map(({ key, line, customId, error }) => ({
        key,
        line,
        customId,
        error,
      })),
      shards,
      bytes: this.#bytes,
    };
  }

  #takeLine(
    key: string,
    buffer: Uint8Array | undefined,
    start: number,
    end: number,
    line: number,
    offset: number,
    length: number,
    knownUtf8: boolean,
  ): void {
    const ordinal = this.#writer.lines;
    if (buffer === undefined) {
      const error = lineTooLarge(length, this.#maxLineBytes);
      this.#writer.add(line, offset, length, undefined, 0, 0, error);
      this.#noteInvalid(key, ordinal, { line, customId: null }, error);
      return;
    }
    const checker = this.#checker;
    const error = checker.check(buffer, start, end, knownUtf8 ? true : undefined);
    const { idStart, idEnd } = checker;
    this.#writer.add(line, offset, length, idStart < 0 ? undefined : buffer, idStart, idEnd, error);
    if (idStart >= 0) {
      if (checker.idIsPlain) this.#duplicates.add(ordinal, buffer, idStart + 1, idEnd - 1);
      else {
        const id = Buffer.from(checker.customId(buffer)!);
        this.#duplicates.add(ordinal, id, 0, id.length);
      }
    }
    if (error !== undefined) {
      this.#noteInvalid(key, ordinal, { line, customId: checker.customId(buffer) }, error);
    }
  }

  /** Duplicates are noted after all other invalid lines, hence the order by ordinal. */
  #noteInvalid(key: string, ordinal: number, { line, customId }: IndexedLine, error: LineError): void {
    this.#invalid++;
    const last = this.#firstInvalid.at(-1);
    if (this.#firstInvalid.length === MAX_FIRST_INVALID && ordinal > last!.ordinal) return;
    this.#firstInvalid.push({ ordinal, key, line, customId, error });
    this.#firstInvalid.sort((a, b) => a.ordinal - b.ordinal);
    this.#firstInvalid = this.#firstInvalid.slice(0, MAX_FIRST_INVALID);
  }

  /** One chunk is written while the next is made; more would only cost memory. */
  async #settle(): Promise<void> {
    await this.#duplicates.settle();
    for (const { chunk, bytes } of this.#writer.takeReady()) {
      await this.#writing;
      this.#writing = this.#options.writeChunk(chunk, bytes);
      this.#writing.catch(() => undefined); // the next await reports it
    }
  }
}
