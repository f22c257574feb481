/** Appends the finished shards that follow what is published, to both files. */
import { addOutcomes } from '../../batch/counts.ts';
import { combineCrc32 } from '../../batch/crc.ts';
import type { PublishedReport } from '../../queue/contract.ts';
import { append } from './append.ts';
import type { PublishContext } from './context.ts';
import { allPins, confirmPin, pinContiguous, writePins, type Pin } from './pins.ts';
import {
  FILES,
  positionsOf,
  readPublishedFiles,
  type FileName,
  type Position,
  type PublishedFile,
  type PublishedFiles,
} from './position.ts';
import { tailBytes } from './tail.ts';

/**
 * Publishes what is finished without a gap, at most `settings.maxShards` shards. Does nothing when nothing is new.
 * @throws PublishError Superseded when another publisher was faster: what it published stands, and the next call
 * goes on from there; OutputExists, PublishedDamaged, ResultChanged; StoreError.
 */
export async function publish(context: PublishContext): Promise<PublishedReport> {
  const files = await readPublishedFiles(context);
  const positions = positionsOf(files);
  const behind = Math.min(positions.results.shards, positions.errors.shards);
  const ahead = Math.max(positions.results.shards, positions.errors.shards);
  const fresh = await pinContiguous(context, ahead);
  await writePins(context, fresh);
  await context.failPoint('publish.pins-written');
  // A crash between the two files left one behind: it gets what the other already has, from the same results.
  const owed: Pin[] = [];
  for await (const pin of allPins(context, behind, ahead)) owed.push(pin);
  const pins = [...owed, ...fresh];

  const after: PublishedFiles = { ...files };
  for (const file of FILES)
    after[file] = await appendTo(context, file, files[file], positions[file], pins, ahead);
  return {
    shards: ahead + fresh.length,
    resultsBytes: after.results?.bytes ?? 0,
    errorsBytes: after.errors?.bytes ?? 0,
    at: context.clock.now(),
  };
}

/** How far both files reach now, without adding anything. */
export async function publishedSoFar(context: PublishContext): Promise<PublishedReport> {
  const files = await readPublishedFiles(context);
  const { results, errors } = positionsOf(files);
  return {
    shards: Math.min(results.shards, errors.shards),
    resultsBytes: files.results?.bytes ?? 0,
    errorsBytes: files.errors?.bytes ?? 0,
    at: context.clock.now(),
  };
}

async function appendTo(
  context: PublishContext,
  file: FileName,
  before: PublishedFile | undefined,
  position: Position,
  pins: readonly Pin[],
  ahead: number,
): Promise<PublishedFile | undefined> {
  const mine = pins.filter((pin) => pin.shard >= position.shards);
  const after = grown(file, before, position, mine);
  if (after.bytes === (before?.bytes ?? 0)) return before;
  const confirmed: Pin[] = [];
  for (const pin of mine) {
    const owed = pin.shard < ahead && pin.header[file].bytes > 0;
    confirmed.push(owed ? await confirmPin(context, pin, file) : pin);
  }
  return append(context, { file, before, after, tail: () => tailBytes(context, file, confirmed) });
}

/** What the file is once the segments of these shards are added. */
function grown(
  file: FileName,
  before: PublishedFile | undefined,
  position: Position,
  pins: readonly Pin[],
): Omit<PublishedFile, 'etag' | 'publishId'> {
  let { bytes, lines, crc32 } = before ?? { bytes: 0, lines: 0, crc32: 0 };
  let counts = position.counts;
  for (const { header } of pins) {
    const segment = header[file];
    crc32 = combineCrc32(crc32, segment.crc32, segment.bytes);
    bytes += segment.bytes;
    lines += segment.lines;
    counts = addOutcomes(counts, header.counts);
  }
  return { bytes, lines, crc32, counts, shards: position.shards + pins.length };
}
