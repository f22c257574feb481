/**
 * Packed input: recognised by its first bytes, never by its name, and unpacked as a stream, all gzip members and all
 * zstd frames, within limits that stop a bomb.
 */
import { createGunzip, createZstdDecompress, type Gunzip, type ZstdDecompress } from 'node:zlib';
import { BatchError } from './errors.ts';

export type Compression = 'None' | 'Gzip' | 'Zstd';
export type DeclaredCompression = 'Auto' | Compression;

export interface UnpackLimits {
  /** Unpacked bytes of a whole job. */
  maxUnpackedBytes: number;
  /** Unpacked ÷ packed bytes of one object, looked at once it has unpacked to more than `ratioFromBytes`. */
  maxRatio: number;
  ratioFromBytes: number;
}

export const DEFAULT_UNPACK_LIMITS: UnpackLimits = {
  maxUnpackedBytes: 1024 ** 4,
  maxRatio: 200,
  ratioFromBytes: 1024 ** 3,
};

/** What one job has unpacked so far; shared by its objects. */
export class UnpackBudget {
  readonly limits: UnpackLimits;
  unpackedBytes = 0;

  constructor(limits: UnpackLimits = DEFAULT_UNPACK_LIMITS) {
    this.limits = limits;
  }
}

/** Enough bytes of an object to recognise its compression. */
export const MAGIC_BYTES = 4;

/** What the first bytes of an object say. A zstd file may start with a skippable frame. */
export function detectCompression(first: Uint8Array): Compression {
  if (first[0] === 0x1f && first[1] === 0x8b) return 'Gzip';
  if (first[0] === 0x28 && first[1] === 0xb5 && first[2] === 0x2f && first[3] === 0xfd) return 'Zstd';
  const skippable = first[0] !== undefined && (first[0] & 0xf0) === 0x50;
  if (skippable && first[1] === 0x2a && first[2] === 0x4d && first[3] === 0x18) return 'Zstd';
  return 'None';
}

/**
 * The compression of an object that was declared as something. Throws InvalidInput where its first bytes say
 * otherwise. An empty object passes for anything.
 */
export function resolveCompression(
  key: string,
  declared: DeclaredCompression,
  first: Uint8Array,
): Compression {
  const found = detectCompression(first);
  if (declared === 'Auto' || declared === found || first.length === 0) return found;
  const shown = [...first.subarray(0, MAGIC_BYTES)]
    .map((byte) => byte.toString(16).padStart(2, '0'))
    .join(' ');
  throw new BatchError(
    'InvalidInput',
    `${key}: the input is declared as ${declared}, but by its first bytes (${shown}) it is ` +
      `${found === 'None' ? 'neither Gzip nor Zstd' : found}.`,
  );
}

export interface UnpackOptions {
  /** Named in errors. */
  key: string;
  declared: DeclaredCompression;
  budget: UnpackBudget;
}

export interface Unpacked {
  compression: Compression;
  /** The plain bytes; for `None` those that came in. */
  chunks: AsyncIterable<Uint8Array>;
}

/**
 * Recognises and unpacks one object. Reading `chunks` throws InvalidInput where the data is truncated or damaged and
 * LimitExceeded past a limit. Memory: a few chunks, and the zstd window (at most 128 MiB).
 */
export async function unpack(packed: AsyncIterable<Uint8Array>, options: UnpackOptions): Promise<Unpacked> {
  const input = new PackedInput(packed);
  try {
    const compression = resolveCompression(options.key, options.declared, await input.peek(MAGIC_BYTES));
    return {
      compression,
      chunks: compression === 'None' ? input.rest() : unpackWithin(input, compression, options),
    };
  } catch (error) {
    await input.close();
    throw error;
  }
}

async function* unpackWithin(
  input: PackedInput,
  compression: 'Gzip' | 'Zstd',
  { key, budget }: UnpackOptions,
): AsyncGenerator<Uint8Array> {
  const { maxUnpackedBytes, maxRatio, ratioFromBytes } = budget.limits;
  let unpackedBytes = 0;
  try {
    for await (const chunk of decode(input, compression, key)) {
      unpackedBytes += chunk.length;
      budget.unpackedBytes += chunk.length;
      if (budget.unpackedBytes > maxUnpackedBytes) {
        throw new BatchError(
          'LimitExceeded',
          `${key}: the packed inputs of this job unpack to more than ${maxUnpackedBytes} bytes, the most allowed.`,
        );
      }
      if (unpackedBytes > ratioFromBytes && unpackedBytes > input.takenBytes * maxRatio) {
        throw new BatchError(
          'LimitExceeded',
          `${key}: ${input.takenBytes} packed bytes unpack to ${unpackedBytes} bytes so far, ` +
            `more than ${maxRatio} times as many; past ${ratioFromBytes} bytes that is the most allowed.`,
        );
      }
      yield chunk;
    }
  } finally {
    await input.close();
  }
}

type Decoder = Gunzip | ZstdDecompress;

const DECODED_CHUNK_BYTES = 128 * 1024;

/**
 * Node's decoders end silently where a zstd frame ends inside a chunk, or where gzip members are followed by zero
 * padding; what they left is given to a decoder of its own, so that nothing behind is lost.
 */
async function* decode(
  input: PackedInput,
  compression: 'Gzip' | 'Zstd',
  key: string,
): AsyncGenerator<Uint8Array> {
  while (await hasMore(input, compression)) {
    const decoder: Decoder =
      compression === 'Gzip'
        ? createGunzip({ chunkSize: DECODED_CHUNK_BYTES })
        : createZstdDecompress({ chunkSize: DECODED_CHUNK_BYTES });
    let inputError: unknown;
    const fed = feed(decoder, input).catch((error: unknown) => {
      inputError = error;
      decoder.destroy();
    });
    try {
      for await (const chunk of decoder) yield chunk as Uint8Array;
      await fed;
    } catch (error) {
      if (inputError === undefined) throw damaged(key, compression, error);
    } finally {
      decoder.destroy();
    }
    if (inputError !== undefined) throw inputError as Error;
  }
}

/** Whether anything follows; zero padding behind the last gzip member is no data (tape archives end so). */
async function hasMore(input: PackedInput, compression: 'Gzip' | 'Zstd'): Promise<boolean> {
  for (;;) {
    const chunk = await input.next();
    if (chunk === undefined) return false;
    const from = compression === 'Gzip' && input.unreadOnce ? chunk.findIndex((byte) => byte !== 0) : 0;
    if (from >= 0) {
      input.unread(chunk.subarray(from));
      return true;
    }
  }
}

/** Feeds the decoder until the input ends or the decoder does, and gives back what it did not take. */
async function feed(decoder: Decoder, input: PackedInput): Promise<void> {
  let fedBytes = 0;
  for (;;) {
    const chunk = await input.next();
    if (chunk === undefined) {
      decoder.end();
      return;
    }
    await offered(decoder, chunk);
    const takenBytes = decoder.bytesWritten - fedBytes;
    if (takenBytes < chunk.length) {
      input.unread(chunk.subarray(takenBytes));
      return;
    }
    fedBytes += chunk.length;
  }
}

/** Resolves when the decoder is done with the chunk: took it whole, ended inside it, failed or was closed. */
function offered(decoder: Decoder, chunk: Uint8Array): Promise<void> {
  if (decoder.destroyed || decoder.readableEnded) return Promise.resolve();
  return new Promise((resolve) => {
    const done = (): void => {
      decoder.off('end', done).off('close', done);
      resolve();
    };
    decoder.on('end', done).on('close', done);
    decoder.write(chunk, done);
  });
}

function damaged(key: string, compression: string, cause: unknown): BatchError {
  const reason = (cause as Error).message;
  return new BatchError(
    'InvalidInput',
    reason === 'unexpected end of file'
      ? `${key}: the ${compression} data is truncated: it ends inside a ${compression === 'Gzip' ? 'member' : 'frame'}.`
      : `${key}: the ${compression} data is damaged: ${reason}.`,
    { cause },
  );
}

/** An async byte source that can be peeked into and given bytes back. */
class PackedInput {
  readonly #iterator: AsyncIterator<Uint8Array>;
  readonly #back: Uint8Array[] = [];
  #taken = 0;
  #closed = false;
  /** Whether a decoder has given bytes back, that is, whether the first one has ended. */
  unreadOnce = false;

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#iterator = chunks[Symbol.asyncIterator]();
  }

  /** Bytes handed out and not given back. */
  get takenBytes(): number {
    return this.#taken;
  }

  async next(): Promise<Uint8Array | undefined> {
    let chunk = this.#back.pop();
    while (chunk === undefined) {
      const next = await this.#iterator.next();
      if (next.done === true) return undefined;
      if (next.value.length > 0) chunk = next.value;
    }
    this.#taken += chunk.length;
    return chunk;
  }

  unread(bytes: Uint8Array): void {
    this.unreadOnce = true;
    if (bytes.length === 0) return;
    this.#back.push(bytes);
    this.#taken -= bytes.length;
  }

  /** The first bytes, at least `count` unless the source is shorter. Nothing is consumed. */
  async peek(count: number): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    let length = 0;
    while (length < count) {
      const chunk = await this.next();
      if (chunk === undefined) break;
      chunks.push(chunk);
      length += chunk.length;
    }
    const first = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
    this.unread(first);
    this.unreadOnce = false;
    return first;
  }

  async *rest(): AsyncGenerator<Uint8Array> {
    try {
      for (let chunk = await this.next(); chunk !== undefined; chunk = await this.next()) yield chunk;
    } finally {
      await this.close();
    }
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#iterator.return?.();
  }
}
