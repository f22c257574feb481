/**
 * Asks a store whether it honours conditional writes, by doing what a store that honours them must refuse. Stores
 * that do not know the header ignore it silently (RGW on CompleteMultipartUpload, s3rver on both) or answer 501.
 */
import { randomUUID } from 'node:crypto';
import { StoreError, type ObjectStore } from './contract.ts';
import type { ConditionSupport } from './clients.ts';

const BODY = Buffer.from('Tidegate tries out conditional writes here; safe to delete.\n');

export async function probeConditions(
  store: Pick<ObjectStore, 'put' | 'delete' | 'createMultipart'>,
  probePrefix: string,
): Promise<ConditionSupport> {
  const key = `${probePrefix}probe-${randomUUID()}`;
  try {
    const { etag } = await store.put(key, BODY);
    const put = await refused(() => store.put(key, BODY, { ifNoneMatch: true }));
    const upload = await store.createMultipart(key);
    try {
      await upload.uploadPart(1, BODY);
      // Complete must refuse both conditions that publishing uses; the second is only asked when the first was refused.
      const complete =
        (await refused(() => upload.complete({ ifNoneMatch: true }))) &&
        (await refused(() => upload.complete({ ifMatch: changed(etag) })));
      return { put, complete };
    } finally {
      await upload.abort();
    }
  } finally {
    await store.delete(key);
  }
}

async function refused(write: () => Promise<unknown>): Promise<boolean> {
  try {
    await write();
    return false;
  } catch (error) {
    if (error instanceof StoreError && error.code === 'PreconditionFailed') return true;
    if (error instanceof StoreError && error.code === 'InvalidRequest') return false;
    throw error;
  }
}

/** An ETag of the same form that is not this one. */
const changed = (etag: string): string => etag.replace(/[0-9a-f]/, (digit) => (digit === '0' ? '1' : '0'));
