/** The bytes that shard results add to one file, read in order, ahead of need, and checked against their headers. */
import { crc32 } from '../../batch/crc.ts';
import { BatchError } from '../../batch/errors.ts';
import { segmentRanges, verifySegment } from '../../batch/shard-result.ts';
import { hasCode, uriOf, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';
import { inOrder } from './in-order.ts';
import type { Pin } from './pins.ts';
import type { FileName } from './position.ts';

/** @throws BatchError CorruptObject, PublishError ResultChanged */
export async function* tailBytes(
  context: PublishContext,
  file: FileName,
  pins: readonly Pin[],
): AsyncGenerator<Buffer> {
  const { settings } = context;
  const wanted = pins.filter((pin) => pin.header[file].bytes > 0);
  const ahead = inOrder(wanted, settings.readsInFlight, async (pin) => ({
    pin,
    bytes:
      pin.header[file].bytes <= settings.readAheadBytes ? await readSegment(context, file, pin) : undefined,
  }));
  for await (const { pin, bytes } of ahead) {
    if (bytes === undefined) yield* streamSegment(context, file, pin);
    else yield bytes;
  }
}

const optionsFor = ({ signal }: PublishContext, file: FileName, pin: Pin) => ({
  range: segmentRanges(pin.header, pin.headerBytes)[file],
  ifMatch: pin.etag,
  signal,
});

async function readSegment(context: PublishContext, file: FileName, pin: Pin): Promise<Buffer> {
  const { store, layout } = context;
  const read = store.getBytes(layout.shardResult(pin.shard), optionsFor(context, file, pin));
  const { bytes } = await pinned(context, pin, read);
  verifySegment(bytes, pin.header[file], nameOf(context, file, pin));
  return bytes;
}

/** Bytes go out before they are checked; the upload they go into is not completed when the check fails. */
async function* streamSegment(context: PublishContext, file: FileName, pin: Pin): AsyncGenerator<Buffer> {
  const { store, layout } = context;
  const opened = store.get(layout.shardResult(pin.shard), optionsFor(context, file, pin));
  const { body } = await pinned(context, pin, opened);
  let crc = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    crc = crc32(chunk, crc);
    yield chunk;
  }
  if (crc !== pin.header[file].crc32) {
    throw new BatchError(
      'CorruptObject',
      `${nameOf(context, file, pin)} does not match the checksum of its header.`,
    );
  }
}

async function pinned<T>({ store, layout }: PublishContext, pin: Pin, read: Promise<T>): Promise<T> {
  try {
    return await read;
  } catch (error) {
    if (!hasCode(error, 'PreconditionFailed', 'NoSuchKey')) throw error;
    const key = uriOf(store, layout.shardResult(pin.shard));
    throw new PublishError('ResultChanged', `${key} was replaced or removed while it was published`, {
      cause: error,
    });
  }
}

const nameOf = ({ store, layout }: PublishContext, file: FileName, pin: Pin): string =>
  `The ${file} segment of ${uriOf(store, layout.shardResult(pin.shard))}`;
