/**
 * Faults that are switched on from outside, and which call meets which. Rules are tried in order; the first that
 * fits a call decides. Pure, apart from the counters of the rules.
 */
import { z } from 'zod';

export const FAULTS = {
  '401': 'refuses the key',
  '403': 'answers 403 with an empty body',
  '429': 'answers 429, with Retry-After where `retryAfterSeconds` is given',
  '500': 'answers 500',
  '503': 'answers 503, with Retry-After where `retryAfterSeconds` is given',
  'model-not-found': 'answers 404 as for a model that is not served',
  'route-not-found': 'answers 404 as for a route that does not exist',
  'bad-request': 'answers 400, as for a line that is wrong',
  hang: 'never answers',
  'reset-before': 'resets the connection before a byte of the answer',
  reset: 'resets the connection in the middle of the answer',
  slow: 'waits `delayMilliseconds` (default 1000) before it works on the call',
  garbage: 'answers 200 with something that is no JSON',
  'error-inside': 'answers 200 with an `error` inside',
  huge: 'answers 200 with an object of `bytes` (default 65 MiB)',
  die: 'kills the process with SIGKILL; only for `tidegate engine`',
} as const;
export type Fault = keyof typeof FAULTS;
const FAULT_NAMES = Object.keys(FAULTS) as [Fault, ...Fault[]];

export const faultRule = z.strictObject({
  fault: z.enum(FAULT_NAMES),
  /** Only calls whose body contains this. */
  match: z.string().min(1).optional(),
  /** Only the next so many of those. */
  next: z.int().min(1).optional(),
  /** Only every so-many-th of those. */
  every: z.int().min(1).optional(),
  retryAfterSeconds: z.number().min(0).optional(),
  delayMilliseconds: z.number().min(0).optional(),
  bytes: z.int().min(1).optional(),
});
export type FaultRule = z.infer<typeof faultRule>;

interface ArmedRule {
  rule: FaultRule;
  seen: number;
}

/** Faults of the server as a whole: they also meet the cheap questions (`/v1/models`, `/health`). */
const WHOLE_SERVER: ReadonlySet<Fault> = new Set([
  '401',
  '500',
  '503',
  'hang',
  'model-not-found',
  'reset-before',
]);

export class FaultTable {
  #rules: ArmedRule[] = [];

  get rules(): FaultRule[] {
    return this.#rules.map(({ rule, seen }) =>
      rule.next === undefined ? rule : { ...rule, next: Math.max(0, rule.next - seen) },
    );
  }

  set(rules: readonly FaultRule[]): void {
    this.#rules = rules.map((rule) => ({ rule, seen: 0 }));
  }

  add(rules: readonly FaultRule[]): void {
    this.#rules.push(...rules.map((rule) => ({ rule, seen: 0 })));
  }

  /** The fault that a call with this body meets; counts the call. */
  meet(body: string): FaultRule | undefined {
    for (const armed of this.#rules) {
      const { rule } = armed;
      if (rule.match !== undefined && !body.includes(rule.match)) continue;
      if (rule.next !== undefined && armed.seen >= rule.next) continue;
      armed.seen++;
      if (rule.every !== undefined && armed.seen % rule.every !== 0) continue;
      return rule;
    }
    return undefined;
  }

  /** The fault that a question about the server meets: only rules that spare no call. */
  meetQuestion(): FaultRule | undefined {
    return this.#rules
      .map(({ rule }) => rule)
      .find(
        ({ fault, match, next, every }) =>
          WHOLE_SERVER.has(fault) && match === undefined && next === undefined && every === undefined,
      );
  }
}
