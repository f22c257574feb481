import { mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { BatchError } from '../../batch/errors.ts';
import { DiskSpill } from './disk-spill.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tidegate-test-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const all = async (chunks: AsyncIterable<Uint8Array>): Promise<string> => {
  const parts: Uint8Array[] = [];
  for await (const chunk of chunks) parts.push(chunk);
  return Buffer.concat(parts).toString();
};

test('gives back each partition in the order it was appended, and nothing of others', async () => {
  const spill = await DiskSpill.create(directory, 1_000);
  const names = ['0', 'a/b', '..'];
  for (const round of ['x', 'y'])
    for (const name of names) await spill.append(name, Buffer.from(name + round));
  for (const name of names) expect(await all(spill.read(name))).toBe(`${name}x${name}y`);
  expect(await all(spill.read('never'))).toBe('');
  await spill.close();
});

test('leaves nothing behind, and two passes at once do not meet', async () => {
  const [first, second] = await Promise.all([
    DiskSpill.create(directory, 1_000),
    DiskSpill.create(directory, 1_000),
  ]);
  await first.append('p', Buffer.from('first'));
  await second.append('p', Buffer.from('second'));
  expect(await all(first.read('p'))).toBe('first');
  await Promise.all([first.close(), second.close()]);
  await first.close();
  expect(readdirSync(directory)).toEqual([]);
});

test('a full disk is a DiskFull that names the directory', async () => {
  // /dev/full accepts an open and answers every write with ENOSPC.
  const spill = await DiskSpill.create(directory, 1_000);
  symlinkSync('/dev/full', join(directory, readdirSync(directory)[0] ?? '', 'partition-p'));
  const failure = await spill.append('p', Buffer.alloc(100)).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(BatchError);
  expect(failure).toMatchObject({ code: 'DiskFull', message: expect.stringContaining(directory) });
  await spill.close();
});

test('its own limit comes before the one that evicts the Pod', async () => {
  const spill = await DiskSpill.create(directory, 100);
  await spill.append('p', Buffer.alloc(60));
  const failure = await spill.append('q', Buffer.alloc(60)).catch((error: unknown) => error);
  expect(failure).toMatchObject({ code: 'DiskFull', message: expect.stringContaining('100 bytes') });
  await spill.close();
});
