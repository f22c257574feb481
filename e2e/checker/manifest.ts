/** manifest.json against the files it describes: counts, usage, sizes, checksums of the whole and of each segment. */
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import type { JobFacts } from './facts.ts';
import type { PublishedRecord } from './published-records.ts';

interface ManifestFile {
  key: string;
  bytes: number;
  lines: number;
  crc32: string;
  segments: { shard: number; offset: number; bytes: number; lines: number; sha256: string }[];
}

interface Manifest {
  job: { uid: string; name: string };
  counts: Record<string, number>;
  usage: Record<string, number>;
  results: ManifestFile | null;
  errors: ManifestFile | null;
}

type Report = (message: string) => void;

export function checkManifest(
  facts: JobFacts,
  found: { total: number; results: readonly PublishedRecord[]; errors: readonly PublishedRecord[] },
  violation: Report,
): void {
  const uri = facts.job.status?.outputs?.manifest;
  if (facts.manifest === undefined) {
    // A job that failed before anything could be recorded has none.
    if (uri !== undefined) violation(`status.outputs.manifest is ${uri}, but there is no such object`);
    if (found.total > 0) violation('manifest.json is missing');
    return;
  }
  if (uri === undefined) violation('manifest.json exists, but status.outputs.manifest is missing');
  const manifest = parsed(facts.manifest, violation);
  if (manifest === undefined) return;

  const { uid } = facts.job.metadata;
  if (manifest.job.uid !== uid) violation(`manifest.json is of job ${manifest.job.uid}, not ${uid}`);
  for (const group of ['counts', 'usage'] as const) {
    const wanted: Record<string, unknown> = { ...facts.job.status?.[group] };
    for (const [field, value] of Object.entries(wanted)) {
      if (manifest[group][field] !== value)
        violation(
          `manifest ${group}.${field} is ${manifest[group][field]}, the status says ${String(value)}`,
        );
    }
  }
  checkFile('results', manifest.results, facts.results, found.results.length, violation);
  checkFile('errors', manifest.errors, facts.errors, found.errors.length, violation);
}

function parsed(bytes: Buffer, violation: Report): Manifest | undefined {
  try {
    return JSON.parse(bytes.toString('utf8')) as Manifest;
  } catch {
    violation('manifest.json is not JSON');
    return undefined;
  }
}

function checkFile(
  name: string,
  file: ManifestFile | null,
  bytes: Buffer | undefined,
  records: number,
  violation: Report,
): void {
  if (file === null || bytes === undefined) {
    if ((file === null) !== (bytes === undefined))
      violation(
        `manifest ${name} is ${file === null ? 'null' : 'there'}, the file is ${bytes ? 'there' : 'not'}`,
      );
    return;
  }
  if (file.bytes !== bytes.length)
    violation(`manifest ${name}.bytes is ${file.bytes}, the file has ${bytes.length}`);
  if (file.lines !== records) violation(`manifest ${name}.lines is ${file.lines}, the file has ${records}`);
  const whole = crc32(bytes).toString(16).padStart(8, '0');
  if (file.crc32 !== whole) violation(`manifest ${name}.crc32 is ${file.crc32}, the file's is ${whole}`);
  let offset = 0;
  for (const segment of file.segments) {
    const where = `manifest ${name}, segment of shard ${segment.shard}`;
    if (segment.offset !== offset) violation(`${where} starts at ${segment.offset}, not at ${offset}`);
    const piece = bytes.subarray(segment.offset, segment.offset + segment.bytes);
    const sha256 = createHash('sha256').update(piece).digest('hex');
    if (segment.sha256 !== sha256) violation(`${where}: sha256 differs from that of its bytes`);
    let lines = 0;
    for (const byte of piece) if (byte === 0x0a) lines += 1;
    if (segment.lines !== lines) violation(`${where} has ${lines} lines, not ${segment.lines}`);
    offset = segment.offset + segment.bytes;
  }
  if (offset !== bytes.length)
    violation(`manifest ${name}: segments end at ${offset} of ${bytes.length} bytes`);
}
