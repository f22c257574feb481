/** Makes the reference pages of docs/reference/ from the same schemas as the CRDs. */
import { openAPISchemaOf, type Schema } from './crd.ts';
import { API_VERSION, CATEGORY } from './group.ts';
import type { KindDefinition } from './kind.ts';

const GENERATED = '<!-- Generated from src/api by hack/generate.ts. Do not edit. -->';

const cell = (value: string): string => value.replaceAll('|', '\\|').replaceAll('\n', ' ');
const table = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map(cell).join(' | ')} |`).join('\n');

function typeOf(schema: Schema): string {
  if (schema.items) return `list of ${typeOf(schema.items)}`;
  if (schema.additionalProperties) return `map of ${typeOf(schema.additionalProperties)}`;
  if (schema.format === 'date-time') return 'time';
  return schema.format ?? schema.type;
}

function boundsOf(schema: Schema): string {
  const range = (low: number | undefined, high: number | undefined, unit: string): string[] => {
    if (low === undefined && high === undefined) return [];
    // Counters are bounded by what a number holds exactly; that is no news to a reader.
    if (high === undefined || high >= Number.MAX_SAFE_INTEGER) return low ? [`≥ ${low}${unit}`] : [];
    return [low === undefined ? `≤ ${high}${unit}` : `${low} … ${high}${unit}`];
  };
  const item = schema.items ? boundsOf(schema.items) : '';
  return [
    ...(schema.enum ?? []).map((value) => `\`${value}\``),
    ...range(schema.minimum, schema.maximum, ''),
    ...range(schema.minLength, schema.maxLength, ' characters'),
    ...range(schema.minItems, schema.maxItems, ' items'),
    ...(schema.maxProperties === undefined ? [] : [`≤ ${schema.maxProperties} entries`]),
    ...(item ? [`each ${item}`] : []),
  ].join(', ');
}

function fieldRows(schema: Schema, path: string): string[][] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, field]) => {
    const here = `${path}.${name}`;
    const required = schema.required?.includes(name) ? ' (required)' : '';
    const below = field.items
      ? fieldRows(field.items, `${here}[]`)
      : field.additionalProperties
        ? fieldRows(field.additionalProperties, `${here}.*`)
        : fieldRows(field, here);
    return [[`\`${here}\`${required}`, typeOf(field), boundsOf(field), field.description ?? ''], ...below];
  });
}

function rulesOf(schema: Schema, path: string): string[][] {
  const own = (schema['x-kubernetes-validations'] ?? []).map(({ message, fieldPath }) => [
    `\`${path}${fieldPath ?? ''}\``,
    message,
  ]);
  const children = Object.entries(schema.properties ?? {}).flatMap(([name, field]) =>
    rulesOf(field, path ? `${path}.${name}` : name),
  );
  return [...own, ...children, ...(schema.items ? rulesOf(schema.items, `${path}[]`) : [])];
}

/** One page for a kind: columns, fields, rules. */
export function referencePage(kind: KindDefinition): string {
  const schema = openAPISchemaOf(kind);
  const { kind: name, namespaced, plural } = kind.resource;
  const fields = (part: 'spec' | 'status'): string =>
    table(['Field', 'Type', 'Allowed', 'Meaning'], fieldRows(schema.properties?.[part] ?? schema, part));
  return [
    GENERATED,
    `# ${name}`,
    kind.description,
    `\`${API_VERSION}\`, ${namespaced ? 'namespaced' : 'cluster-scoped'}. \`kubectl get ${plural}\`, short \`${kind.shortName}\`; in category \`${CATEGORY}\`. The same texts: \`kubectl explain ${kind.shortName}.spec --recursive\`.`,
    '## spec',
    fields('spec'),
    '## Rules',
    'The API server refuses an object that breaks one of these.',
    table(
      ['Where', 'Rule'],
      rulesOf(schema, '').map(([where, rule]) => [
        where === '``' ? '(whole object)' : (where ?? ''),
        rule ?? '',
      ]),
    ),
    '## status',
    'Written by the operator only. Conditions and their reasons: [conditions.md](conditions.md).',
    fields('status'),
    '## Columns',
    table(
      ['Column', 'Shown', 'From', 'Meaning'],
      kind.columns.map((column) => [
        column.name,
        column.wide ? '`-o wide`' : 'always',
        `\`${column.jsonPath}\``,
        column.description,
      ]),
    ),
    '',
  ].join('\n\n');
}

/** One page for the states, conditions and reasons of all kinds. */
export function conditionsPage(kinds: readonly KindDefinition[]): string {
  const entries = (all: Readonly<Record<string, string>>): string[][] =>
    Object.entries(all).map(([name, meaning]) => [`\`${name}\``, meaning]);
  const sections = kinds.flatMap((kind) => [
    `## ${kind.resource.kind}`,
    ...(kind.states
      ? ['`status.state`, one word for people:', table(['State', 'Meaning'], entries(kind.states))]
      : []),
    '`status.conditions`, for programs:',
    table(['Condition', 'Meaning when True'], entries(kind.conditions)),
    'Reasons:',
    table(['Reason', 'Meaning'], entries(kind.reasons)),
  ]);
  return [
    GENERATED,
    '# States, conditions and reasons',
    'A condition has a status (`True`, `False`, `Unknown`), a reason from the tables below, a message for people that names what was found and what is allowed, and the generation it was made from. Before the operator has seen an object, its first condition is `Unknown` with reason `Pending`. Events carry the same reasons; a job has `Suspended` and `Resumed` besides.',
    ...sections,
    '',
  ].join('\n\n');
}
