/**
 * What a role takes from its environment. Every variable is checked before anything starts; a wrong one ends the
 * process with a sentence that names it, what was found and what is allowed.
 */
import { readFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { z } from 'zod';

const json = z.json();
/** What a room's settings are changed to; what is not named keeps its default. */
const overrides = z.record(z.string(), json);

const settingsJson = z
  .string()
  .transform((text, context) => {
    try {
      return JSON.parse(text) as unknown;
    } catch {
      context.addIssue({ code: 'custom', message: 'is no JSON' });
      return z.NEVER;
    }
  })
  .pipe(
    z.strictObject({
      operator: overrides.optional(),
      worker: overrides.optional(),
      queue: overrides.optional(),
      storage: overrides.optional(),
      engine: overrides.optional(),
      kube: overrides.optional(),
    }),
  );

const flag = z.enum(['0', '1', 'true', 'false']).transform((text) => text === '1' || text === 'true');
const list = z.string().transform((text) =>
  text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== ''),
);

const environment = z.object({
  REDIS_URL: z.url({ protocol: /^rediss?$/, error: 'must be a redis:// or rediss:// URL' }),
  TIDEGATE_REDIS_PREFIX: z
    .string()
    .regex(/^[a-z0-9-]{1,32}$/, 'must be 1 to 32 of a-z, 0-9 and -')
    .default('tg'),
  TIDEGATE_HTTP_HOST: z.string().default('0.0.0.0'),
  TIDEGATE_HTTP_PORT: z.coerce.number().int().min(0).max(65535).default(8080),
  TIDEGATE_LOG_LEVEL: z.enum(['error', 'warn', 'info', 'debug']).default('info'),
  TIDEGATE_ALLOW_LOOPBACK: flag.default(false),
  TIDEGATE_IDENTITY_NAMESPACES: list.default([]),
  TIDEGATE_SPILL_DIR: z.string().default(tmpdir()),
  TIDEGATE_FAIL_POINTS: z.string().optional(),
  TIDEGATE_SETTINGS: settingsJson.default({}),
  POD_NAME: z.string().default(hostname()),
  POD_NAMESPACE: z.string().default('tidegate-system'),
});

export interface Environment {
  redisUrl: string;
  redisPrefix: string;
  httpHost: string;
  httpPort: number;
  logLevel: 'error' | 'warn' | 'info' | 'debug';
  allowLoopback: boolean;
  identityNamespaces: string[];
  spillDirectory: string;
  failPoints: string | undefined;
  settings: z.output<typeof settingsJson>;
  podName: string;
  podNamespace: string;
}

export type Room = keyof Environment['settings'];

/** A sentence for the person who started the process; printed without a stack. */
export class UsageError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'UsageError';
  }
}

/** @throws UsageError naming every variable that is missing or wrong. */
export function readEnvironment(env: Record<string, string | undefined>): Environment {
  const parsed = environment.safeParse(env);
  if (!parsed.success) {
    const faults = parsed.error.issues.map(
      (issue) =>
        `${issue.path.join('.')}: ${env[String(issue.path[0])] === undefined ? 'is not set' : issue.message}`,
    );
    throw new UsageError(`the environment cannot be used:\n  ${faults.join('\n  ')}`);
  }
  const { data } = parsed;
  return {
    redisUrl: data.REDIS_URL,
    redisPrefix: data.TIDEGATE_REDIS_PREFIX,
    httpHost: data.TIDEGATE_HTTP_HOST,
    httpPort: data.TIDEGATE_HTTP_PORT,
    logLevel: data.TIDEGATE_LOG_LEVEL,
    allowLoopback: data.TIDEGATE_ALLOW_LOOPBACK,
    identityNamespaces: data.TIDEGATE_IDENTITY_NAMESPACES,
    spillDirectory: data.TIDEGATE_SPILL_DIR,
    failPoints: data.TIDEGATE_FAIL_POINTS,
    settings: data.TIDEGATE_SETTINGS,
    podName: data.POD_NAME,
    podNamespace: data.POD_NAMESPACE,
  };
}

/**
 * The room's defaults with this environment's changes over them, at any depth.
 * @throws UsageError for a setting that the room does not have, or of another type.
 */
export function withOverrides<T extends object>(room: Room, defaults: T, env: Environment): T {
  return overlaid(room, defaults, env.settings[room] ?? {}) as T;
}

function overlaid(path: string, defaults: object, changes: object): object {
  const result: Record<string, unknown> = { ...defaults };
  for (const [name, value] of Object.entries(changes) as [string, unknown][]) {
    const expected = result[name];
    if (!Object.hasOwn(result, name)) {
      throw new UsageError(
        `TIDEGATE_SETTINGS: ${path}.${name} is unknown; allowed: ${Object.keys(result).join(', ')}`,
      );
    }
    if (kindOf(value) !== kindOf(expected)) {
      throw new UsageError(
        `TIDEGATE_SETTINGS: ${path}.${name} is a ${kindOf(value)}; allowed: a ${kindOf(expected)}`,
      );
    }
    result[name] =
      kindOf(value) === 'object' ? overlaid(`${path}.${name}`, expected as object, value as object) : value;
  }
  return result;
}

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return 'list';
  return value === null ? 'null' : typeof value;
}

export function version(): string {
  const file = new URL('../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;
}
