/** Where the stack of this test run is; global set-up says it through the environment. */
import { connectStack, type StackControl } from '../../hack/stack/control.ts';
import type { StackDescription } from '../../hack/stack/description.ts';
import { kubeRequester, type KubeRequest } from '../../hack/stack/kube-request.ts';
import { readFileSync } from 'node:fs';
import { readyFile } from '../../hack/stack/supervisor.ts';

export const STACK_VARIABLE = 'TIDEGATE_E2E_STACK';

export interface TestStack {
  readonly description: StackDescription;
  readonly control: StackControl;
  readonly kube: KubeRequest;
}

/** The stack that all end-to-end tests share. */
export function testStack(): TestStack {
  const dir = process.env[STACK_VARIABLE];
  if (dir === undefined)
    throw new Error(`${STACK_VARIABLE} is not set: end-to-end tests run through jest's global set-up`);
  const description = JSON.parse(readFileSync(readyFile(dir), 'utf8')) as StackDescription;
  const { url, caFile, adminToken } = description.kube;
  return { description, control: connectStack(dir), kube: kubeRequester({ url, caFile, token: adminToken }) };
}
