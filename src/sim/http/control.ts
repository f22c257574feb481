/**
 * The control API of the look-alike: `GET /_control` shows the faults and counts, `POST /_control` changes the
 * faults, `GET /_control/calls?since=N` is the log of calls. No inference server has such a thing.
 */
import { z } from 'zod';
import { FAULTS, faultRule, type FaultTable } from './faults.ts';
import type { CallLog } from './call-log.ts';

export const controlRequest = z.strictObject({
  /** Replaces all rules. */
  set: z.array(faultRule).optional(),
  /** Adds rules after those there are. */
  add: z.array(faultRule).optional(),
  /** Removes all rules and listens again. */
  clear: z.literal(true).optional(),
  /** Stops listening and drops every connection, for so long or until `clear`. */
  refuse: z.union([z.literal(true), z.strictObject({ milliseconds: z.int().min(1) })]).optional(),
});
export type ControlRequest = z.infer<typeof controlRequest>;

export interface Controlled {
  faults: FaultTable;
  calls: CallLog;
  /** Stops listening; undefined = until `listen`. */
  refuse(milliseconds: number | undefined): Promise<void>;
  listen(): Promise<void>;
}

export interface ControlAnswer {
  status: number;
  body: object;
  /** What must wait until this answer has left, since it may close the connection it leaves by. */
  afterwards?: () => Promise<void>;
}

/** @param safe whether this API can be reached while the engine refuses. */
export async function control(
  method: string,
  url: string,
  body: string,
  controlled: Controlled,
  safe: boolean,
): Promise<ControlAnswer> {
  const [path, query] = url.split('?', 2);
  if (method === 'GET' && path === '/_control/calls') {
    const since = Number(new URLSearchParams(query).get('since') ?? 0);
    return { status: 200, body: { counts: controlled.calls.counts(), calls: controlled.calls.calls(since) } };
  }
  if (method === 'GET' && path === '/_control') return { status: 200, body: stateOf(controlled) };
  if (method !== 'POST' || path !== '/_control') {
    return { status: 404, body: { error: 'there are GET and POST /_control and GET /_control/calls' } };
  }
  const request = controlRequest.safeParse(jsonOf(body));
  if (!request.success)
    return { status: 400, body: { error: z.prettifyError(request.error), faults: FAULTS } };
  return apply(request.data, controlled, safe);
}

export async function apply(
  request: ControlRequest,
  controlled: Controlled,
  safe: boolean,
): Promise<ControlAnswer> {
  const { set, add, clear, refuse } = request;
  if (refuse === true && !safe) {
    return {
      status: 400,
      body: {
        error: 'refuse without milliseconds would lock you out: start with --control-port, or say how long',
      },
    };
  }
  if (clear === true) {
    controlled.faults.set([]);
    await controlled.listen();
  }
  if (set !== undefined) controlled.faults.set(set);
  if (add !== undefined) controlled.faults.add(add);
  const state = { status: 200, body: stateOf(controlled) };
  if (refuse === undefined) return state;
  return { ...state, afterwards: () => controlled.refuse(refuse === true ? undefined : refuse.milliseconds) };
}

const stateOf = ({ faults, calls }: Controlled): object => ({ faults: faults.rules, counts: calls.counts() });

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
