/** Before the tests of `target.service`: the stack, in this network namespace and without the flag for loopback. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildParts } from '../../hack/build-parts.ts';
import { launchAttached } from '../../hack/stack/launch.ts';
import { TEST_MODEL } from '../harness/input.ts';
import { STACK_VARIABLE } from '../harness/run.ts';
import { testSettings } from '../harness/settings.ts';
import type { SetupGlobals } from '../stack-setup.mts';

export default async function setUp(): Promise<void> {
  // in-namespace.sh could not make one; the tests say so.
  if (process.env['TIDEGATE_NETNS_MISSING'] !== undefined) return;
  await buildParts();
  const dir = mkdtempSync(join(tmpdir(), 'tidegate-netns-'));
  const { supervisor } = await launchAttached({
    dir,
    workers: 2,
    settings: testSettings,
    models: [TEST_MODEL],
    addresses: { s3: '192.0.2.9', engines: ['192.0.2.10', '192.0.2.11'] },
  });
  process.env[STACK_VARIABLE] = dir;
  (globalThis as SetupGlobals).tidegateStack = { supervisor, dir };
}
