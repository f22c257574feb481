/** Every duration and bound of the operator, with its default, so that tests and trials can shorten them. */
import type { FeedSettings } from './inference-batch-job/feed.ts';
import type { ProgressSettings } from './inference-batch-job/progress.ts';
import type { PublishSettings } from './inference-batch-job/publish.ts';

export interface JobSettings {
  feed: FeedSettings;
  publish: PublishSettings;
  progress: ProgressSettings;
  /** BullMQ priority of every job until PriorityPolicy exists; 1 is first, and 0 would jump the queue. */
  priority: number;
  /** Progress of one job is written at most this often. */
  progressWriteMilliseconds: number;
  /** Back-off of a task that reported a problem. */
  retryInitialMilliseconds: number;
  retryCeilingMilliseconds: number;
  /** A live job is looked at again after this at the latest, ± 20 %, whatever was or was not heard of it. */
  resyncMilliseconds: number;
  /** How long a problem stays in the status after it was last seen. */
  problemShownMilliseconds: number;
  /** An outage of Redis shorter than this is not shown in any status. */
  unavailableShownMilliseconds: number;
  /** A job that gets no line done for this long while all places are taken is Throttled. */
  throttledAfterMilliseconds: number;
  /** A shard held for longer than this has lines in flight: workers give back one that gets no place sooner. */
  provenPlacesMilliseconds: number;
  /**
   * What workers get at most, after a stop, to check in the lines that they have finished, before the rest is decided;
   * less when no worker holds a shard of the job any more.
   */
  stopGraceMilliseconds: number;
  /** How long an ended job whose input was never indexed waits for workers to find out what can be recorded. */
  unindexedEndMilliseconds: number;
  /** How long deletion waits for clean-up; then the object goes and the prefix left behind is counted. */
  deletionMilliseconds: number;
  /** The same for a deletion that is several times older than that, because leaders were lost meanwhile. */
  lateDeletionMilliseconds: number;
}

export interface OperatorSettings {
  job: JobSettings;
  /** Progress writes of all jobs together. */
  progressWritesPerSecond: number;
  /** Keys reconciled at a time, per kind. */
  parallelReconciles: number;
  /** Numbers of a ModelDeployment's status are written at most this often. */
  deploymentNumbersMilliseconds: number;
  /** How often holds, capacity and workers are read from Redis. */
  liveMilliseconds: number;
  /** How often one job's descriptor is looked for in Redis, to notice that Redis came back empty. */
  canaryMilliseconds: number;
  planValidMilliseconds: number;
  planRenewMilliseconds: number;
  /** Allows loopback addresses as replicas: local trials only. */
  allowLoopback: boolean;
}

const MiB = 1024 * 1024;

export const defaultOperatorSettings: OperatorSettings = {
  job: {
    feed: { shardsPerWorker: 4, maxWindowShards: 256, refeedMilliseconds: 5_000, refeedsPerSecond: 40 },
    publish: {
      smallFileBytes: 5 * MiB,
      smallFileDelayMilliseconds: 1_000,
      tailPercent: 10,
      maxDelayMilliseconds: 600_000,
    },
    progress: {
      rateWindowMilliseconds: 60_000,
      sampleMilliseconds: 5_000,
      rateMinimumMilliseconds: 5_000,
      noticeablePercent: 5,
    },
    priority: 1_000,
    progressWriteMilliseconds: 5_000,
    retryInitialMilliseconds: 2_000,
    retryCeilingMilliseconds: 30_000,
    resyncMilliseconds: 60_000,
    problemShownMilliseconds: 30_000,
    unavailableShownMilliseconds: 10_000,
    throttledAfterMilliseconds: 30_000,
    provenPlacesMilliseconds: 8_000,
    stopGraceMilliseconds: 10_000,
    unindexedEndMilliseconds: 60_000,
    deletionMilliseconds: 30_000,
    lateDeletionMilliseconds: 10_000,
  },
  progressWritesPerSecond: 20,
  parallelReconciles: 8,
  deploymentNumbersMilliseconds: 10_000,
  liveMilliseconds: 2_000,
  canaryMilliseconds: 1_000,
  planValidMilliseconds: 600_000,
  planRenewMilliseconds: 60_000,
  allowLoopback: false,
};
