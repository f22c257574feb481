/** `tidegate engine`: the command and its flags. */
import { InvalidArgumentError, Option, type Command } from 'commander';
import { defaultEngineSettings, startEngine, type EngineSettings } from './engine.ts';
import { PROFILES, PROFILE_NAMES, type ProfileName } from './profiles.ts';

interface Flags {
  host: string;
  port: number;
  controlPort?: number;
  model?: string[];
  apiKey?: string;
  profile: ProfileName;
  maxNumSeqs?: number;
  maxNumBatchedTokens?: number;
  kvTokens?: number;
  maxModelLen: number;
  schedulingPolicy: 'fcfs' | 'priority';
  timeScale: number;
  echo: boolean;
  callLog?: string;
  seed: number;
}

/** Adds the command to the program. It runs until SIGTERM or SIGINT. */
export function addEngineCommand(program: Command): void {
  const defaults = defaultEngineSettings;
  program
    .command('engine')
    .description('An inference server without a GPU that looks like vLLM, for trials and tests')
    .option('--host <address>', 'address to listen on', defaults.host)
    .option('--port <number>', 'port to listen on; 0 picks a free one', port, 8000)
    .option('--control-port <number>', 'second port for /_control, open also while the engine refuses', port)
    .option(
      '--model <name>',
      `served model; may be repeated (default: ${defaults.models.join(', ')})`,
      collect,
    )
    .option('--api-key <key>', 'key that /v1 requests must carry')
    .addOption(
      new Option('--profile <name>', `hardware to play: ${profileList()}`)
        .choices(PROFILE_NAMES)
        .default(defaults.profile),
    )
    .option('--max-num-seqs <count>', 'sequences that run at a time (default: of the profile)', count)
    .option('--max-num-batched-tokens <count>', 'tokens in one step (default: of the profile)', count)
    .option('--kv-tokens <count>', 'tokens the KV cache holds (default: of the profile)', count)
    .option('--max-model-len <tokens>', 'longest prompt and answer together', count, defaults.maxModelLength)
    .addOption(
      new Option('--scheduling-policy <name>', 'order of the waiting queue')
        .choices(['fcfs', 'priority'])
        .default(defaults.schedulingPolicy),
    )
    .option(
      '--time-scale <factor>',
      '10 plays ten times as fast as the hardware',
      positive,
      defaults.timeScale,
    )
    .option('--echo', 'answers say what the prompt said', defaults.echo)
    .option('--call-log <file>', 'append each call as JSON lines, on arrival and before its answer leaves')
    .option('--seed <number>', 'seed of the jitter', Number, defaults.seed)
    .action(async (flags: Flags) => runUntilSignalled(settingsFrom(flags)));
}

const settingsFrom = (flags: Flags): EngineSettings => ({
  host: flags.host,
  port: flags.port,
  controlPort: flags.controlPort,
  models: flags.model ?? defaultEngineSettings.models,
  apiKey: flags.apiKey,
  profile: flags.profile,
  maxNumSeqs: flags.maxNumSeqs,
  maxNumBatchedTokens: flags.maxNumBatchedTokens,
  kvTokens: flags.kvTokens,
  maxModelLength: flags.maxModelLen,
  schedulingPolicy: flags.schedulingPolicy,
  timeScale: flags.timeScale,
  echo: flags.echo,
  callLog: flags.callLog,
  seed: flags.seed,
  mayDie: true,
});

async function runUntilSignalled(settings: EngineSettings): Promise<void> {
  const engine = await startEngine(settings);
  const about = {
    url: engine.url,
    controlUrl: engine.controlUrl,
    models: settings.models,
    profile: settings.profile,
  };
  process.stdout.write(`${JSON.stringify({ message: 'engine look-alike listens', ...about })}\n`);
  await new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
  await engine.stop();
}

const profileList = (): string => PROFILE_NAMES.map((name) => `${name} (${PROFILES[name].title})`).join(', ');

const collect = (value: string, before: string[] | undefined): string[] => [...(before ?? []), value];

function whole(value: string, least: number, most: number): number {
  const number = Number(value);
  if (!Number.isInteger(number) || number < least || number > most) {
    throw new InvalidArgumentError(`must be a whole number from ${least} to ${most}`);
  }
  return number;
}

const port = (value: string): number => whole(value, 0, 65_535);
const count = (value: string): number => whole(value, 1, 1_000_000_000);

function positive(value: string): number {
  const number = Number(value);
  if (!(number > 0 && Number.isFinite(number))) throw new InvalidArgumentError('must be a number above 0');
  return number;
}
