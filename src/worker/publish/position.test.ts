import { describe, expect, test } from '@jest/globals';
import { jobLayout } from '../../batch/layout.ts';
import { noOutcomes } from '../../batch/model.ts';
import { systemClock } from '../../observability/clock.ts';
import { silentLogger } from '../../observability/logger.ts';
import type { ObjectInfo, ObjectStore } from '../../storage/contract.ts';
import type { PublishContext } from './context.ts';
import { encodeMetadata, readPublishedFile, type PublishedFile } from './position.ts';
import { defaultPublishSettings } from './settings.ts';

const UID = 'job-uid';
const file: PublishedFile = {
  ...{ etag: '"2"', bytes: 20, lines: 2, crc32: 7, shards: 2, publishId: 'p2' },
  counts: { ...noOutcomes(), completed: 2 },
};
const whole: ObjectInfo = {
  ...{ key: 'out/results.jsonl', etag: file.etag, bytes: file.bytes },
  metadata: encodeMetadata(UID, file),
};
const before = encodeMetadata(UID, { ...file, bytes: 10, lines: 1, shards: 1 });

/** A store whose HEAD answers these in turn, the last one for ever, under a prefix that `claimant` has claimed. */
function contextWith(
  answers: ObjectInfo[],
  claimant = 'other',
): { context: PublishContext; looks: () => number } {
  let looks = 0;
  const claim = Buffer.from(JSON.stringify({ jobUID: claimant }));
  const head = (): Promise<ObjectInfo> =>
    Promise.resolve(answers[Math.min(looks++, answers.length - 1)] ?? whole);
  const context: PublishContext = {
    store: { bucket: 'b', head, getBytes: async () => ({ bytes: claim }) } as unknown as ObjectStore,
    ...{ layout: jobLayout('out/', UID), jobUID: UID, signal: new AbortController().signal },
    ...{ settings: defaultPublishSettings, failPoint: () => Promise.resolve(), clock: systemClock },
    ...{ logger: silentLogger, newId: () => 'id', random: () => 0.5 },
  };
  return { context, looks: () => looks };
}

describe('a published file, looked at while it is replaced', () => {
  const torn: [string, ObjectInfo][] = [
    ['without metadata yet', { ...whole, metadata: {} }],
    ['with the metadata of the version before', { ...whole, metadata: before }],
  ];

  test.each(torn)('%s: is looked at again', async (_, seen) => {
    const { context, looks } = contextWith([seen, whole]);
    expect(await readPublishedFile(context, 'results')).toEqual(file);
    expect(looks()).toBe(2);
  });

  test('that stays without metadata was put there by someone else', async () => {
    const { context } = contextWith([{ ...whole, metadata: {} }]);
    await expect(readPublishedFile(context, 'results')).rejects.toMatchObject({ code: 'OutputExists' });
  });

  test('that stays without metadata under our own claim is ours, and is written from its beginning', async () => {
    const { context } = contextWith([{ ...whole, metadata: {} }], UID);
    expect(await readPublishedFile(context, 'results')).toMatchObject({
      etag: file.etag,
      shards: 0,
      bytes: 0,
    });
  });

  test('that names another job is believed at once', async () => {
    const { context, looks } = contextWith([{ ...whole, metadata: encodeMetadata('other', file) }]);
    await expect(readPublishedFile(context, 'results')).rejects.toMatchObject({ code: 'OutputExists' });
    expect(looks()).toBe(1);
  });
});
