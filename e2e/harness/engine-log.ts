/** The engines' own logs of calls: what they were asked, whatever Tidegate says of it. */
import { existsSync, readFileSync } from 'node:fs';
import type { EngineCall } from '../checker/check.ts';

/** As src/sim writes it: a line when a call arrives and one when it ends, in one file over all restarts. */
interface LoggedCall {
  n: number;
  marker: string | null;
  arrivedAt: number;
  endedAt: number | null;
  status: number | null;
  end: 'answered' | 'turnedAway' | 'aborted' | 'broken' | null;
  fault: string | null;
}

/** The calls whose marker names this job. */
export function engineCalls(logFiles: readonly string[], job: string): EngineCall[] {
  return logFiles.flatMap((path) => {
    const calls = new Map<string, LoggedCall>();
    const lines = existsSync(path) ? readFileSync(path, 'utf8').split('\n') : [];
    for (const line of lines) {
      if (!line.includes(`marker:${job}_`)) continue;
      const call = JSON.parse(line) as LoggedCall;
      calls.set(`${call.n}@${call.arrivedAt}`, call);
    }
    return [...calls.values()].map((call) => ({
      marker: call.marker ?? undefined,
      ending: endingOf(call),
      arrivedAt: call.arrivedAt,
      endedAt: call.endedAt ?? undefined,
    }));
  });
}

/** Faults after which the answer is still a good one. */
const HARMLESS = new Set([null, 'slow']);

/** Answers about the engine rather than the line, which cost a line no attempt. */
const ABOUT_THE_ENGINE = new Set([401, 403, 404]);

function endingOf({ end, status, fault }: LoggedCall): EngineCall['ending'] {
  switch (end) {
    case null:
      return 'open';
    case 'broken':
      return 'failed';
    case 'aborted':
    case 'turnedAway':
      return end;
    case 'answered':
      if (status !== null && ABOUT_THE_ENGINE.has(status)) return 'turnedAway';
      return status !== null && status < 300 && HARMLESS.has(fault) ? 'answered' : 'failed';
  }
}
