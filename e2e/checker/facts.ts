/** What the checker judges: read from the real store, the API server and the engines' own log. */
import type { InputObject } from './input-lines.ts';
import type { Outcome } from './published-records.ts';

/** The parts of an InferenceBatchJob that the checker reads. */
export interface JobObject {
  metadata: { name: string; namespace?: string; uid?: string; generation?: number };
  spec: { retry?: { maxAttempts?: number } };
  status?: JobStatus;
}

export interface JobStatus {
  state?: string;
  conditions?: { type: string; status: string; reason: string; message: string }[];
  counts?: { total: number } & Record<Outcome, number>;
  progress?: string;
  percent?: number;
  usage?: { inputTokens?: number; cachedInputTokens?: number; outputTokens?: number };
  outputs?: { results?: string; errors?: string; manifest?: string };
  recentErrors?: unknown[];
  completionTime?: string;
}

/** One request that reached the engine, as its own log has it. */
export interface EngineCall {
  marker: string | undefined;
  /**
   * answered: a 2xx left whole. failed: another answer, or a fault in mid-answer. aborted: the client hung up.
   * open: still running. turnedAway: 429, 503 or a refused connection; costs no work and is counted apart.
   */
  ending: 'answered' | 'failed' | 'aborted' | 'open' | 'turnedAway';
  /** Epoch milliseconds. */
  arrivedAt: number;
  /** undefined while it is open, and for ever when the engine was killed under it. */
  endedAt: number | undefined;
}

export interface JobFacts {
  /** As the API server has it now; after a deletion, as it was last seen. */
  job: JobObject;
  input: readonly InputObject[];
  results: Buffer | undefined;
  errors: Buffer | undefined;
  manifest: Buffer | undefined;
  calls: readonly EngineCall[];
  /** Keys below `<prefix>_tidegate/`, and unfinished uploads below the prefix. */
  leftovers: readonly string[];
}
