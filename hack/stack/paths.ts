/** Where the repository, the built parts and run-time files lie. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { VERSIONS } from '../versions.ts';

export const REPOSITORY = join(import.meta.dirname, '..', '..');
export const CACHE = join(REPOSITORY, '.cache');
export const BIN = join(CACHE, 'bin');

const NAMES = {
  etcd: `etcd-${VERSIONS.etcd}`,
  'kube-apiserver': `kube-apiserver-${VERSIONS.kubernetes}`,
  'kube-controller-manager': `kube-controller-manager-${VERSIONS.kubernetes}`,
  kubectl: `kubectl-${VERSIONS.kubernetes}`,
  versitygw: `versitygw-${VERSIONS.versitygw}`,
} as const;
export type BuiltPart = keyof typeof NAMES;
export const BUILT_PARTS = Object.keys(NAMES) as BuiltPart[];

export const binaryPath = (part: BuiltPart): string => join(BIN, NAMES[part]);

/** Path of a built part; throws with the command that builds it when it is missing. */
export function binary(part: BuiltPart): string {
  const path = binaryPath(part);
  if (!existsSync(path))
    throw new Error(`${NAMES[part]} is not built yet: run "make parts" (looked at ${path})`);
  return path;
}

/** The Node that runs Tidegate: the pinned development dependency where installed, else the one running now. */
export function nodeBinary(): string {
  const pinned = join(REPOSITORY, 'node_modules', 'node', 'bin', 'node');
  return existsSync(pinned) ? pinned : process.execPath;
}
