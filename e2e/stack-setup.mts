/** Before the end-to-end tests: builds what is missing and starts the one stack that they share. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildParts } from '../hack/build-parts.ts';
import type { Child } from '../hack/stack/child.ts';
import { launchAttached } from '../hack/stack/launch.ts';
import { TEST_MODEL } from './harness/input.ts';
import { STACK_VARIABLE } from './harness/run.ts';
import { testSettings } from './harness/settings.ts';

/** Jest runs set-up and tear-down as separate modules; they share only the global object. */
export interface SetupGlobals {
  tidegateStack?: { supervisor: Child; dir: string };
}

export default async function setUp(): Promise<void> {
  await buildParts();
  const dir = mkdtempSync(join(tmpdir(), 'tidegate-e2e-'));
  const { supervisor } = await launchAttached({
    dir,
    operators: 2,
    workers: 2,
    settings: testSettings,
    models: [TEST_MODEL],
  });
  process.env[STACK_VARIABLE] = dir;
  (globalThis as SetupGlobals).tidegateStack = { supervisor, dir };
}
