/** Makes the CustomResourceDefinition of a kind from its schemas. */
import { z } from 'zod';
import { CATEGORY } from './group.ts';
import type { Mutability } from './fields.ts';
import type { KindDefinition } from './kind.ts';
import { transitionOf, type CELValidation } from './rules.ts';

/** A structural schema as CRDs have it. */
export interface Schema {
  type: string;
  description?: string;
  format?: string;
  enum?: string[];
  default?: unknown;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema;
  items?: Schema;
  'x-kubernetes-list-type'?: string;
  'x-kubernetes-list-map-keys'?: string[];
  'x-kubernetes-map-type'?: string;
  'x-kubernetes-validations'?: CELValidation[];
}

/** What zod writes: ours, plus what a CRD must not have. */
interface RawSchema extends Omit<Schema, 'properties' | 'additionalProperties' | 'items'> {
  mutability?: Mutability;
  properties?: Record<string, RawSchema>;
  additionalProperties?: RawSchema | boolean;
  items?: RawSchema;
}

const MUTABILITY: Record<Mutability, string> = {
  Immutable: 'Immutable.',
  MutableUntilFinished: 'May change until the job has finished.',
  MutableOnce: 'May be set once, until the job has finished.',
  Mutable: 'May change at any time.',
};

/** What a person reads in `kubectl explain`: meaning, default, mutability. */
function describe(raw: RawSchema, mutability: Mutability | undefined): string | undefined {
  if (raw.description === undefined) return undefined;
  const value = raw.default;
  const isScalar = ['string', 'number', 'boolean'].includes(typeof value);
  return [
    raw.description,
    ...(isScalar ? [`Default: ${String(value)}.`] : []),
    ...(mutability ? [MUTABILITY[mutability]] : []),
  ].join(' ');
}

/** The server judges a default by the rules of its object before it fills in the defaults below: so fill them in here. */
function filled(value: unknown, properties: Record<string, RawSchema> | undefined): unknown {
  if (properties === undefined || typeof value !== 'object' || value === null) return value;
  const defaults = Object.entries(properties)
    .filter(([, child]) => child.default !== undefined)
    .map(([name, child]) => [name, filled(child.default, child.properties)]);
  return { ...(Object.fromEntries(defaults) as object), ...value };
}

function structural(raw: RawSchema, inherited?: Mutability): Schema {
  const { mutability, description: _, properties, additionalProperties, items, type, ...rest } = raw;
  const effective = mutability ?? inherited;
  const description = describe(raw, effective);
  // zod spells date-times out as a pattern; the API server knows the format, and offsets other than Z.
  if (rest.format === 'date-time') delete rest.pattern;
  return {
    type,
    ...(description !== undefined && { description }),
    ...rest,
    ...(rest.default !== undefined && { default: filled(rest.default, properties) }),
    ...(items && { items: structural(items) }),
    ...(properties && {
      properties: Object.fromEntries(
        Object.entries(properties).map(([name, child]) => [name, structural(child, effective)]),
      ),
    }),
    // `false` is how zod says that unknown fields are refused; a CRD says it by not naming them.
    ...(typeof additionalProperties === 'object' && {
      additionalProperties: structural(additionalProperties),
    }),
  };
}

const schemaOf = (schema: z.ZodType): Schema =>
  structural(z.toJSONSchema(schema, { target: 'openapi-3.0', io: 'input' }) as unknown as RawSchema);

/** The structural schema of a whole object of this kind. */
export function openAPISchemaOf(kind: KindDefinition): Schema {
  return {
    type: 'object',
    description: kind.description,
    required: ['spec'],
    properties: {
      apiVersion: { type: 'string', description: 'Version of the schema of this object.' },
      kind: { type: 'string', description: 'Kind of this object.' },
      metadata: { type: 'object' },
      spec: { ...schemaOf(kind.spec), description: 'What is wanted.' },
      status: {
        ...schemaOf(kind.status),
        description: 'What is; written by the operator only.',
        default: kind.statusDefault,
      },
    },
    ...(kind.transitions.length > 0 && {
      'x-kubernetes-validations': kind.transitions.map(transitionOf),
    }),
  };
}

export function crdOf(kind: KindDefinition) {
  const { group, version, plural, kind: name, namespaced } = kind.resource;
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${plural}.${group}` },
    spec: {
      group,
      names: {
        plural,
        singular: kind.singular,
        kind: name,
        listKind: `${name}List`,
        shortNames: [kind.shortName],
        categories: [CATEGORY],
      },
      scope: namespaced ? 'Namespaced' : 'Cluster',
      versions: [
        {
          name: version,
          served: true,
          storage: true,
          additionalPrinterColumns: kind.columns.map(({ wide, ...column }) => ({
            ...column,
            ...(wide && { priority: 1 }),
          })),
          schema: { openAPIV3Schema: openAPISchemaOf(kind) },
          subresources: { status: {} },
        },
      ],
    },
  };
}
