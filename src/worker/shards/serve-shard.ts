/**
 * One shard from the queue to its result object: what is already decided is looked up, what is left is sent, and the
 * result is written whole, once. A shard that must not go on here leaves its finished records as a checkpoint and
 * is given back without its done bit; the operator queues it again when it should run.
 */
import { jobLayout, type JobLayout } from '../../batch/layout.ts';
import { addOutcomes, addUsage, tally } from '../../batch/counts.ts';
import type { LineRecord, Shard, Source } from '../../batch/model.ts';
import { answerRecord, invalidLineRecord, lineIdentity, neverRanRecord } from '../../batch/records.ts';
import { requestBody } from '../../batch/request.ts';
import type { EngineClient } from '../../engine/contract.ts';
import type { Clock, FailPoint, Logger } from '../../observability/contract.ts';
import type { JobDescriptor, ShardTask, WorkerQueue } from '../../queue/contract.ts';
import type { Credentials, JobStores } from '../credentials.ts';
import type { Holds } from '../holds.ts';
import { problemOf, type ProblemError } from '../problems.ts';
import type { WorkerSettings } from '../settings.ts';
import { sleep, type StoreAccess } from '../store-access.ts';
import type { ByteBudget } from './byte-budget.ts';
import { Checkpointer } from './checkpointer.ts';
import type { Dispatcher } from './dispatcher.ts';
import { doneOf, readDecided } from './decided.ts';
import { type IndexCache, readLines } from './open-shard.ts';
import { readSaved, type SavedRecord } from './saved-records.ts';
import { type PendingLine, ShardRun } from './shard-run.ts';
import { RESULT_PART_BYTES, SavedRecordLost, writeShardResult } from './write-result.ts';

export interface ShardDependencies {
  queue: Pick<WorkerQueue, 'workerId' | 'job' | 'onJobChange' | 'shardDone' | 'shardProgress' | 'report'>;
  engine: Pick<EngineClient, 'send'>;
  credentials: Pick<Credentials, 'engineKey' | 'engineKeyRefused'>;
  access: StoreAccess;
  index: IndexCache;
  dispatcher: Dispatcher;
  holds: Pick<Holds, 'raise'>;
  /** Input of open shards. */
  inputs: ByteBudget;
  /** Answers that are not in S3 yet. */
  answers: ByteBudget;
  /** Checkpoints read back, and results that are put together. */
  results: ByteBudget;
  clock: Clock;
  random: () => number;
  /** Tells two openings of a shard by one worker apart. */
  newWriterId: () => string;
  logger: Logger;
  failPoint: FailPoint;
  settings: WorkerSettings;
  /** The worker stops: first no new line is started, later what is in flight is ended. */
  draining: { finish: AbortSignal; abort: AbortSignal };
  counters: {
    record: (record: LineRecord) => void;
    retry: (reason: string) => void;
  };
}

/** A shard that need not or cannot go on here, and why; no problem of the job. */
class HandBack extends Error {}

/** A shard as it was found. */
interface LoadedShard {
  shard: Shard;
  source: Source;
  /** By ordinal: those in checkpoints, and those of lines that cannot run. */
  records: Map<number, SavedRecord | LineRecord>;
  /** By ordinal, what earlier openings of the shard have used up. */
  attempts: ReadonlyMap<number, number>;
}

/**
 * Resolves when the queue entry may go: the shard is done, or given back.
 * @param signal the entry is no longer ours, or the worker's grace period is over
 */
export async function serveShard(
  deps: ShardDependencies,
  task: ShardTask,
  signal: AbortSignal,
): Promise<void> {
  const descriptor = await deps.queue.job(task.uid);
  if (descriptor?.run !== 'Run') return;
  const logger = deps.logger.child({
    job: task.uid,
    namespace: descriptor.namespace,
    name: descriptor.name,
    shard: task.shard,
  });
  const open = new OpenShard({ ...deps, logger }, descriptor, task.shard, signal);
  try {
    await open.serve();
  } catch (error) {
    if (error instanceof HandBack || open.over) return;
    const { reason, message, retryable } = problemOf(error);
    logger.warn('shard given back', { reason, error });
    await deps.queue.report(task.uid, {
      problem: { task: 'shard', reason, message, retryable, at: deps.clock.now() },
    });
    // The operator queues the shard again within seconds; a store that is down is not asked in a tight loop.
    await sleep(deps.settings.initialStoreRetryMilliseconds, signal);
  } finally {
    open.close();
  }
}

class OpenShard {
  readonly #deps: ShardDependencies;
  readonly #shardNumber: number;
  readonly #layout: JobLayout;
  readonly #writer: string;
  /** Ends whatever is under way: the entry is no longer ours, or the job is being deleted. */
  readonly #stop = new AbortController();
  /** No new line is to start: the job is suspended or stopped, or this worker is. */
  readonly #closed = new AbortController();
  /** By ordinal, what unfinished lines used up in this opening. */
  readonly #attempts = new Map<number, number>();
  readonly #unsubscribe: () => void;
  #descriptor: JobDescriptor;
  #run: ShardRun | undefined;
  #closing: 'No' | 'Finish' | 'Abort' = 'No';
  #inputBytes = 0;
  #storeWaits = false;

  constructor(deps: ShardDependencies, descriptor: JobDescriptor, shard: number, signal: AbortSignal) {
    this.#deps = deps;
    this.#descriptor = descriptor;
    this.#shardNumber = shard;
    this.#layout = jobLayout(descriptor.output.prefix, descriptor.uid);
    this.#writer = `${deps.queue.workerId}-${deps.newWriterId()}`;
    const onEntryLost = (): void => {
      this.#stop.abort(signal.reason);
      this.#closeRun('Abort');
    };
    const { draining, queue } = deps;
    const subscriptions = [
      queue.onJobChange(descriptor.uid, (changed) => this.#onJobChange(changed)),
      onAbort(draining.finish, () => this.#closeRun('Finish')),
      onAbort(draining.abort, () => this.#closeRun('Abort')),
      onAbort(signal, onEntryLost),
    ];
    this.#unsubscribe = () => {
      for (const unsubscribe of subscriptions) unsubscribe();
    };
  }

  /** Nothing that happens to the shard here matters any more. */
  get over(): boolean {
    return this.#stop.signal.aborted;
  }

  async serve(): Promise<void> {
    const { access, failPoint, queue } = this.#deps;
    const uid = this.#descriptor.uid;
    await failPoint('worker.shard.taken');
    const decided = await access.once(this.#descriptor, ({ output }) =>
      readDecided(output, this.#layout, this.#shardNumber, this.#stop.signal),
    );
    if (decided !== undefined) return queue.shardDone(uid, this.#shardNumber, doneOf(decided));

    const loaded = await access.once(this.#descriptor, (stores) => this.#load(stores));
    const checkpointer = this.#checkpointer(loaded.records);
    try {
      const end = await this.#runLines(loaded, checkpointer);
      if (end === 'Complete') await this.#decide(loaded, checkpointer);
      else if (this.#descriptor.run !== 'Gone') await checkpointer.flush(this.#attempts);
    } finally {
      checkpointer.discard();
    }
  }

  close(): void {
    this.#unsubscribe();
    if (this.#run !== undefined) this.#deps.dispatcher.remove(this.#run);
    this.#releaseInput();
  }

  /** Everything that is known of the shard before the first line is sent. */
  async #load({ output }: JobStores): Promise<LoadedShard> {
    const { index, logger, results } = this.#deps;
    const uid = this.#descriptor.uid;
    const summary = await index.summary(output, this.#layout);
    const shard = await index.shard(output, this.#layout, this.#shardNumber);
    const source = summary.sources[shard.source];
    if (source === undefined) throw new Error(`the index of job ${uid} has no source ${shard.source}`);
    const reading = { store: output, layout: this.#layout, jobUID: uid, logger };
    const saved = await readSaved({ ...reading, memory: results, signal: this.#stop.signal }, shard.shard);
    const records: LoadedShard['records'] = saved.records;
    for (const [position, line] of shard.lines.entries()) {
      if (line.error === undefined) continue;
      const identity = lineIdentity(uid, shard, position);
      records.set(identity.ordinal, invalidLineRecord(identity, source.inputKey, line.error));
    }
    return { shard, source, records, attempts: saved.attempts };
  }

  async #runLines(loaded: LoadedShard, checkpointer: Checkpointer): Promise<'Complete' | 'HandedBack'> {
    const { shard, source, records, attempts } = loaded;
    if (records.size === shard.lines.length) return 'Complete';
    const { inputs, dispatcher } = this.#deps;
    await inputs.acquire(shard.length, AbortSignal.any([this.#stop.signal, this.#closed.signal]));
    this.#inputBytes = shard.length;
    // An unpacked source lies with the output, a plain one with the input.
    const lines = await this.#deps.access.once(this.#descriptor, ({ input, output }) =>
      readLines(source.key === source.inputKey ? input : output, source, shard, this.#stop.signal),
    );
    const pending: PendingLine[] = [];
    for (const [position, { line, customId }] of shard.lines.entries()) {
      const ordinal = shard.firstOrdinal + position;
      const bytes = lines.get(position);
      if (records.has(ordinal) || bytes === undefined || customId === null) continue;
      const used = attempts.get(ordinal) ?? 0;
      pending.push({ position, ordinal, line, customId, bytes, attempts: used, busyAnswers: 0 });
    }
    this.#run = this.#newRun(loaded, pending, checkpointer);
    if (this.#closing !== 'No') this.#run.close(this.#closing);
    dispatcher.add(this.#run);
    const end = await this.#run.ended;
    dispatcher.remove(this.#run);
    this.#releaseInput();
    return end;
  }

  #newRun(
    { shard, source, records }: LoadedShard,
    pending: PendingLine[],
    checkpointer: Checkpointer,
  ): ShardRun {
    const { queue, holds, dispatcher, answers, clock, random, settings, counters } = this.#deps;
    const uid = this.#descriptor.uid;
    const { endpoint } = this.#descriptor;
    let { counts, usage } = tally(records.values());
    queue.shardProgress(uid, shard.shard, counts, usage);
    return new ShardRun(
      {
        send: (request) => this.#send(request),
        record: (line, fate) => {
          const identity = lineIdentity(uid, shard, line.position);
          if (fate.kind === 'answered') return answerRecord(identity, endpoint, fate.answer);
          const error = { code: 'request_failed', message: fate.message, param: null };
          return neverRanRecord(identity, source.inputKey, 'failed', error);
        },
        onHold: (descriptor, address, outcome) => {
          if (outcome.reason === 'Unauthorized') this.#deps.credentials.engineKeyRefused(descriptor);
          counters.retry(outcome.reason);
          holds.raise(descriptor, address, outcome);
        },
        onBusy: (address, milliseconds) => dispatcher.cool(address, milliseconds),
        onRecord: (record) => {
          this.#attempts.delete(record.ordinal);
          checkpointer.add(record);
          counters.record(record);
          counts = addOutcomes(counts, tally([record]).counts);
          usage = addUsage(usage, record.usage);
          queue.shardProgress(uid, shard.shard, counts, usage);
        },
        onRetry: counters.retry,
        onAttempt: ({ ordinal, attempts }) => this.#attempts.set(ordinal, attempts),
        mayStart: () => !this.#storeWaits && !checkpointer.congested,
        wake: () => dispatcher.wake(),
        budget: answers,
        clock,
        random,
        settings,
      },
      this.#descriptor,
      shard,
      pending,
    );
  }

  async #send(request: {
    address: string;
    line: PendingLine;
    descriptor: JobDescriptor;
    signal: AbortSignal;
  }) {
    const { address, line, descriptor, signal } = request;
    let apiKey: string | undefined;
    if (descriptor.authSecretRef !== undefined) {
      try {
        apiKey = await this.#deps.credentials.engineKey(descriptor);
      } catch (error) {
        const { message } = error as Error;
        return {
          kind: 'hold',
          scope: 'Deployment',
          reason: 'Unauthorized',
          status: undefined,
          message,
        } as const;
      }
    }
    return this.#deps.engine.send({
      address,
      path: descriptor.endpoint,
      body: requestBody(line.bytes, descriptor),
      apiKey,
      requestId: `${descriptor.uid}-${line.ordinal}-${line.attempts}`,
      timeoutMilliseconds: descriptor.requestTimeoutSeconds * 1000,
      signal,
    });
  }

  #checkpointer(records: LoadedShard['records']): Checkpointer {
    const { answers, failPoint, settings } = this.#deps;
    return new Checkpointer({
      jobUID: this.#descriptor.uid,
      shard: this.#shardNumber,
      writer: this.#writer,
      write: async (sequence, bytes) => {
        const key = this.#layout.checkpoint(this.#shardNumber, this.#writer, sequence);
        const { signal } = this.#stop;
        const { etag } = await this.#untilDone(({ output }) => output.put(key, bytes, { signal }));
        return { key, etag };
      },
      onSaved: (saved) => {
        for (const record of saved) records.set(record.ordinal, record);
      },
      budget: answers,
      failPoint,
      settings,
      onError: (error) => {
        this.#deps.logger.warn('checkpoint not written', { error });
        this.#closeRun('Finish');
      },
    });
  }

  /** From here on nobody else's result for the shard counts. */
  async #decide({ shard, records }: LoadedShard, checkpointer: Checkpointer): Promise<void> {
    const { queue, results, failPoint } = this.#deps;
    const uid = this.#descriptor.uid;
    await checkpointer.settle();
    for (const record of checkpointer.unsaved) records.set(record.ordinal, record);
    const writing = { layout: this.#layout, jobUID: uid, writer: this.#writer, memory: results };
    const { signal } = this.#stop;
    const header = await this.#untilDone(({ output }) =>
      writeShardResult(
        { ...writing, store: output, signal, partBytes: RESULT_PART_BYTES },
        shard,
        records.values(),
      ),
    ).catch((error: unknown) => {
      if (!(error instanceof SavedRecordLost)) throw error;
      this.#deps.logger.warn('shard given back; lines of the lost checkpoint run again', { error });
      throw new HandBack(error.message);
    });
    await failPoint('worker.shard.result-written');
    await queue.shardDone(uid, shard.shard, doneOf(header));
    await failPoint('worker.shard.done');
    await this.#removeCheckpoints();
  }

  /** Left-over checkpoints are harmless (clean-up removes them), so a failure here is not one of the shard. */
  async #removeCheckpoints(): Promise<void> {
    try {
      await this.#deps.access.once(this.#descriptor, async ({ output }) => {
        const keys: string[] = [];
        for await (const { key } of output.list(this.#layout.checkpoints(this.#shardNumber))) keys.push(key);
        if (keys.length > 0) await output.deleteMany(keys);
      });
    } catch (error) {
      this.#deps.logger.debug('checkpoints not removed', { error });
    }
  }

  /** While the store is not usable no further line is sent: its answer would only wait in memory. */
  async #untilDone<T>(operation: (stores: JobStores) => Promise<T>): Promise<T> {
    const { access, dispatcher } = this.#deps;
    try {
      return await access.untilDone(this.#descriptor, this.#stop.signal, operation, (problem) => {
        this.#storeWaits = true;
        this.#report(problem);
      });
    } finally {
      this.#storeWaits = false;
      dispatcher.wake();
    }
  }

  #report({ reason, message, retryable }: ProblemError): void {
    const problem = { task: 'shard', reason, message, retryable, at: this.#deps.clock.now() } as const;
    // Only says why the job waits; the wait goes on without Redis as well.
    this.#deps.queue.report(this.#descriptor.uid, { problem }).catch(() => undefined);
  }

  #onJobChange(changed: JobDescriptor | undefined): void {
    // Unknown: Redis lost it. What is in flight may end; the operator writes the descriptor again.
    if (changed === undefined) return;
    this.#descriptor = changed;
    this.#run?.update(changed);
    switch (changed.run) {
      case 'Run':
        return;
      case 'Suspend':
        return this.#closeRun('Finish');
      case 'Stop':
        return this.#closeRun('Abort');
      case 'Gone':
        this.#stop.abort(new HandBack('the job is being deleted'));
        return this.#closeRun('Abort');
    }
  }

  #closeRun(how: 'Finish' | 'Abort'): void {
    if (this.#closing !== 'Abort') this.#closing = how;
    this.#closed.abort(new HandBack('no new line is to start'));
    this.#run?.close(how);
  }

  #releaseInput(): void {
    this.#deps.inputs.release(this.#inputBytes);
    this.#inputBytes = 0;
  }
}

/** Calls back when the signal ends, at once where it has; returns how to unsubscribe. */
function onAbort(signal: AbortSignal, listener: () => void): () => void {
  if (signal.aborted) listener();
  else signal.addEventListener('abort', listener, { once: true });
  return () => signal.removeEventListener('abort', listener);
}
