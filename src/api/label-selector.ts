/** A label selector as Kubernetes defines it (metav1.LabelSelector): schema and meaning. */
import { z } from 'zod';
import { list, object, text } from './fields.ts';
import { withRules } from './rules.ts';

const NAME = '[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?';
const labelKey = () =>
  text(316, { min: 1, pattern: new RegExp(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?${NAME}$`) });
const labelValue = () => text(63, { pattern: new RegExp(`^(${NAME})?$`) });

const requirement = withRules(
  object({
    key: labelKey().describe('The label that the requirement is about.'),
    operator: z
      .enum(['In', 'NotIn', 'Exists', 'DoesNotExist'])
      .describe('How the label relates to the values: In, NotIn, Exists or DoesNotExist.'),
    values: list(labelValue().describe('A label value.'), 32)
      .optional()
      .describe('Required for In and NotIn; not allowed for Exists and DoesNotExist.'),
  }),
  [
    {
      cel: "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
      holds: (self) =>
        (self.operator === 'In' || self.operator === 'NotIn') === (self.values ?? []).length > 0,
      message: 'values are required for In and NotIn, and not allowed for Exists and DoesNotExist',
    },
  ],
);

export const labelSelector = () =>
  object({
    matchLabels: z
      .record(z.string(), labelValue())
      .superRefine((labels, context) => {
        const found = Object.keys(labels).length;
        if (found > 32) context.addIssue({ code: 'custom', message: `at most 32 labels, found ${found}` });
      })
      .meta({ maxProperties: 32 })
      .optional()
      .describe('Labels that must all be there with these values.'),
    matchExpressions: list(requirement.describe('One requirement on one label.'), 32)
      .optional()
      .describe('Requirements that must all be met.'),
  }).meta({ 'x-kubernetes-map-type': 'atomic' });

export type LabelSelector = z.output<ReturnType<typeof labelSelector>>;

/** Whether the labels meet every requirement. An empty selector selects everything, as in Kubernetes. */
export function selects(selector: LabelSelector, labels: Readonly<Record<string, string>>): boolean {
  const valueOf = (key: string): string | undefined => (Object.hasOwn(labels, key) ? labels[key] : undefined);
  const exact = Object.entries(selector.matchLabels ?? {}).every(([key, value]) => valueOf(key) === value);
  return (
    exact &&
    (selector.matchExpressions ?? []).every(({ key, operator, values = [] }) => {
      const value = valueOf(key);
      switch (operator) {
        case 'In':
          return value !== undefined && values.includes(value);
        case 'NotIn':
          return value === undefined || !values.includes(value);
        case 'Exists':
          return value !== undefined;
        case 'DoesNotExist':
          return value === undefined;
      }
    })
  );
}
