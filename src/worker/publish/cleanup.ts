/** What remains of a job when it is over or deleted: its published files, and nothing else. */
import { ownsPrefix } from './claim.ts';
import { hasCode, type PublishContext } from './context.ts';
import { publish } from './publish.ts';

export interface CleanupOptions {
  context: PublishContext;
  /** For a job deleted while it ran: publish what is finished, as far as that takes no longer than this. 0: do not. */
  publishForMilliseconds: number;
}

/** Objects listed at a time; each batch is deleted before the next is listed. */
const BATCH = 1000;

/** Removes working objects, open uploads and the claim; idempotent. A bucket that is gone is clean. @throws StoreError */
export async function cleanup({ context, publishForMilliseconds }: CleanupOptions): Promise<void> {
  const { store, layout, failPoint } = context;
  try {
    // Another job's uploads under this prefix are its own business.
    const owner = await ownsPrefix(context);
    if (owner && publishForMilliseconds > 0) await publishBriefly(context, publishForMilliseconds);
    await failPoint('cleanup.published');
    if (owner) for (const key of [layout.results, layout.errors]) await abortUploads(context, key, key);
    await abortUploads(context, layout.work);
    await removeAll(context, layout.work);
    await failPoint('cleanup.work-removed');
    // Last, so that a clean-up that ends half-way still knows that the prefix is its own.
    if (owner) await store.delete(layout.claim);
  } catch (error) {
    if (!hasCode(error, 'NoSuchBucket')) throw error;
  }
}

async function publishBriefly(context: PublishContext, milliseconds: number): Promise<void> {
  const signal = AbortSignal.any([context.signal, AbortSignal.timeout(milliseconds)]);
  try {
    await publish({ ...context, signal });
  } catch (error) {
    if (context.signal.aborted) throw error;
    context.logger.info('not all finished shards were published before clean-up', {
      job: context.jobUID,
      error: error instanceof Error ? error.message : String(error),
    });
  }
}

async function abortUploads({ store, signal }: PublishContext, prefix: string, only?: string): Promise<void> {
  for (const { key, uploadId } of await store.listUploads(prefix, signal)) {
    if (only === undefined || key === only) await store.abortUpload(key, uploadId);
  }
}

async function removeAll({ store, signal }: PublishContext, prefix: string): Promise<void> {
  let batch: string[] = [];
  for await (const { key } of store.list(prefix, { signal })) {
    batch.push(key);
    if (batch.length < BATCH) continue;
    await store.deleteMany(batch);
    batch = [];
  }
  if (batch.length > 0) await store.deleteMany(batch);
}
