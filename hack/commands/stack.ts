/**
 * `make stack [ENGINE_URL=http://…]`: starts the real parts and Tidegate, waits until they are ready, and leaves
 * them running. What ends without being asked to is started again. A stack that already runs is left as it is.
 */
import { join } from 'node:path';
import { buildParts } from '../build-parts.ts';
import type { StackDescription } from '../stack/description.ts';
import { launchDetached, runningStack } from '../stack/launch.ts';
import { CACHE, REPOSITORY } from '../stack/paths.ts';
import { TRIAL_SETTINGS } from '../stack/tidegate.ts';

const DIR = join(CACHE, 'stack');

function explain(stack: StackDescription, was: string): void {
  const relative = (path: string): string => path.replace(`${REPOSITORY}/`, '');
  const rows: [string, string][] = [
    ['Kubernetes', stack.kube.url],
    ['S3', `${stack.s3.endpoint}, bucket ${stack.s3.bucket} (as files: ${relative(stack.s3.folder)})`],
    ['Redis', stack.redisUrl],
    ['Engine', stack.engineUrls.join(', ')],
    ['Secret', `${stack.credentialsSecret} in the namespace default has the S3 credentials`],
    ['Logs', `${relative(stack.dir)}/*.log, ${relative(stack.dir)}/*/*.log`],
  ];
  console.log(`The stack ${was}.`);
  for (const [name, value] of rows) console.log(`  ${name.padEnd(11)} ${value}`);
  console.log(`\nUse it:    . ${relative(join(stack.dir, 'env'))} && kubectl get inference -A`);
  console.log('Stop it:   make stack-down');
}

async function main(): Promise<void> {
  const running = await runningStack(DIR);
  if (running !== undefined) {
    explain(running, 'is already running');
    return;
  }
  await buildParts();
  const engineUrl = process.env['ENGINE_URL'] || undefined;
  console.log('Starting Kubernetes, Redis, S3 and Tidegate (about 10 s)');
  const stack = await launchDetached({ dir: DIR, engineUrl, restartCrashed: true, settings: TRIAL_SETTINGS });
  explain(stack, 'is up');
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
