/**
 * Named moments at which a test may kill, freeze or fail this process: `await failPoint('worker.shard.result-written')`.
 * Armed only by the text of TIDEGATE_FAIL_POINTS, `name=action[@nth][;name=action…]`:
 * `kill` (SIGKILL to ourselves), `stop` (SIGSTOP; goes on after SIGCONT), `throw`, `hang` (never comes back), `exit`.
 * With `@n` only the n-th time the moment is reached, otherwise each time.
 */
import type { FailPoint, Logger } from './contract.ts';

export const FAIL_ACTIONS = ['kill', 'stop', 'throw', 'hang', 'exit'] as const;
export type FailAction = (typeof FAIL_ACTIONS)[number];

export interface ArmedPoint {
  name: string;
  action: FailAction;
  /** 1 = the first time; undefined = each time. */
  nth: number | undefined;
}

/** What an armed point throws; never caught by name anywhere but in tests. */
export class FailPointError extends Error {
  readonly code = 'FailPoint';
  constructor(name: string) {
    super(`fail point ${name}`);
    this.name = 'FailPointError';
  }
}

const POINT = /^([a-z0-9][a-z0-9.-]*)=([a-z]+)(?:@([1-9][0-9]*))?$/;

/** @throws Error when the text is not of the form above: a process armed by mistake must not start. */
export function parseFailPoints(text: string): ArmedPoint[] {
  return text
    .split(';')
    .map((part) => part.trim())
    .filter((part) => part !== '')
    .map((part) => {
      const [, name, action, nth] = POINT.exec(part) ?? [];
      if (name === undefined || !isAction(action)) {
        throw new Error(
          `fail point "${part}" is not name=action[@nth] with action one of ${FAIL_ACTIONS.join(', ')}`,
        );
      }
      return { name, action, nth: nth === undefined ? undefined : Number(nth) };
    });
}

const isAction = (text: string | undefined): text is FailAction =>
  (FAIL_ACTIONS as readonly (string | undefined)[]).includes(text);

/** Exit code of the action `exit`, so that a test can tell it from a crash. */
export const FAIL_EXIT_CODE = 86;

const unarmed: FailPoint = () => Promise.resolve();

/** @param text the value of TIDEGATE_FAIL_POINTS; undefined or empty arms nothing. */
export function createFailPoints(text: string | undefined, options: { logger: Logger }): FailPoint {
  const points = parseFailPoints(text ?? '');
  if (points.length === 0) return unarmed;
  options.logger.warn('fail points are armed: this process is meant to break', { failPoints: text });
  const reached = new Map<string, number>();
  return async (name) => {
    const hit = (reached.get(name) ?? 0) + 1;
    reached.set(name, hit);
    const point = points.find((each) => each.name === name && (each.nth === undefined || each.nth === hit));
    if (point === undefined) return;
    options.logger.warn('fail point', { failPoint: name, action: point.action, hit });
    await act(point);
  };
}

function act(point: ArmedPoint): Promise<void> {
  switch (point.action) {
    case 'kill':
      process.kill(process.pid, 'SIGKILL');
      return new Promise(() => undefined);
    case 'stop':
      process.kill(process.pid, 'SIGSTOP');
      return Promise.resolve();
    case 'throw':
      return Promise.reject(new FailPointError(point.name));
    case 'hang':
      return new Promise(() => undefined);
    case 'exit':
      process.exit(FAIL_EXIT_CODE);
  }
}
