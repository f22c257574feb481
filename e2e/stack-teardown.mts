/** After the end-to-end tests: stops the stack. Its folder stays where a test failed, for its logs. */
import type { SetupGlobals } from './stack-setup.mts';

export default async function tearDown(): Promise<void> {
  await (globalThis as SetupGlobals).tidegateStack?.supervisor.stop(20_000);
}
