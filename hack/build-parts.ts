/**
 * Builds what is missing of the local stack's parts into .cache/bin, one after another, and says what and for how
 * long. Run with `make parts`; a second run has nothing to do. The sources come as Go modules, pinned by the go.sum
 * files beside; Redis comes from the system's packages.
 */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { binaryPath, BIN, BUILT_PARTS, REPOSITORY, type BuiltPart } from './stack/paths.ts';
import { VERSIONS } from './versions.ts';

interface Recipe {
  /** Folder of the Go module, and the package in it. */
  module: string;
  package: string;
  version: string;
  linkerFlags: string;
  /** What to expect with empty caches on two cores. */
  coldMinutes: string;
}

const [kubernetesMajor, kubernetesMinor] = VERSIONS.kubernetes.split('.');
const kubernetes = (name: string, coldMinutes: string): Recipe => ({
  module: 'hack/local-cluster',
  package: `k8s.io/kubernetes/cmd/${name}`,
  version: VERSIONS.kubernetes,
  linkerFlags: [
    `-X k8s.io/component-base/version.gitVersion=v${VERSIONS.kubernetes}`,
    `-X k8s.io/component-base/version.gitMajor=${kubernetesMajor}`,
    `-X k8s.io/component-base/version.gitMinor=${kubernetesMinor}`,
  ].join(' '),
  coldMinutes,
});

const RECIPES: Record<BuiltPart, Recipe> = {
  'kube-apiserver': kubernetes('kube-apiserver', '4–5 min'),
  'kube-controller-manager': kubernetes('kube-controller-manager', '1–2 min'),
  kubectl: kubernetes('kubectl', '1 min'),
  etcd: {
    module: 'hack/local-etcd',
    package: 'go.etcd.io/etcd/server/v3',
    version: VERSIONS.etcd,
    linkerFlags: '',
    coldMinutes: '1 min',
  },
  versitygw: {
    module: 'hack/local-s3',
    package: 'github.com/versity/versitygw/cmd/versitygw',
    version: VERSIONS.versitygw,
    linkerFlags: `-X main.Version=v${VERSIONS.versitygw}`,
    coldMinutes: '2–3 min',
  },
};

/** Go's own line of the oldest toolchain that builds all parts. */
const GO_NEEDED = '1.26';

export class MissingTool extends Error {}

/** Builds every part that is missing. Throws with a sentence that says what to do when a tool is missing. */
export async function buildParts(say: (line: string) => void = console.log): Promise<void> {
  installRedis(say);
  const missing = BUILT_PARTS.filter((part) => !existsSync(binaryPath(part)));
  if (missing.length === 0) return;
  const go = findGo();
  mkdirSync(BIN, { recursive: true });
  const names = missing.map((part) => `${part} ${RECIPES[part].version}`).join(', ');
  say(`Building ${missing.length} part${missing.length > 1 ? 's' : ''} into .cache/bin, once: ${names}`);
  for (const [position, part] of missing.entries()) {
    await build(go, part, `[${position + 1}/${missing.length}]`, say);
  }
}

async function build(
  go: string,
  part: BuiltPart,
  position: string,
  say: (line: string) => void,
): Promise<void> {
  const recipe = RECIPES[part];
  const target = binaryPath(part);
  const unfinished = `${target}.${process.pid}.unfinished`;
  const started = performance.now();
  const label = `${position} ${part} ${recipe.version}`;
  const progress = startProgress(label, recipe.coldMinutes, say);
  try {
    await run(
      go,
      ['build', '-trimpath', '-ldflags', `-s -w ${recipe.linkerFlags}`, '-o', unfinished, recipe.package],
      join(REPOSITORY, recipe.module),
    );
    renameSync(unfinished, target);
  } catch (error) {
    rmSync(unfinished, { force: true });
    throw error;
  } finally {
    progress.end();
  }
  say(`${label}: built in ${duration(performance.now() - started)}`);
}

/** In a terminal one line that counts the time; elsewhere a line at the start and every half minute. */
function startProgress(label: string, coldMinutes: string, say: (line: string) => void): { end: () => void } {
  const started = performance.now();
  const line = (): string =>
    `${label}: building, ${duration(performance.now() - started)} (${coldMinutes} with empty caches on two cores)`;
  if (process.stdout.isTTY && process.env['CI'] === undefined) {
    const timer = setInterval(() => process.stdout.write(`\r\x1b[2K${line()}`), 500);
    return {
      end: () => {
        clearInterval(timer);
        process.stdout.write('\r\x1b[2K');
      },
    };
  }
  say(line());
  const timer = setInterval(() => say(line()), 30_000);
  return { end: () => clearInterval(timer) };
}

function run(command: string, args: string[], cwd: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      cwd,
      // GOTOOLCHAIN=auto lets an older Go fetch the one that go.mod asks for.
      env: { GOTOOLCHAIN: 'auto', ...process.env, CGO_ENABLED: '0', GOFLAGS: '-mod=readonly' },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    let errors = '';
    child.stderr.on('data', (chunk: Buffer) => {
      const lines = chunk.toString('utf8').replaceAll(/^go: downloading .*\n/gm, '');
      errors = (errors + lines).slice(-4_000);
    });
    child.once('error', reject);
    child.once('exit', (code, signal) => {
      if (code === 0) resolve();
      else
        reject(
          new Error(`"${command} ${args[0]}" in ${cwd} failed (${signal ?? `code ${code}`})\n${errors}`),
        );
    });
  });
}

function findGo(): string {
  for (const go of ['go', '/usr/local/go/bin/go', '/usr/lib/go/bin/go']) {
    const version = spawnSync(go, ['env', 'GOVERSION'], { cwd: REPOSITORY, encoding: 'utf8' });
    if (version.status === 0) return go;
  }
  throw new MissingTool(
    `Go is needed once to build the local Kubernetes, etcd and S3 server, and no "go" is on PATH. ` +
      `Install Go ${GO_NEEDED} or newer (or 1.21 and newer with GOTOOLCHAIN=auto), then run this again.`,
  );
}

function installRedis(say: (line: string) => void): void {
  if (spawnSync('redis-server', ['--version']).status === 0) return;
  const advice = 'Install the package "redis-server" (Redis 6.2 or newer), then run this again.';
  const canInstall = process.getuid?.() === 0 && spawnSync('apt-get', ['--version']).status === 0;
  if (!canInstall) throw new MissingTool(`redis-server is not on PATH. ${advice}`);
  say('Installing redis-server from the system packages');
  for (const args of [
    ['update', '-q'],
    ['install', '-q', '-y', '--no-install-recommends', 'redis-server'],
  ]) {
    const step = spawnSync('apt-get', args, {
      encoding: 'utf8',
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' },
    });
    if (step.status !== 0) throw new MissingTool(`"apt-get ${args[0]}" failed: ${step.stderr}\n${advice}`);
  }
}

function duration(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** The version that a committed go.mod requires of a module; for the test that keeps versions.ts honest. */
export function requiredVersion(moduleFolder: string, module: string): string | undefined {
  const text = readFileSync(join(REPOSITORY, moduleFolder, 'go.mod'), 'utf8');
  const escaped = module.replaceAll(/[.\\]/g, '\\$&');
  return new RegExp(`^(?:require )?\\s*${escaped} v(\\S+)`, 'm').exec(text)?.[1];
}

// No top-level await: jest loads this file with require().
if (import.meta.main) {
  buildParts().catch((error: unknown) => {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  });
}
