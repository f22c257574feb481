/** A real S3 server with one bucket, seen through our own store. */
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { silentLogger } from '../../src/observability/logger.ts';
import type { ObjectStore } from '../../src/storage/contract.ts';
import { StoreProvider, type StoreDependencies } from '../../src/storage/provider.ts';
import { startS3, type S3 } from '../stack/s3.ts';

export interface StartedStore {
  s3: S3;
  store: ObjectStore;
  stop(): Promise<void>;
}

export async function startStore(
  bucket: string,
  options: Partial<StoreDependencies> = {},
): Promise<StartedStore> {
  const s3 = await startS3();
  const { endpoint, region, accessKeyId, secretAccessKey } = s3;
  const credentials = { accessKeyId, secretAccessKey };
  const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });
  await client.send(new CreateBucketCommand({ Bucket: bucket }));
  client.destroy();
  const settings = { allowLoopback: true, ...options.settings };
  const provider = new StoreProvider({ logger: silentLogger, ...options, settings });
  const stop = async (): Promise<void> => {
    provider.close();
    await s3.stop();
  };
  return { s3, store: provider.open({ bucket, endpoint, region, credentials }), stop };
}

/** A key-by-key view of everything under a prefix. */
export async function keysUnder(store: ObjectStore, prefix: string): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  return keys;
}
