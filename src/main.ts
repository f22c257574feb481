#!/usr/bin/env node
/** The commands of Tidegate; each is wired in src/main/ or in the room it belongs to. */
import { Command } from 'commander';
import { readEnvironment, UsageError, version } from './main/environment.ts';
import { type RoleProcess, type RunningRole, runRole } from './main/process.ts';
import { addEngineCommand } from './sim/command.ts';

/** Roles are loaded when asked for: the Kubernetes client alone takes most of a second. */
const ROLES: Record<
  string,
  { description: string; load: () => Promise<(role: RoleProcess) => Promise<RunningRole>> }
> = {
  operator: {
    description: 'Watches the resources, decides what runs, writes their status; run two for a warm standby',
    load: async () => (await import('./main/operator.ts')).startOperatorRole,
  },
  worker: {
    description: 'Indexes inputs, sends lines to the engines, publishes results; run as many as needed',
    load: async () => (await import('./main/worker.ts')).startWorkerRole,
  },
};

interface RoleFlags {
  allowLoopback?: true;
  identityNamespaces?: string;
}

function addRoleCommand(program: Command, name: string): void {
  const role = ROLES[name];
  if (role === undefined) throw new Error(`unknown role ${name}`);
  program
    .command(name)
    .description(role.description)
    .option(
      '--allow-loopback',
      'let jobs and deployments name addresses of this machine: for local trials only',
    )
    .option(
      '--identity-namespaces <names>',
      "namespaces, separated by commas, whose jobs may use the worker's own S3 identity",
    )
    .action(async (flags: RoleFlags) => {
      const env = readEnvironment({
        ...process.env,
        ...(flags.allowLoopback === undefined ? {} : { TIDEGATE_ALLOW_LOOPBACK: '1' }),
        ...(flags.identityNamespaces === undefined
          ? {}
          : { TIDEGATE_IDENTITY_NAMESPACES: flags.identityNamespaces }),
      });
      await runRole(name, env, await role.load());
    });
}

const program = new Command('tidegate')
  .description('Fills the idle capacity of inference GPUs with work that can wait')
  .version(version());
for (const name of Object.keys(ROLES)) addRoleCommand(program, name);
addEngineCommand(program);

try {
  await program.parseAsync();
} catch (error) {
  // A role that failed to start may have opened connections already, which would keep the process.
  process.stderr.write(
    `tidegate: ${error instanceof UsageError ? error.message : (error as Error).stack}\n`,
    () => process.exit(error instanceof UsageError ? 2 : 1),
  );
}
