/** The spill store of the index pass on disk: one file per partition in a folder of its own, removed at the end. */
import { createReadStream } from 'node:fs';
import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { BatchError } from '../../batch/errors.ts';
import type { SpillStore } from '../../batch/spill.ts';

export class DiskSpill implements SpillStore {
  readonly #folder: string;
  readonly #maxBytes: number;
  readonly #files = new Map<string, FileHandle>();
  #bytes = 0;

  private constructor(folder: string, maxBytes: number) {
    this.#folder = folder;
    this.#maxBytes = maxBytes;
  }

  /**
   * @param maxBytes less than the size limit of the emptyDir: a Pod that exceeds that is evicted, without an ENOSPC
   * @throws BatchError DiskFull, or the error of the file system where the directory cannot be used.
   */
  static async create(directory: string, maxBytes: number): Promise<DiskSpill> {
    const folder = await orDiskFull(directory, () => mkdtemp(join(directory, 'tidegate-index-')));
    return new DiskSpill(folder, maxBytes);
  }

  async append(partition: string, bytes: Uint8Array): Promise<void> {
    this.#bytes += bytes.length;
    if (this.#bytes > this.#maxBytes) throw diskFull(this.#folder, `its ${this.#maxBytes} bytes are used up`);
    await orDiskFull(this.#folder, async () => {
      let file = this.#files.get(partition);
      if (file === undefined) {
        file = await open(this.#path(partition), 'a');
        this.#files.set(partition, file);
      }
      // Unlike write, appendFile goes on after a short write.
      await file.appendFile(bytes);
    });
  }

  async *read(partition: string): AsyncIterable<Uint8Array> {
    if (!this.#files.has(partition)) return;
    for await (const chunk of createReadStream(this.#path(partition), { highWaterMark: 1024 * 1024 })) {
      yield chunk as Buffer;
    }
  }

  async close(): Promise<void> {
    await Promise.allSettled([...this.#files.values()].map((file) => file.close()));
    this.#files.clear();
    await rm(this.#folder, { recursive: true, force: true });
  }

  #path(partition: string): string {
    return join(this.#folder, `partition-${encodeURIComponent(partition)}`);
  }
}

async function orDiskFull<T>(where: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOSPC' || code === 'EDQUOT') throw diskFull(where, 'the disk is full', error);
    throw error;
  }
}

const diskFull = (where: string, why: string, cause?: unknown): BatchError =>
  new BatchError(
    'DiskFull',
    `no room in the scratch directory ${where}: ${why}; checking that custom_ids are unique takes about 20 bytes a line there`,
    { cause },
  );
