/** How a kind is declared; crd.ts and reference.ts make everything else of it. */
import { z } from 'zod';
import { API_VERSION, type ResourceData } from './group.ts';
import { objectName, namespaceName } from './fields.ts';
import type { TransitionRule } from './rules.ts';

export interface PrinterColumn {
  name: string;
  type: 'string' | 'integer' | 'date';
  jsonPath: string;
  description: string;
  /** Shown only by `kubectl get -o wide`. */
  wide?: true;
}

export interface KindDefinition<Spec extends z.ZodType = z.ZodType, Status extends z.ZodType = z.ZodType> {
  resource: ResourceData;
  singular: string;
  shortName: string;
  description: string;
  spec: Spec;
  status: Status;
  /** What a new object shows before the operator has seen it. */
  statusDefault: z.input<Status>;
  columns: PrinterColumn[];
  /** What each condition means while True. */
  conditions: Readonly<Record<string, string>>;
  /** Every reason of every condition, and what it means. */
  reasons: Readonly<Record<string, string>>;
  /** What each word of `status.state` means. */
  states?: Readonly<Record<string, string>>;
  /** Rules that need spec and status together. */
  transitions: TransitionRule[];
}

/** Judges a whole manifest as the API server does in strict field validation; status is ignored there too. */
export function manifestSchema<Spec extends z.ZodType, Status extends z.ZodType>(
  kind: KindDefinition<Spec, Status>,
) {
  return z.strictObject({
    apiVersion: z.literal(API_VERSION),
    kind: z.literal(kind.resource.kind),
    metadata: z.looseObject({ name: objectName(), namespace: namespaceName().optional() }),
    spec: kind.spec,
    status: kind.status.optional(),
  });
}
