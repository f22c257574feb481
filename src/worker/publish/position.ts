/**
 * How far the published files reach. A file's own metadata is the only record of it: it changes in the same atomic
 * step as the bytes, so it cannot be behind or ahead of them, whatever crashes.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { crc32Text } from '../../batch/crc.ts';
import { FORMAT_VERSION, noOutcomes, OUTCOMES, type OutcomeCounts } from '../../batch/model.ts';
import type { ObjectInfo } from '../../storage/contract.ts';
import { ownsPrefix } from './claim.ts';
import { headIfThere, JOB_UID, uriOf, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';

export type FileName = 'results' | 'errors';
export const FILES: readonly FileName[] = ['results', 'errors'];

/** A published file as it is now. */
export interface PublishedFile {
  etag: string;
  bytes: number;
  lines: number;
  crc32: number;
  /** It holds the records of shards [0, shards). */
  shards: number;
  /** Outcomes of all lines of these shards, those in the other file included. */
  counts: OutcomeCounts;
  /** The publish that wrote it, so that a publisher recognises its own work. */
  publishId: string;
}

export type PublishedFiles = Record<FileName, PublishedFile | undefined>;

/** What a file holds at a position: the lines of shards [0, shards). */
export interface Position {
  shards: number;
  counts: OutcomeCounts;
}

/** Lines of a file among these outcomes. */
export const linesOf = (file: FileName, { completed, failed, expired, cancelled }: OutcomeCounts): number =>
  file === 'results' ? completed : failed + expired + cancelled;

/** Together about a second: far longer than it takes a store to replace an object. */
const [LOOKS, LOOK_AGAIN_MILLISECONDS] = [5, 100];

/**
 * A store that keeps metadata beside the bytes (versitygw on a file system) can show an object without it, or with
 * that of the version before, in the moment of a publish. Only what stays so is believed.
 *
 * @throws PublishError OutputExists, PublishedDamaged
 */
export async function readPublishedFile(
  context: PublishContext,
  file: FileName,
): Promise<PublishedFile | undefined> {
  const { store, layout, signal } = context;
  for (let look = 1; ; look++) {
    const info = await headIfThere(store, layout[file], signal);
    if (info === undefined) return undefined;
    try {
      return publishedFileOf(context, file, info);
    } catch (error) {
      const namesAnother =
        info.metadata?.[JOB_UID] !== undefined && info.metadata[JOB_UID] !== context.jobUID;
      if (namesAnother) throw error;
      if (look === LOOKS) return ownButUnlabelled(context, info, error);
      await pause(look * LOOK_AGAIN_MILLISECONDS, undefined, { signal });
    }
  }
}

/**
 * A file that lost its metadata: versitygw drops it where an abort of the same upload meets the Complete. Under our own
 * claim it can only be ours, and what it holds is in the shard results, so it is written anew from the first shard.
 */
async function ownButUnlabelled(
  context: PublishContext,
  { etag, metadata }: ObjectInfo,
  error: unknown,
): Promise<PublishedFile> {
  if (metadata?.[JOB_UID] !== undefined || !(await ownsPrefix(context))) throw error;
  return { etag, bytes: 0, lines: 0, crc32: 0, shards: 0, counts: noOutcomes(), publishId: '' };
}

function publishedFileOf(context: PublishContext, file: FileName, info: ObjectInfo): PublishedFile {
  const { store, layout, jobUID } = context;
  const owner = info.metadata?.[JOB_UID];
  if (owner !== jobUID) {
    const whose = owner === undefined ? 'no job' : `job ${owner}`;
    throw new PublishError(
      'OutputExists',
      `${uriOf(store, layout[file])} belongs to ${whose}, not to ${jobUID}`,
    );
  }
  const published = decode(info);
  if (
    published === undefined ||
    published.bytes !== info.bytes ||
    published.lines !== linesOf(file, published.counts)
  ) {
    throw new PublishError(
      'PublishedDamaged',
      `${uriOf(store, layout[file])} is not what its metadata says (${info.bytes} bytes found): it was written by someone else`,
    );
  }
  return published;
}

export async function readPublishedFiles(context: PublishContext): Promise<PublishedFiles> {
  const [results, errors] = await Promise.all([
    readPublishedFile(context, 'results'),
    readPublishedFile(context, 'errors'),
  ]);
  return { results, errors };
}

/**
 * Where each file goes on. A file is not rewritten for shards without a line of it, so it may reach further than
 * its metadata says: up to the other file's position, if by that one's counts no line is missing.
 */
export function positionsOf({ results, errors }: PublishedFiles): Record<FileName, Position> {
  const at = (file: FileName, own: PublishedFile | undefined, other: PublishedFile | undefined): Position => {
    const lines = own?.lines ?? 0;
    if (other !== undefined && other.shards >= (own?.shards ?? 0) && linesOf(file, other.counts) === lines)
      return { shards: other.shards, counts: other.counts };
    return own ?? { shards: 0, counts: noOutcomes() };
  };
  return { results: at('results', results, errors), errors: at('errors', errors, results) };
}

export function encodeMetadata(jobUID: string, file: Omit<PublishedFile, 'etag'>): Record<string, string> {
  const counts = OUTCOMES.map((outcome) => [`tidegate-${outcome}`, String(file.counts[outcome])] as const);
  return {
    [JOB_UID]: jobUID,
    'tidegate-format': String(FORMAT_VERSION),
    'tidegate-shards': String(file.shards),
    'tidegate-bytes': String(file.bytes),
    'tidegate-lines': String(file.lines),
    'tidegate-crc32': crc32Text(file.crc32),
    'tidegate-publish': file.publishId,
    ...Object.fromEntries(counts),
  };
}

function decode({ etag, metadata = {} }: ObjectInfo): PublishedFile | undefined {
  if (metadata['tidegate-format'] !== String(FORMAT_VERSION)) return undefined;
  const count = (name: string): number => {
    const text = metadata[`tidegate-${name}`];
    return text !== undefined && /^\d+$/.test(text) ? Number(text) : NaN;
  };
  const counts = noOutcomes();
  for (const outcome of OUTCOMES) counts[outcome] = count(outcome);
  const file = {
    etag,
    ...{ bytes: count('bytes'), lines: count('lines'), shards: count('shards'), counts },
    crc32: Number.parseInt(metadata['tidegate-crc32'] ?? '', 16),
    publishId: metadata['tidegate-publish'] ?? '',
  };
  const numbers = [file.bytes, file.lines, file.shards, file.crc32, ...Object.values(counts)];
  return numbers.every((n) => Number.isSafeInteger(n)) ? file : undefined;
}
