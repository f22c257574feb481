/** What `gather` reads, what `decide` remembers, and what it wants done. Plain data. */
import type { InferenceBatchJob, InferenceBatchJobStatus } from '../../api/inference-batch-job.ts';
import type { ModelDeployment } from '../../api/model-deployment.ts';
import type { JobDescriptor, JobState, Problem, Task } from '../../queue/contract.ts';
import type { Availability } from '../model-deployment/availability.ts';
import type { Sample } from './progress.ts';

export interface Moment {
  /** Epoch milliseconds. */
  now: number;
  /** Milliseconds that never go back. */
  monotonic: number;
}

export interface JobSnapshot {
  job: InferenceBatchJob;
  /** The object that modelRef names, if it exists. */
  deployment: ModelDeployment | undefined;
  /** Labels of the job's own namespace; undefined where it is not known. */
  namespaceLabels: Readonly<Record<string, string>> | undefined;
  availability: Availability | undefined;
  /** undefined while it is not known. */
  liveWorkers: number | undefined;
  /** Redis came back empty a moment ago and grants no places yet. */
  grantsPaused: boolean;
  /** Jobs that are being fed now, this one or not: spreads re-feeding. */
  fedJobs: number;
  /** What Redis knows; undefined while Redis does not answer. Any part of it may have been lost. */
  queue: JobState | undefined;
  memory: JobMemory;
  /** Uniform in [0, 1): spreads alarms. */
  random: number;
}

/**
 * What the leader keeps between two looks at a job. Only rates, alarms and savings: losing it with the process loses
 * nothing a user was told. Times are monotonic.
 */
export interface JobMemory {
  readonly samples: readonly Sample[];
  readonly progressWrittenAt?: number | undefined;
  /** Lines ended when last seen, and since when they are that many. */
  readonly ended?: { readonly lines: number; readonly since: number } | undefined;
  /** Shards that were fed last and when the whole window was; undefined: unknown, so they may lie in the queue. */
  readonly fed?: { readonly shards: readonly number[]; readonly at: number } | undefined;
  /** Waiting shards were taken out of the queue, and none was fed since. */
  readonly withdrawn?: boolean | undefined;
  readonly publish?:
    | { readonly tailSince: number; readonly fromShard: number; readonly askedAt?: number | undefined }
    | undefined;
  /** Attempts of the task that had this problem. */
  readonly retries?: { readonly key: string; readonly count: number } | undefined;
  /** The last problem, kept in view after it was cleared for another attempt. */
  readonly problem?: { readonly problem: Problem; readonly seenAt: number } | undefined;
  /** Since when Redis does not answer. */
  readonly unavailableSince?: number | undefined;
  readonly deletionSeenAt?: number | undefined;
  /** When this process first acted on the recorded end. */
  readonly stoppedAt?: number | undefined;
}

export const EMPTY_MEMORY: JobMemory = { samples: [] };

export interface EventDraft {
  type: 'Normal' | 'Warning';
  reason: string;
  message: string;
}

export type Report = 'problem' | 'final' | 'index' | 'cleaned';

/** Everything that `apply` does, in the order of its fields; what is absent is left alone. */
export interface JobPlan {
  addFinalizer?: boolean;
  descriptor?: JobDescriptor;
  /** Takes waiting shards out of the queue. */
  withdraw?: boolean;
  markMissing?: readonly number[];
  clear?: readonly Report[];
  tasks?: readonly { task: Task; delayMilliseconds: number }[];
  feed?: readonly number[];
  /** The whole status as it shall be. `urgent`: a transition, written at once; otherwise progress, within budget. */
  status?: { draft: InferenceBatchJobStatus; urgent: boolean };
  /** Sent after the status was written. */
  events?: readonly EventDraft[];
  /** Removes everything Redis knows of the job. */
  forget?: boolean;
  /** The prefix whose working objects stay behind, and why, for the log. */
  leftBehind?: { prefix: string; why: string };
  removeFinalizer?: boolean;
  /** Deletes the object: its time to live is over. */
  deleteObject?: boolean;
  requeueAfterMilliseconds?: number | undefined;
  memory: JobMemory;
}
