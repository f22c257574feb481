import type { VllmGlobals } from './vllm-setup.ts';

export default async function tearDown(): Promise<void> {
  const { tidegateStack, tidegateVllm } = globalThis as VllmGlobals;
  await tidegateStack?.supervisor.stop(20_000);
  await tidegateVllm?.stop();
}
