/** Samples and fixtures of src/api, for the tests that judge them by zod and by the API server. */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { parseAllDocuments } from 'yaml';

const ROOT = path.resolve(import.meta.dirname, '..');

export interface Manifest {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string };
  spec?: unknown;
}

export interface Fixture {
  name: string;
  manifest: Manifest;
}

export interface InvalidFixture extends Fixture {
  /** The field that the verdict must name, as the API server writes it. */
  field: string;
  /** What the verdict must say. */
  says: string[];
}

function read(folder: string): { name: string; text: string; manifests: Manifest[] }[] {
  return readdirSync(path.join(ROOT, folder))
    .filter((file) => file.endsWith('.yaml'))
    .sort()
    .map((file) => {
      const text = readFileSync(path.join(ROOT, folder, file), 'utf8');
      const manifests = parseAllDocuments(text).map((document) => document.toJS() as Manifest);
      return { name: file.replace(/\.yaml$/, ''), text, manifests };
    });
}

const fixturesOf = (folder: string): Fixture[] =>
  read(folder).flatMap(({ name, manifests }) =>
    manifests.map((manifest, index) => ({ name: index === 0 ? name : `${name}#${index + 1}`, manifest })),
  );

/** What users copy: everything in manifests/. */
export const samples = (): Fixture[] => fixturesOf('manifests');

/** Valid objects at the edge of what is allowed. */
export const validFixtures = (): Fixture[] => fixturesOf('src/api/fixtures/valid');

/** Objects with one mistake each; the head comment says which field the verdict names and what it says. */
export function invalidFixtures(): InvalidFixture[] {
  return read('src/api/fixtures/invalid').map(({ name, text, manifests }) => {
    const heads = (key: string): string[] =>
      [...text.matchAll(new RegExp(`^# ${key}: (.*)$`, 'gm'))].map((match) => match[1] ?? '');
    const [manifest] = manifests;
    const [field] = heads('field');
    if (!manifest || field === undefined) throw new Error(`${name}.yaml needs one object and "# field: …"`);
    return { name, manifest, field, says: heads('says') };
  });
}
