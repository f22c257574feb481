/** The commands of the docs, run as they stand against the stack: what a page says must work. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { environmentLines } from '../hack/stack/description.ts';
import { TEST_MODEL } from './harness/input.ts';
import { testStack } from './harness/run.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const MINUTES = 60_000;

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'tidegate-docs-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

/** The commands of a page below the heading that begins like this. */
function commands(page: string, heading: string): string {
  const text = readFileSync(path.join(ROOT, 'docs/tasks', page), 'utf8');
  const section = text.split(/^## /m).find((part) => part.startsWith(heading));
  if (section === undefined) throw new Error(`${page} has no section "${heading}"`);
  return [...section.matchAll(/^```\n(.*?)^```$/gms)].map((block) => block[1]).join('\n');
}

async function shell(script: string): Promise<string> {
  const environment = environmentLines(testStack().description);
  const { stdout } = await promisify(execFile)(
    'bash',
    ['-euo', 'pipefail', '-c', `${environment}${script}`],
    {
      cwd: folder,
      timeout: 2 * MINUTES,
    },
  );
  return stdout;
}

test(
  'run-a-batch-job.md: from the input to the answers',
  async () => {
    const page = 'run-a-batch-job.md';
    const script = [
      commands(page, '1. The input'),
      commands(page, '2. Model and job'),
      'kubectl wait --for=condition=Complete ibj/claims --timeout=90s >&2',
      commands(page, '5. Fetch the answers'),
    ].join('\n');
    // The look-alikes of this stack serve another model.
    const output = await shell(script.replaceAll('meta-llama/Llama-3.1-8B-Instruct', TEST_MODEL));
    const lines = output.trimEnd().split('\n');
    expect(lines).toContain('s3://tidegate/out/claims/results.jsonl');
    const answers = lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as object);
    expect(answers).toMatchObject([
      { custom_id: 'claim-1', response: { status_code: 200 }, error: null },
      { custom_id: 'claim-2', response: { status_code: 200 }, error: null },
      { custom_id: 'claim-3', response: { status_code: 200 }, error: null },
    ]);
  },
  3 * MINUTES,
);

test(
  'clean-up.md: jobs are deleted, and lose their finalizers by hand where no operator does it',
  async () => {
    const helper = commands('clean-up.md', 'Uninstall').split('\n').slice(-6).join('\n');
    expect(helper).toContain('finalizers');
    const output = await shell(
      `kubectl create namespace docs-uninstall >&2
       kubectl -n docs-uninstall apply -f - >&2 <<EOF
       {"apiVersion": "tidegate.dev/v1alpha1", "kind": "InferenceBatchJob",
        "metadata": {"name": "stuck", "finalizers": ["example.com/stuck"]},
        "spec": {"modelRef": {"name": "none"}, "endpoint": "/v1/completions", "suspend": true,
                 "input": {"s3": {"bucket": "none", "keys": ["none"]}},
                 "output": {"s3": {"bucket": "none", "prefix": "none/"}}}}
EOF
       kubectl -n docs-uninstall delete ibj stuck --wait=false >&2
       ${helper.replaceAll('--all-namespaces', '--namespace docs-uninstall')}
       kubectl -n docs-uninstall wait --for=delete ibj/stuck --timeout=60s
       kubectl -n docs-uninstall get ibj -o name`,
    );
    expect(output).toContain('stuck');
    expect(output).not.toContain('inferencebatchjob.tidegate.dev/stuck\n');
  },
  3 * MINUTES,
);
