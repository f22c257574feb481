/**
 * The moments of a job's life at which something may break, and what may break. A moment is a fail point at which the
 * process that reaches it stops; while it is stopped, the fault happens; then it goes on, unless the fault killed it.
 * `make test` lets each moment meet the death of its own process; `make faults` plays the whole table.
 */

/** How the job goes: to its end, cancelled in mid-run, or deleted in mid-run. */
export type Course = 'completed' | 'cancelled' | 'deleted';

export interface Moment {
  failPoint: string;
  role: 'worker' | 'operator';
  course: Course;
  /** What has just happened, or is about to, in the words of cases.md. */
  title: string;
}

const worker = (failPoint: string, title: string, course: Course = 'completed'): Moment => ({
  ...{ failPoint, title, course },
  role: 'worker',
});
const operator = (failPoint: string, title: string, course: Course = 'completed'): Moment => ({
  ...{ failPoint, title, course },
  role: 'operator',
});

export const MOMENTS: readonly Moment[] = [
  operator('operator.job.finalizer-added', 'accepted, not queued'),
  operator('operator.job.described', 'described in Redis, index not queued'),
  operator('operator.job.index-queued', 'index queued, status not written'),
  worker('worker.index.taken', 'index taken, nothing written'),
  worker('claim.written', 'prefix claimed, index not begun'),
  worker('worker.index.built', 'index chunks written, summary not'),
  worker('worker.index.written', 'index written, status not'),
  worker('worker.index.reported', 'index reported, queue not acknowledged'),
  operator('operator.job.fed', 'shards queued, status not written'),
  worker('worker.shard.taken', 'shard taken, no line sent'),
  worker('worker.checkpoint.written', 'checkpoint written, shard open'),
  worker('worker.shard.result-written', 'shard result written, queue not acknowledged'),
  worker('worker.shard.done', 'shard counted, queue not acknowledged'),
  operator('operator.job.publish-queued', 'publish queued'),
  worker('publish.results.upload-created', 'publishing: upload begun'),
  worker('publish.results.others-aborted', 'publishing: other uploads aborted'),
  worker('publish.results.parts-uploaded', 'publishing: parts uploaded, not completed'),
  worker('publish.results.completed', 'published, status not'),
  worker('publish.pins-written', 'pins written'),
  operator('operator.job.finalize-queued', 'finalize queued'),
  worker('worker.finalize.taken', 'finalize taken'),
  worker('finalize.results-complete', 'every line decided, not all published'),
  worker('finalize.published', 'all published, not checked'),
  worker('finalize.manifest-written', 'manifest written, not reported'),
  worker('worker.finalize.reported', 'end reported, queue not acknowledged'),
  operator('operator.job.end-writing', 'end known, status not written'),
  operator('operator.job.end-written', 'terminal status written, clean-up not queued'),
  worker('cleanup.work-removed', 'working objects removed, not reported'),
  operator('operator.job.forgotten', 'forgotten in Redis, finalizer not removed'),
  operator('operator.job.finalizer-removing', 'cleaned up, finalizer not removed'),
  worker('finalize.shard-finished', 'cancel: one unfinished shard has its records', 'cancelled'),
  operator('operator.job.withdrawn', 'cancel: shards withdrawn, not finalised', 'cancelled'),
  worker('worker.finalize.taken', 'cancel: finalize taken', 'cancelled'),
  worker('worker.cleanup.taken', 'deletion: clean-up taken', 'deleted'),
  worker('cleanup.published', 'deletion: finished shards published', 'deleted'),
  worker('worker.cleanup.reported', 'deletion: cleaned up, queue not acknowledged', 'deleted'),
];

/** What happens while the process is stopped at the moment. */
export const FAULTS = {
  killed: 'the process is killed and started again',
  frozen: 'the process stays frozen until its lease and locks are gone, then goes on',
  'redis killed': 'Redis is killed and comes back with its append-only file',
  'redis wiped': 'Redis loses everything',
  's3 killed': 'the S3 server is killed and started again',
  'apiserver killed': 'the API server is killed and started again',
  'engine killed': 'an engine is killed and started again',
  'others killed': 'all processes of the other role are killed and started again',
  cancelled: 'the user cancels the job',
} as const;
export type Fault = keyof typeof FAULTS;

export interface Row {
  moment: Moment;
  fault: Fault;
}

/** Each moment with the death of its own process, and mid-run every fault. */
export function shortTable(): Row[] {
  const midRun = MOMENTS.find(({ failPoint }) => failPoint === 'worker.checkpoint.written');
  const others = (Object.keys(FAULTS) as Fault[]).filter((fault) => fault !== 'killed');
  return [
    ...MOMENTS.map((moment): Row => ({ moment, fault: 'killed' })),
    ...(midRun === undefined ? [] : others.map((fault): Row => ({ moment: midRun, fault }))),
  ];
}

export function fullTable(): Row[] {
  return MOMENTS.flatMap((moment) =>
    (Object.keys(FAULTS) as Fault[])
      // Nothing is left to cancel in a job that is being cancelled or deleted.
      .filter((fault) => fault !== 'cancelled' || moment.course === 'completed')
      .map((fault) => ({ moment, fault })),
  );
}
