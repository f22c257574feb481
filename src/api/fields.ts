/**
 * The building blocks of every schema here. They accept exactly what the API server accepts from the CRD made of
 * them: lengths count characters (not UTF-16 units), unknown fields are refused, every size has a bound.
 */
import { z } from 'zod';
import { withRules, type Rule } from './rules.ts';

/** What may change when; the generator writes it into the description of the field and of all below it. */
export type Mutability = 'Immutable' | 'MutableUntilFinished' | 'MutableOnce' | 'Mutable';

export const object = z.strictObject;

/** A string of at most `max` characters. `pattern` must mean the same to RE2 and to JavaScript: no lookaround. */
export function text(max: number, options: { min?: number; pattern?: RegExp } = {}) {
  const min = options.min ?? 0;
  const base = options.pattern ? z.string().regex(options.pattern) : z.string();
  return base
    .superRefine((value, context) => {
      const length = [...value].length;
      if (length > max) {
        context.addIssue({ code: 'custom', message: `must have at most ${max} characters, has ${length}` });
      }
      if (length < min) {
        context.addIssue({ code: 'custom', message: `must have at least ${min} characters, has ${length}` });
      }
    })
    .meta({ maxLength: max, ...(min > 0 && { minLength: min }) });
}

export const int32 = (min: number, max: number) => z.int().min(min).max(max).meta({ format: 'int32' });
export const count = () => z.int().min(0).meta({ format: 'int64' });
export const percent = () => int32(0, 100);
export const seconds = int32;

/** RFC 3339; the API server checks the format. */
export const time = () => z.iso.datetime({ offset: true }).meta({ maxLength: 64 });

const LABEL = '[a-z0-9]([-a-z0-9]*[a-z0-9])?';
export const namespaceName = () => text(63, { min: 1, pattern: new RegExp(`^${LABEL}$`) });
export const objectName = () => text(253, { min: 1, pattern: new RegExp(`^${LABEL}(\\.${LABEL})*$`) });

export const secretRef = () =>
  object({ name: objectName().describe('Name of the Secret.') }).meta({ 'x-kubernetes-map-type': 'atomic' });

const HOST = String.raw`(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)`;
const PORT = String.raw`(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?`;
const BASE_URL = `^https?://${HOST}${PORT}(/[A-Za-z0-9._~/-]*)?$`;

/** Credentials belong into a Secret; a query or fragment would be lost when a path is appended. */
export const baseUrl = () =>
  withRules(text(512, { min: 1 }), [
    {
      cel: `self.matches(r'${BASE_URL}')`,
      holds: (self) => new RegExp(BASE_URL).test(self),
      message:
        'must be an address such as https://host:8000 or http://host/path: scheme http or https, no credentials, query or fragment',
    },
  ]);

const keyRules: Rule<string>[] = [
  {
    cel: "!self.contains('..')",
    holds: (self) => !self.includes('..'),
    message: "must not contain '..'",
  },
  {
    cel: String.raw`!self.matches(r'\p{Cc}')`,
    holds: (self) => !/\p{Cc}/u.test(self),
    message: 'must not contain control characters',
  },
];

/** An S3 key or prefix. */
export const objectKey = (max: number, rules: readonly Rule<string>[] = []) =>
  withRules(text(max, { min: 1 }), [...keyRules, ...rules]);

/** A list that is replaced whole. */
export const list = <T extends z.ZodType>(item: T, max: number, min = 0) =>
  z.array(item).min(min).max(max).meta({ 'x-kubernetes-list-type': 'atomic' });

/** A list without duplicates; server-side apply merges it by value. */
export const set = <T extends z.ZodType<string>>(item: T, max: number, min = 0) =>
  z
    .array(item)
    .min(min)
    .max(max)
    .superRefine((values, context) => {
      values.forEach((value, index) => {
        if (values.indexOf(value) !== index) {
          context.addIssue({ code: 'custom', message: `Duplicate value: "${value}"`, path: [index] });
        }
      });
    })
    .meta({ 'x-kubernetes-list-type': 'set' });

/** A condition as Kubernetes defines it (metav1.Condition), with a bounded message. */
export const condition = object({
  type: text(64, { min: 1, pattern: /^[A-Z][A-Za-z]*$/ }).describe('Type of the condition, in PascalCase.'),
  status: z.enum(['True', 'False', 'Unknown']).describe('True, False or Unknown.'),
  reason: text(128, { min: 1, pattern: /^[A-Z][A-Za-z0-9]*$/ }).describe(
    'Why the condition has this status: a constant for programs, listed in docs/reference/conditions.md.',
  ),
  message: text(1024).describe('What a person needs to know: what was found, what is allowed, what to do.'),
  lastTransitionTime: time().describe('When the status last changed.'),
  observedGeneration: count()
    .exactOptional()
    .describe('metadata.generation that the condition was made from.'),
});

export type Condition = z.output<typeof condition>;

export const conditions = () =>
  z
    .array(condition.describe('One condition (metav1.Condition).'))
    .max(16)
    .meta({ 'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['type'] });
