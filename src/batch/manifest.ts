/** manifest.json: what a job produced, and how to check it piece by piece. Built shard by shard, in order. */
import { addOutcomes, addUsage, outcomesSum } from './counts.ts';
import { combineCrc32, crc32Text } from './crc.ts';
import { BatchError } from './errors.ts';
import {
  FORMAT_VERSION,
  noOutcomes,
  noUsage,
  type Counts,
  type OutcomeCounts,
  type Segment,
  type ShardResultHeader,
  type Usage,
} from './model.ts';

/** One shard's part of a published file: bytes [offset, offset + bytes). */
export interface ManifestSegment {
  shard: number;
  offset: number;
  bytes: number;
  lines: number;
  sha256: string;
}

export interface ManifestFile {
  key: string;
  bytes: number;
  lines: number;
  /** CRC-32 (IEEE) of the whole file, eight hex digits; the combination of its segments. */
  crc32: string;
  segments: ManifestSegment[];
}

export interface Manifest {
  formatVersion: typeof FORMAT_VERSION;
  job: ManifestJob;
  counts: Counts;
  usage: Usage;
  shards: number;
  /** null where a file has no record and therefore does not exist. */
  results: ManifestFile | null;
  errors: ManifestFile | null;
}

export interface ManifestJob {
  uid: string;
  namespace: string;
  name: string;
  model: string;
  endpoint: string;
  /** How the job ended: `Complete`, `Cancelled`, `Expired` or `Failed`. */
  ending: string;
}

/** Collects the headers of all shard results in shard order. Memory: about 150 bytes a segment. */
export class ManifestBuilder {
  readonly #results: FileBuilder;
  readonly #errors: FileBuilder;
  #counts = noOutcomes();
  #usage = noUsage();
  #shards = 0;

  constructor(keys: { results: string; errors: string }) {
    this.#results = new FileBuilder(keys.results);
    this.#errors = new FileBuilder(keys.errors);
  }

  /** Throws CorruptObject unless shards come in order, from 0, without a gap. */
  add(header: ShardResultHeader): void {
    if (header.shard !== this.#shards) {
      throw new BatchError(
        'CorruptObject',
        `The manifest expects shard ${this.#shards} next; found shard ${header.shard}.`,
      );
    }
    this.#shards++;
    this.#counts = addOutcomes(this.#counts, header.counts);
    this.#usage = addUsage(this.#usage, header.usage);
    this.#results.add(header.shard, header.results);
    this.#errors.add(header.shard, header.errors);
  }

  get shards(): number {
    return this.#shards;
  }

  get counts(): OutcomeCounts {
    return this.#counts;
  }

  get usage(): Usage {
    return this.#usage;
  }

  /** What has been added, to compare with the published objects. */
  get sizes(): { resultsBytes: number; resultsLines: number; errorsBytes: number; errorsLines: number } {
    return {
      resultsBytes: this.#results.bytes,
      resultsLines: this.#results.lines,
      errorsBytes: this.#errors.bytes,
      errorsLines: this.#errors.lines,
    };
  }

  build(job: ManifestJob): Manifest {
    return {
      formatVersion: FORMAT_VERSION,
      job,
      counts: { total: outcomesSum(this.#counts), ...this.#counts },
      usage: this.#usage,
      shards: this.#shards,
      results: this.#results.build(),
      errors: this.#errors.build(),
    };
  }

  /** manifest.json, one segment a line, in pieces of about 64 KiB. */
  *encode(job: ManifestJob): Generator<Buffer> {
    const { results, errors, ...rest } = this.build(job);
    let text = `${JSON.stringify(rest, undefined, 2).slice(0, -2)},\n`;
    for (const [name, file, last] of [
      ['results', results, ','],
      ['errors', errors, ''],
    ] as const) {
      if (file === null) {
        text += `  "${name}": null${last}\n`;
        continue;
      }
      const { segments, ...head } = file;
      text += `  "${name}": ${JSON.stringify(head).slice(0, -1)},"segments":[\n`;
      for (const [position, piece] of segments.entries()) {
        text += `    ${JSON.stringify(piece)}${position + 1 < segments.length ? ',' : ''}\n`;
        if (text.length >= 64 * 1024) {
          yield Buffer.from(text);
          text = '';
        }
      }
      text += `  ]}${last}\n`;
    }
    yield Buffer.from(`${text}}\n`);
  }
}

class FileBuilder {
  readonly #key: string;
  readonly #segments: ManifestSegment[] = [];
  #crc = 0;
  bytes = 0;
  lines = 0;

  constructor(key: string) {
    this.#key = key;
  }

  add(shard: number, { bytes, lines, crc32, sha256 }: Segment): void {
    if (bytes === 0) return;
    this.#segments.push({ shard, offset: this.bytes, bytes, lines, sha256 });
    this.#crc = combineCrc32(this.#crc, crc32, bytes);
    this.bytes += bytes;
    this.lines += lines;
  }

  build(): ManifestFile | null {
    if (this.lines === 0) return null;
    return {
      key: this.#key,
      bytes: this.bytes,
      lines: this.lines,
      crc32: crc32Text(this.#crc),
      segments: this.#segments,
    };
  }
}
