/**
 * Takes entries of one BullMQ queue, a few at a time. Adds to BullMQ's worker what it lacks here: an entry whose
 * lock is lost is told so; two runs of one entry never overlap in a process; a worker that stopped taking although
 * entries wait is replaced; closing ends within a given time.
 */
import { setMaxListeners } from 'node:events';
import { type Job, WaitingError, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import type { Clock, Logger } from '../observability/contract.ts';
import { baseOptions, logFaults, messageOf, reconnectWhenSilent, type RedisLink } from './connection.ts';
import { MAX_STALLS, retryPause } from './entries.ts';
import { GraceOver, LockLost } from './errors.ts';
import type { QueueSettings } from './settings.ts';

export interface ConsumerOptions {
  redisUrl: string;
  bullPrefix: string;
  queueName: string;
  workerId: string;
  concurrency: number;
  /** For questions about the queue itself. */
  link: RedisLink;
  clock: Clock;
  logger: Logger;
  settings: QueueSettings;
  /** Resolving ends the entry; a rejection is retried with back-off. */
  handle: (data: unknown, signal: AbortSignal) => Promise<void>;
  /** After the entry has left the queue. */
  onEnded: (data: unknown) => void;
}

interface Run {
  abort: AbortController;
  ended: Promise<void>;
}

/** One BullMQ worker with its connection; replaced as a whole. */
interface Engine {
  worker: Worker;
  client: Redis;
  stopWatching: () => void;
}

/** How many replacements without a single entry taken mean that replacing does not help. */
const HOPELESS_REPLACEMENTS = 3;

/** Errors in one second after which taking pauses for as long: BullMQ asks again without a pause. */
const ERRORS_PER_SECOND = 20;

export class QueueConsumer {
  readonly #options: ConsumerOptions;
  readonly #runs = new Map<string, Run>();
  readonly #watchdog: NodeJS.Timeout;
  #engine: Engine;
  /** Replaced workers that still have entries open. */
  readonly #retired = new Set<Engine>();
  #stopping = false;
  #starvedSince: number | undefined;
  #replacements = 0;
  #errors = 0;
  #errorWindow = -Infinity;

  constructor(options: ConsumerOptions) {
    this.#options = options;
    this.#engine = this.#start();
    this.#watchdog = setInterval(
      () => void this.#watch(),
      Math.max(20, options.settings.watchdogMilliseconds / 3),
    );
    this.#watchdog.unref();
  }

  get open(): number {
    return this.#runs.size;
  }

  /** False when even new workers take nothing although entries wait. */
  working(): boolean {
    return this.#replacements < HOPELESS_REPLACEMENTS;
  }

  /** Takes no further entry; those open go on. */
  stopTaking(): void {
    if (this.#stopping) return;
    this.#stopping = true;
    clearInterval(this.#watchdog);
    void this.#engine.worker.pause(true).catch(() => undefined);
  }

  /** Resolves when no entry is open. */
  drained(): Promise<void> {
    return this.#idle();
  }

  /** Waits for open entries, aborts them shortly before the time is over, and lets go of Redis whatever happens. */
  async close(graceMilliseconds: number): Promise<void> {
    this.stopTaking();
    const lastWarning = Math.min(5_000, graceMilliseconds / 5);
    if (!(await endsWithin(this.#idle(), graceMilliseconds - lastWarning))) {
      for (const [id, run] of this.#runs) run.abort.abort(new GraceOver(id));
      await endsWithin(this.#idle(), lastWarning);
    }
    const engines = [this.#engine, ...this.#retired];
    this.#retired.clear();
    await Promise.all(engines.map((engine) => this.#end(engine)));
  }

  #start(): Engine {
    const { redisUrl, bullPrefix, queueName, workerId, settings, clock, logger } = this.#options;
    const linkOptions = { redisUrl, connectionName: `tidegate-${queueName}`, clock, logger, settings };
    const client = new Redis(redisUrl, { ...baseOptions(linkOptions), maxRetriesPerRequest: null });
    logFaults(client, linkOptions);
    const worker = new Worker(queueName, (job: Job) => this.#process(job), {
      connection: client,
      prefix: bullPrefix,
      name: workerId,
      concurrency: this.#options.concurrency,
      lockDuration: settings.lockMilliseconds,
      stalledInterval: settings.stalledMilliseconds,
      maxStalledCount: MAX_STALLS,
      drainDelay: settings.idleBlockMilliseconds / 1_000,
      runRetryDelay: settings.retryMilliseconds,
      skipVersionCheck: true,
      settings: { backoffStrategy: (attempts: number) => retryPause(attempts, settings, Math.random) },
    });
    worker.on('error', (error) => this.#onError(worker, error));
    worker.on('lockRenewalFailed', (ids: string[]) => {
      for (const id of ids) this.#runs.get(id)?.abort.abort(new LockLost(id));
    });
    worker.on('completed', (job: Job) => this.#options.onEnded(job.data));
    return { worker, client, stopWatching: reconnectWhenSilent(client, settings) };
  }

  async #process(job: Job): Promise<void> {
    const id = job.id ?? '';
    if (this.#stopping) {
      await job.moveToWait(job.token);
      throw new WaitingError();
    }
    this.#starvedSince = undefined;
    this.#replacements = 0;
    const earlier = this.#runs.get(id);
    if (earlier !== undefined) {
      // Our lock was lost and the entry came back to us: the first run must end before the second starts.
      earlier.abort.abort(new LockLost(id));
      await earlier.ended;
    }
    const abort = new AbortController();
    // Every line of a shard may listen.
    setMaxListeners(0, abort.signal);
    const work = this.#handle(job, abort.signal);
    const run: Run = { abort, ended: work.then(noop, noop) };
    this.#runs.set(id, run);
    try {
      await work;
    } finally {
      if (this.#runs.get(id) === run) this.#runs.delete(id);
    }
  }

  async #handle(job: Job, signal: AbortSignal): Promise<void> {
    try {
      await this.#options.handle(job.data, signal);
    } catch (error) {
      const { queueName, logger } = this.#options;
      logger.warn('queue entry failed and will be tried again', {
        queue: queueName,
        entry: job.id,
        attempt: job.attemptsMade + 1,
        error: messageOf(error),
      });
      // BullMQ keeps the message in Redis; a whole one may be long.
      throw new Error(messageOf(error).slice(0, 200), { cause: error });
    }
  }

  #onError(worker: Worker, error: unknown): void {
    const { logger, queueName, clock, settings } = this.#options;
    logger.debug('queue worker fault', { queue: queueName, error: messageOf(error) });
    const now = clock.monotonic();
    if (now - this.#errorWindow > 1_000) {
      this.#errorWindow = now;
      this.#errors = 0;
    }
    this.#errors += 1;
    if (this.#errors !== ERRORS_PER_SECOND || this.#stopping) return;
    logger.warn('queue worker pauses after many faults', { queue: queueName, error: messageOf(error) });
    void worker.pause(true).catch(noop);
    setTimeout(() => {
      if (!this.#stopping && this.#engine.worker === worker) void worker.resume().catch(noop);
    }, settings.pollMilliseconds).unref();
  }

  /** Reports of BullMQ workers that do not take up again after a reconnect are many; this ends each of them. */
  async #watch(): Promise<void> {
    const { clock, settings, logger, queueName } = this.#options;
    if (this.#stopping || this.open >= this.#options.concurrency) {
      this.#starvedSince = undefined;
      return;
    }
    const waiting = await this.#waiting().catch(() => 0);
    const now = clock.monotonic();
    if (waiting === 0) {
      this.#starvedSince = undefined;
      return;
    }
    this.#starvedSince ??= now;
    if (now - this.#starvedSince < settings.watchdogMilliseconds) return;
    this.#starvedSince = undefined;
    this.#replacements += 1;
    logger.warn('queue worker takes nothing although entries wait; replaced', {
      queue: queueName,
      waiting,
      open: this.open,
      replacements: this.#replacements,
    });
    this.#replace();
  }

  #waiting(): Promise<number> {
    const { link, bullPrefix, queueName } = this.#options;
    const key = `${bullPrefix}:${queueName}`;
    return link.call(async (client) => {
      const [prioritized, wait] = await Promise.all([
        client.zcard(`${key}:prioritized`),
        client.llen(`${key}:wait`),
      ]);
      return prioritized + wait;
    });
  }

  #replace(): void {
    const old = this.#engine;
    this.#retired.add(old);
    this.#engine = this.#start();
    // The old one keeps the locks of its open entries until they end.
    void old.worker.pause(true).catch(noop);
    void this.#idle().then(async () => {
      if (this.#retired.delete(old)) await this.#end(old);
    });
  }

  async #idle(): Promise<void> {
    while (this.#runs.size > 0) await Promise.all([...this.#runs.values()].map((run) => run.ended));
  }

  async #end(engine: Engine): Promise<void> {
    engine.stopWatching();
    const limit = this.#options.settings.commandTimeoutMilliseconds;
    // Lets BullMQ acknowledge what has just ended; with Redis down it would wait for ever.
    const gently = this.#runs.size === 0 && engine.client.status === 'ready';
    if (gently) await endsWithin(engine.worker.close(), limit);
    void engine.worker.close(true).catch(noop);
    void engine.worker.disconnect().catch(noop);
    engine.client.disconnect();
  }
}

const noop = (): void => undefined;

/** Whether the work ended in time; its own failure counts as ended. */
async function endsWithin(work: Promise<unknown>, milliseconds: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), Math.max(0, milliseconds));
  });
  try {
    return await Promise.race([
      work.then(
        () => true,
        () => true,
      ),
      late,
    ]);
  } finally {
    clearTimeout(timer);
  }
}
