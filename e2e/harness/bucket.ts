/** The bucket of the stack, as tests and checker see it. Nothing of Tidegate's own storage code is used. */
import {
  GetObjectCommand,
  ListMultipartUploadsCommand,
  ListObjectsV2Command,
  NoSuchKey,
  PutObjectCommand,
  type S3Client,
} from '@aws-sdk/client-s3';
import type { StackDescription } from '../../hack/stack/description.ts';
import { s3ClientFor } from '../../hack/stack/stack.ts';

export interface Bucket {
  put(key: string, body: Buffer | string): Promise<void>;
  /** undefined when there is no such object. */
  get(key: string): Promise<Buffer | undefined>;
  keys(prefix: string): Promise<string[]>;
  /** Keys of multipart uploads that were begun and neither completed nor aborted. */
  openUploads(prefix: string): Promise<string[]>;
  close(): void;
}

export function openBucket({ s3 }: StackDescription): Bucket {
  const client: S3Client = s3ClientFor(s3);
  const Bucket = s3.bucket;
  return {
    put: async (Key, Body) => void (await client.send(new PutObjectCommand({ Bucket, Key, Body }))),
    get: async (Key) => {
      try {
        const answer = await client.send(new GetObjectCommand({ Bucket, Key }));
        return Buffer.from((await answer.Body?.transformToByteArray()) ?? []);
      } catch (error) {
        if (error instanceof NoSuchKey) return undefined;
        throw error;
      }
    },
    keys: async (Prefix) => {
      const keys: string[] = [];
      let ContinuationToken: string | undefined;
      do {
        const page = await client.send(new ListObjectsV2Command({ Bucket, Prefix, ContinuationToken }));
        for (const { Key } of page.Contents ?? []) if (Key !== undefined) keys.push(Key);
        ContinuationToken = page.NextContinuationToken;
      } while (ContinuationToken !== undefined);
      return keys;
    },
    openUploads: async (Prefix) => {
      const page = await client.send(new ListMultipartUploadsCommand({ Bucket, Prefix }));
      return (page.Uploads ?? []).flatMap(({ Key }) => (Key === undefined ? [] : [Key]));
    },
    close: () => client.destroy(),
  };
}
