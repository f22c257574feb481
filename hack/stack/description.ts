/** What others may know of a running stack: written as JSON beside it, served by its supervisor. */
import { binary, CACHE } from './paths.ts';
import { BUCKET, CREDENTIALS_SECRET, type Stack } from './stack.ts';
import { mkdirSync, symlinkSync, rmSync } from 'node:fs';
import { join } from 'node:path';

export interface PartDescription {
  name: string;
  pid: number;
  running: boolean;
  logFile: string;
  /** Health and metrics page of Tidegate's roles. */
  httpUrl?: string;
}

export interface StackDescription {
  dir: string;
  kubeconfig: string;
  kube: { url: string; caFile: string; adminToken: string };
  redisUrl: string;
  s3: {
    endpoint: string;
    region: string;
    accessKeyId: string;
    secretAccessKey: string;
    bucket: string;
    /** Objects as files. */
    folder: string;
  };
  credentialsSecret: string;
  engineUrls: string[];
  /** The look-alikes; none with an engine of the user's own. */
  engines: { name: string; url: string; controlUrl: string; callLog: string }[];
  parts: PartDescription[];
}

export function describeStack(stack: Stack): StackDescription {
  const { s3 } = stack;
  return {
    dir: stack.dir,
    kubeconfig: stack.kube.adminKubeconfig,
    kube: { url: stack.kube.url, caFile: stack.kube.caFile, adminToken: stack.kube.adminToken },
    redisUrl: stack.redis.url,
    s3: {
      endpoint: s3.endpoint,
      region: s3.region,
      accessKeyId: s3.accessKeyId,
      secretAccessKey: s3.secretAccessKey,
      bucket: BUCKET,
      folder: join(s3.dataDir, BUCKET),
    },
    credentialsSecret: CREDENTIALS_SECRET,
    engineUrls: [...stack.engineUrls],
    engines: stack.engines.map(({ name, url, controlUrl, callLog }) => ({ name, url, controlUrl, callLog })),
    parts: [
      ...stack.parts().map((part) => ({
        name: part.name,
        pid: part.pid,
        running: part.running(),
        logFile: part.logFile,
        ...('httpUrl' in part && typeof part.httpUrl === 'string' ? { httpUrl: part.httpUrl } : {}),
      })),
    ],
  };
}

/** Lines for a shell to source: every client of the stack then finds it. */
export function environmentLines(stack: StackDescription): string {
  const variables = {
    KUBECONFIG: stack.kubeconfig,
    AWS_ENDPOINT_URL: stack.s3.endpoint,
    AWS_ACCESS_KEY_ID: stack.s3.accessKeyId,
    AWS_SECRET_ACCESS_KEY: stack.s3.secretAccessKey,
    AWS_REGION: stack.s3.region,
    TIDEGATE_BUCKET: stack.s3.bucket,
    REDIS_URL: stack.redisUrl,
    TIDEGATE_ENGINE_URL: stack.engineUrls[0] ?? '',
  };
  const lines = Object.entries(variables).map(([name, value]) => `export ${name}=${quote(value)}`);
  return [...lines, `export PATH=${quote(commandFolder())}:"$PATH"`, ''].join('\n');
}

/** A folder for PATH in which our kubectl goes by its plain name. */
export function commandFolder(): string {
  const folder = join(CACHE, 'commands');
  mkdirSync(folder, { recursive: true });
  const link = join(folder, 'kubectl');
  rmSync(link, { force: true });
  symlinkSync(binary('kubectl'), link);
  return folder;
}

const quote = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;
