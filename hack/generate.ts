/**
 * Everything that is generated from the schemas, codes and metrics that src/ declares. `node hack/generate.ts` writes
 * it, hack/verify-generated.ts compares.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { format, resolveConfig } from 'prettier';
import { stringify } from 'yaml';
import { crdOf } from '../src/api/crd.ts';
import { GROUP } from '../src/api/group.ts';
import { KINDS } from '../src/api/kinds.ts';
import { errorsPage } from './errors-page.ts';
import { metricsPage } from './metrics-page.ts';
import { conditionsPage, referencePage } from '../src/api/reference.ts';

export const ROOT = path.resolve(import.meta.dirname, '..');

/** Folders that hold nothing but generated files. */
export const GENERATED_FOLDERS = ['crds'];

const YAML_HEAD = '# Generated from src/api by hack/generate.ts. Do not edit.\n';

/** Path below the repository root → content. */
export async function generated(): Promise<Map<string, string>> {
  const page = async (file: string, content: string) =>
    files.set(file, await format(content, { ...(await resolveConfig(ROOT)), filepath: file }));
  const files = new Map<string, string>();
  for (const kind of KINDS) {
    files.set(
      `crds/${GROUP}_${kind.resource.plural}.yaml`,
      YAML_HEAD + stringify(crdOf(kind), { lineWidth: 100, aliasDuplicateObjects: false }),
    );
    await page(`docs/reference/${kind.singular}.md`, referencePage(kind));
  }
  // Lets `kubectl apply -k` and config/ take the folder as a whole.
  const crds = [...files.keys()]
    .filter((file) => file.startsWith('crds/'))
    .map((file) => path.basename(file));
  files.set(
    'crds/kustomization.yaml',
    YAML_HEAD +
      stringify({
        apiVersion: 'kustomize.config.k8s.io/v1beta1',
        kind: 'Kustomization',
        resources: crds,
      }),
  );
  await page('docs/reference/conditions.md', conditionsPage(KINDS));
  await page('docs/reference/errors.md', errorsPage());
  await page('docs/reference/metrics.md', await metricsPage());
  return files;
}

if (import.meta.main) {
  for (const [file, content] of await generated()) {
    const target = path.join(ROOT, file);
    await mkdir(path.dirname(target), { recursive: true });
    await writeFile(target, content);
    console.log(`wrote ${file}`);
  }
}
