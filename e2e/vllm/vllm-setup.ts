/** Before the acceptance tests: installs what is missing, starts a real vLLM and the stack in front of it. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildParts } from '../../hack/build-parts.ts';
import { launchAttached } from '../../hack/stack/launch.ts';
import { installVllm, startVllm, type Vllm } from '../../hack/vllm/vllm.ts';
import { TEST_MODEL } from '../harness/input.ts';
import { STACK_VARIABLE } from '../harness/run.ts';
import { testSettings } from '../harness/settings.ts';
import type { SetupGlobals } from '../stack-setup.mts';

export const VLLM_URL_VARIABLE = 'TIDEGATE_E2E_VLLM_URL';

export interface VllmGlobals extends SetupGlobals {
  tidegateVllm?: Vllm;
}

export default async function setUp(): Promise<void> {
  const say = (line: string): void => console.log(line);
  await buildParts(say);
  await installVllm(say);
  const dir = mkdtempSync(join(tmpdir(), 'tidegate-vllm-'));
  say(`starting vLLM (its log: ${join(dir, 'vllm.log')})`);
  const vllm = await startVllm({ logFile: join(dir, 'vllm.log'), servedName: TEST_MODEL });
  (globalThis as VllmGlobals).tidegateVllm = vllm;
  const { supervisor } = await launchAttached({
    dir,
    workers: 1,
    engineUrl: vllm.url,
    settings: testSettings,
  });
  (globalThis as VllmGlobals).tidegateStack = { supervisor, dir };
  process.env[STACK_VARIABLE] = dir;
  process.env[VLLM_URL_VARIABLE] = vllm.url;
}
