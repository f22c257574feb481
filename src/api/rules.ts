/**
 * Rules that a schema's shape cannot say. Each is written twice, once for zod and once in CEL for the API server,
 * side by side here and held together by one table of cases (fixtures/), which both have to judge alike.
 */
import type { z } from 'zod';

export interface Rule<T> {
  /** Over `self`. */
  cel: string;
  holds: (self: T) => boolean;
  /** Says what is allowed. */
  message: string;
  /** The field at fault below the object that carries the rule. */
  field?: string;
}

/** A rule about a change: only the API server knows the old object, so it has no second form. */
export interface TransitionRule {
  /** Over `self` and `oldSelf`. */
  cel: string;
  message: string;
}

/** One entry of `x-kubernetes-validations`. */
export interface CELValidation {
  rule: string;
  message: string;
  fieldPath?: string;
}

const celOf = <T>(rule: Rule<T>): CELValidation => ({
  rule: rule.cel,
  message: rule.message,
  ...(rule.field && { fieldPath: `.${rule.field}` }),
});

export const transitionOf = (rule: TransitionRule): CELValidation => ({
  rule: rule.cel,
  message: rule.message,
});

/** The schema with the rules in both their forms. */
export function withRules<S extends z.ZodType>(
  schema: S,
  rules: readonly Rule<z.output<S>>[],
  transitions: readonly TransitionRule[] = [],
): S {
  const judged = schema.superRefine((self, context) => {
    for (const rule of rules) {
      if (rule.holds(self)) continue;
      context.addIssue({
        code: 'custom',
        message: rule.message,
        path: rule.field ? [rule.field] : [],
      });
    }
  });
  const validations = [...rules.map(celOf), ...transitions.map(transitionOf)];
  return judged.meta({ ...schema.meta(), 'x-kubernetes-validations': validations });
}

export const immutable = (field: string): TransitionRule => ({
  cel: 'self == oldSelf',
  message: `${field} is immutable: create a new object instead`,
});
