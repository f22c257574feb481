/** The input objects of a job in input order, as plain bytes for the index pass. */
import type { JobLayout } from '../../batch/layout.ts';
import type { SourceInput } from '../../batch/index-builder.ts';
import { unpack, type UnpackBudget } from '../../batch/unpack.ts';
import type { JobDescriptor } from '../../queue/contract.ts';
import { type ObjectStore, StoreError } from '../../storage/contract.ts';
import type { JobStores } from '../credentials.ts';
import { ProblemError } from '../problems.ts';
import { UnpackedUpload } from './unpacked-upload.ts';

export interface InputOptions {
  descriptor: JobDescriptor;
  layout: JobLayout;
  stores: JobStores;
  budget: UnpackBudget;
  signal: AbortSignal;
}

/**
 * @throws ProblemError NoSuchKey when an object is not there, or none has the prefix; BatchError InvalidInput and
 * LimitExceeded from unpacking.
 */
export async function* inputObjects(options: InputOptions): AsyncGenerator<SourceInput> {
  const { descriptor, stores, signal } = options;
  const { keys, prefix } = descriptor.input;
  let number = 0;
  if (keys !== undefined) {
    for (const key of keys) yield* inputObject(options, key, number++);
    return;
  }
  for await (const { key } of stores.input.list(prefix ?? '', { signal })) {
    // Some tools make an empty object for a "folder".
    if (!key.endsWith('/')) yield* inputObject(options, key, number++);
  }
  if (number === 0) {
    const message = `no object in bucket ${stores.input.bucket} has the prefix ${prefix}`;
    throw new ProblemError('NoSuchKey', message, true);
  }
}

async function* inputObject(options: InputOptions, key: string, number: number): AsyncGenerator<SourceInput> {
  const { descriptor, layout, stores, budget, signal } = options;
  const { bucket } = stores.input;
  const { info, body } = await openObject(stores.input, key, signal);
  try {
    const declared = descriptor.input.compression;
    const { compression, chunks } = await unpack(body, { key, declared, budget });
    const named = { inputKey: key, inputEtag: info.etag };
    if (compression === 'None') {
      yield {
        inputKey: key,
        chunks,
        describe: (bytes) => ({ bucket, key, etag: info.etag, bytes, ...named }),
      };
      return;
    }
    const unpackedKey = layout.unpacked(number);
    const upload = new UnpackedUpload(stores.output, unpackedKey, signal);
    try {
      yield {
        inputKey: key,
        chunks: upload.tee(chunks),
        describe: async (bytes) => {
          const { etag } = await upload.finish();
          return { bucket: stores.output.bucket, key: unpackedKey, etag, bytes, ...named };
        },
      };
    } finally {
      // Also when the index pass gives up: a generator then ends without an error here.
      await upload.abort();
    }
  } finally {
    body.destroy();
  }
}

async function openObject(store: ObjectStore, key: string, signal: AbortSignal) {
  try {
    return await store.get(key, { signal });
  } catch (error) {
    if (!(error instanceof StoreError) || error.code !== 'NoSuchKey') throw error;
    throw new ProblemError('NoSuchKey', `input object s3://${store.bucket}/${key} does not exist`, true, {
      cause: error,
    });
  }
}
