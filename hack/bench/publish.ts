/**
 * How many bytes the store copies, and we upload, to publish a growing file, in units of the final size, when the
 * operator's rule says when to publish. The store is real; time is played, so that the rate of the job is a setting.
 *
 *   node hack/bench/publish.ts [--mib 256] [--failing-percent 5] [--mib-per-second 2] [--out FOLDER]
 */
import { randomUUID } from 'node:crypto';
import { parseArgs } from 'node:util';
import { silentLogger } from '../../src/observability/logger.ts';
import type { MultipartUpload, ObjectStore } from '../../src/storage/contract.ts';
import { publishDueIn, type PublishSettings } from '../../src/operator/inference-batch-job/publish.ts';
import { publish } from '../../src/worker/publish/publish.ts';
import { defaultPublishSettings } from '../../src/worker/publish/settings.ts';
import { machine, RESULTS, shown, writeResult } from './lib/result.ts';
import { MadeJob } from './made-job.ts';
import { startStore } from './s3-store.ts';

const MiB = 1024 * 1024;
const TARGET_COPIED_PER_FINAL_BYTE = 15;

const { values } = parseArgs({
  options: {
    mib: { type: 'string', default: '256' },
    'failing-percent': { type: 'string', default: '5' },
    'mib-per-second': { type: 'string', default: '2' },
    out: { type: 'string', default: RESULTS },
  },
});
const finalMiB = Number(values.mib);
const failingPercent = Number(values['failing-percent']);
const mibPerSecond = Number(values['mib-per-second']);

/** The rule of the design: max(5 MiB, 10 %), 2 s while small, 10 minutes at the latest. */
const rule: PublishSettings = {
  smallFileBytes: 5 * MiB,
  smallFileDelayMilliseconds: 2_000,
  tailPercent: 10,
  maxDelayMilliseconds: 600_000,
};

const SHARD_LINES = 250;
const RECORD_BYTES = 2048;
const shardBytes = SHARD_LINES * RECORD_BYTES;

const before = machine();
const started = await startStore('bench');
try {
  const moved = { copiedBytes: 0, uploadedBytes: 0, calls: 0 };
  const job = new MadeJob({
    ...{ store: started.store, prefix: 'bench/', uid: randomUUID() },
    shards: new Array<number>(Math.ceil((finalMiB * MiB) / shardBytes)).fill(SHARD_LINES),
    recordBytes: () => RECORD_BYTES - 1,
    fails: (ordinal) => (ordinal * 37) % 100 < failingPercent,
  });
  const store = counting(started.store, moved);
  let now = 0;
  let published = { shards: 0, bytes: 0 };
  let tailSince = 0;
  let publishes = 0;
  let publishSeconds = 0;

  const append = async (): Promise<void> => {
    const start = performance.now();
    const report = await publish({
      ...{
        store,
        layout: job.layout,
        jobUID: job.uid,
        logger: silentLogger,
        newId: randomUUID,
        random: Math.random,
      },
      ...{ signal: new AbortController().signal, settings: defaultPublishSettings },
      failPoint: async () => undefined,
      clock: { now: () => now, monotonic: () => now },
    });
    publishSeconds += (performance.now() - start) / 1000;
    publishes += 1;
    published = { shards: report.shards, bytes: report.resultsBytes + report.errorsBytes };
    tailSince = now;
  };

  for (const { shard } of job.shards) {
    await job.finish(shard);
    const done = shard + 1;
    now = ((done * shardBytes) / MiB / mibPerSecond) * 1000;
    const due = publishDueIn(
      {
        ...{ now, donePrefix: done, doneShards: done, doneBytes: done * shardBytes },
        ...{ publishedShards: published.shards, publishedBytes: published.bytes, tailSince },
      },
      rule,
    );
    if (due === 0) await append();
  }
  if (published.shards < job.shards.length) await append();

  const finalBytes = published.bytes;
  const copiedPerFinalByte = round(moved.copiedBytes / finalBytes);
  const uploadedPerFinalByte = round(moved.uploadedBytes / finalBytes);
  const row = {
    measure: `Bytes that the store copies for publishing ÷ final size, ${shown(finalBytes / MiB)} MiB`,
    target: `≤ ${TARGET_COPIED_PER_FINAL_BYTE}`,
    result: shown(copiedPerFinalByte),
    met: copiedPerFinalByte <= TARGET_COPIED_PER_FINAL_BYTE,
    baseline: `bytes that we upload ÷ final size ${shown(uploadedPerFinalByte)}`,
  };
  writeResult('publish', values.out, before, [row], {
    ...{ finalMiB: round(finalBytes / MiB), failingPercent, mibPerSecond, publishes },
    ...{ copiedPerFinalByte, uploadedPerFinalByte },
    ...{ storeCalls: moved.calls, publishSeconds: round(publishSeconds) },
  });
} finally {
  await started.stop();
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

/** Counts the calls, and what multipart uploads move. */
function counting(
  inner: ObjectStore,
  moved: { copiedBytes: number; uploadedBytes: number; calls: number },
): ObjectStore {
  const counted = (upload: MultipartUpload): MultipartUpload => ({
    uploadId: upload.uploadId,
    uploadPart: (part, bytes, signal) => {
      moved.uploadedBytes += bytes.length;
      return upload.uploadPart(part, bytes, signal);
    },
    copyPart: (part, key, range, etag, signal) => {
      moved.copiedBytes += range.end - range.start;
      return upload.copyPart(part, key, range, etag, signal);
    },
    complete: (options) => upload.complete(options),
    abort: () => upload.abort(),
  });
  return new Proxy(inner, {
    get: (target, name) => {
      const member: unknown = Reflect.get(target, name, target);
      if (typeof member !== 'function') return member;
      return (...args: unknown[]): unknown => {
        moved.calls += 1;
        const answer: unknown = Reflect.apply(member, target, args);
        return name === 'createMultipart' ? (answer as Promise<MultipartUpload>).then(counted) : answer;
      };
    },
  });
}
