/**
 * What the engine was asked, kept apart from what Tidegate says of it: the witness of tests. In a file each call has
 * a line when it arrives and one before its answer leaves, written through at once, so that a kill loses neither.
 */
import { closeSync, openSync, writeSync } from 'node:fs';

/**
 * - `answered`: an answer of any status was written.
 * - `turnedAway`: 429 or 503; the call cost the line nothing.
 * - `aborted`: the caller closed the connection first.
 * - `broken`: a fault of ours ended it without a whole answer.
 */
export type CallEnd = 'answered' | 'turnedAway' | 'aborted' | 'broken';

export interface Call {
  /** From 1, in order of arrival. */
  n: number;
  path: string;
  marker: string | null;
  requestId: string | null;
  /** Epoch milliseconds. */
  arrivedAt: number;
  endedAt: number | null;
  status: number | null;
  end: CallEnd | null;
  /** The fault it met. */
  fault: string | null;
}

export interface CallCounts {
  arrived: number;
  answered: number;
  turnedAway: number;
  aborted: number;
  broken: number;
  open: number;
}

/** Beyond this the oldest finished calls are kept in the file only. */
const KEPT_IN_MEMORY = 200_000;

export class CallLog {
  #file: number | undefined;
  readonly #now: () => number;
  #calls: Call[] = [];
  #arrived = 0;
  readonly #ended: Record<CallEnd, number> = { answered: 0, turnedAway: 0, aborted: 0, broken: 0 };

  constructor(now: () => number, path: string | undefined) {
    this.#now = now;
    this.#file = path === undefined ? undefined : openSync(path, 'a');
  }

  arrive(path: string, marker: string | undefined, requestId: string | undefined): Call {
    const call: Call = {
      n: ++this.#arrived,
      path,
      marker: marker ?? null,
      requestId: requestId ?? null,
      arrivedAt: this.#now(),
      endedAt: null,
      status: null,
      end: null,
      fault: null,
    };
    if (this.#calls.length >= KEPT_IN_MEMORY) this.#calls = this.#calls.slice(KEPT_IN_MEMORY / 2);
    this.#calls.push(call);
    this.#write(call);
    return call;
  }

  /** The first end counts: a caller that goes away after its answer was written aborted nothing. */
  end(call: Call, end: CallEnd, status: number | null): void {
    if (call.end !== null) return;
    call.end = end;
    call.status = status;
    call.endedAt = this.#now();
    this.#ended[end]++;
    this.#write(call);
  }

  counts(): CallCounts {
    const { answered, turnedAway, aborted, broken } = this.#ended;
    const open = this.#arrived - answered - turnedAway - aborted - broken;
    return { arrived: this.#arrived, answered, turnedAway, aborted, broken, open };
  }

  /** Calls with a number above `since`. */
  calls(since = 0): readonly Call[] {
    return since === 0 ? this.#calls : this.#calls.filter(({ n }) => n > since);
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    // A number that was closed may soon name another file.
    this.#file = undefined;
  }

  #write(call: Call): void {
    if (this.#file !== undefined) writeSync(this.#file, `${JSON.stringify(call)}\n`);
  }
}
