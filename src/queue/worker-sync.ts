/**
 * What a worker knows of the leader's wishes: plan, holds, and the descriptors of jobs in use. One script a second
 * reads what changed; the control channel asks for it sooner. The same call says that the worker lives.
 */
import type { Clock, Logger } from '../observability/contract.ts';
import { messageOf, type RedisLink } from './connection.ts';
import type { DeploymentPlan, Hold, JobDescriptor, QueueId } from './contract.ts';
import { syncWorker } from './job-scripts.ts';
import { parsed } from './job-state.ts';
import type { Keys } from './keys.ts';
import type { QueueSettings } from './settings.ts';

export interface WorkerSyncOptions {
  link: RedisLink;
  keys: Keys;
  workerId: string;
  clock: Clock;
  logger: Logger;
  settings: QueueSettings;
  onPlan: () => void;
}

interface WatchedJob {
  rev: string;
  json: string;
  descriptor: JobDescriptor | undefined;
  listeners: Set<(descriptor: JobDescriptor | undefined) => void>;
  /** Monotonic milliseconds. */
  usedAt: number;
  /** Redis answered for this job at least once. */
  known: boolean;
}

/** A descriptor that nobody asked for in this time is forgotten. */
const FORGET_AFTER_MILLISECONDS = 60_000;

/** Messages that arrive together are answered by one poll. */
const SOON_MILLISECONDS = 10;

type SyncReply = [string, string, number, (string | number)[], string[]];

export class WorkerSync {
  readonly #options: WorkerSyncOptions;
  readonly #jobs = new Map<string, WatchedJob>();
  readonly #timer: NodeJS.Timeout;
  #soon: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  #next: Promise<void> | undefined;
  #planRev = '';
  #plans = new Map<QueueId, DeploymentPlan>();
  #planValidUntil = -Infinity;
  #holds = new Map<QueueId, { hold: Hold; until: number }[]>();
  #closed = false;

  constructor(options: WorkerSyncOptions) {
    this.#options = options;
    this.#timer = setInterval(
      () => void this.refresh().catch(() => undefined),
      options.settings.pollMilliseconds,
    );
    this.#timer.unref();
  }

  plan(queue: QueueId): DeploymentPlan | undefined {
    return this.#options.clock.monotonic() < this.#planValidUntil ? this.#plans.get(queue) : undefined;
  }

  /** Deployments of the last plan seen, also when it has run out. undefined: none was ever seen. */
  planned(): ReadonlySet<QueueId> | undefined {
    return this.#planValidUntil === -Infinity ? undefined : new Set(this.#plans.keys());
  }

  /** Addresses of the last plan seen, also when it has run out. undefined: none was ever seen. */
  replicas(): ReadonlySet<string> | undefined {
    if (this.#planValidUntil === -Infinity) return undefined;
    const plans = [...this.#plans.values()];
    return new Set(plans.flatMap(({ replicas }) => replicas.map(({ address }) => address)));
  }

  holds(queue: QueueId): readonly Hold[] {
    const held = this.#holds.get(queue);
    if (held === undefined) return NO_HOLDS;
    const now = this.#options.clock.monotonic();
    return held.filter(({ until }) => now < until).map(({ hold }) => hold);
  }

  /** Rejects with QueueUnavailable only when nothing is known and Redis does not answer. */
  async job(uid: string): Promise<JobDescriptor | undefined> {
    const job = this.#watch(uid);
    // "Unknown" is asked again: the leader may have written it a moment ago.
    if (job.descriptor !== undefined) return job.descriptor;
    try {
      await this.refresh();
    } catch (error) {
      if (!job.known) throw error;
    }
    return job.descriptor;
  }

  onJobChange(uid: string, listener: (descriptor: JobDescriptor | undefined) => void): () => void {
    const job = this.#watch(uid);
    job.listeners.add(listener);
    if (!job.known) this.soon();
    return () => job.listeners.delete(listener);
  }

  /** Makes sure that this job is among those asked for. */
  watch(uid: string): void {
    this.#watch(uid);
  }

  soon(): void {
    if (this.#closed || this.#soon !== undefined) return;
    this.#soon = setTimeout(() => {
      this.#soon = undefined;
      void this.refresh().catch(() => undefined);
    }, SOON_MILLISECONDS);
    this.#soon.unref();
  }

  /** Reads what changed, in a call that starts after this one was made; calls made together share it. */
  refresh(): Promise<void> {
    if (this.#next !== undefined) return this.#next;
    if (this.#running === undefined) {
      this.#running = this.#once().finally(() => (this.#running = undefined));
      return this.#running;
    }
    const follow = (): Promise<void> => {
      this.#next = undefined;
      this.#running = this.#once().finally(() => (this.#running = undefined));
      return this.#running;
    };
    this.#next = this.#running.then(follow, follow);
    return this.#next;
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    clearTimeout(this.#soon);
    this.#jobs.clear();
  }

  #watch(uid: string): WatchedJob {
    const now = this.#options.clock.monotonic();
    let job = this.#jobs.get(uid);
    if (job === undefined) {
      job = { rev: '', json: '', descriptor: undefined, listeners: new Set(), usedAt: now, known: false };
      this.#jobs.set(uid, job);
    }
    job.usedAt = now;
    return job;
  }

  async #once(): Promise<void> {
    const { link, keys, workerId, settings, clock } = this.#options;
    const uids = [...this.#jobs.keys()];
    const sentAt = clock.monotonic();
    const reply = (await link.run(
      syncWorker,
      [
        ...[keys.workers, keys.changes, keys.changeCounter, keys.plan, keys.holds],
        ...uids.map((uid) => keys.job(uid)),
      ],
      [
        ...[workerId, settings.workerTtlMilliseconds, keys.events, this.#planRev],
        ...uids.map((uid) => this.#jobs.get(uid)?.rev ?? ''),
      ],
    )) as SyncReply;
    if (this.#closed) return;
    const [planRev, planBody, planLeft, holds, jobs] = reply;
    this.#takePlan(planRev, planBody, sentAt + planLeft);
    this.#takeHolds(holds, sentAt);
    uids.forEach((uid, at) => this.#takeJob(uid, jobs[at] ?? ''));
    this.#forgetUnused(clock.monotonic());
  }

  #takePlan(rev: string, body: string, validUntil: number): void {
    // Redis lost it: what we knew stays good for routing until it runs out; nothing new is granted meanwhile.
    if (rev === '') {
      this.#planRev = '';
      return;
    }
    this.#planValidUntil = validUntil;
    if (rev === this.#planRev) return;
    this.#planRev = rev;
    const plans = parsed<DeploymentPlan[]>(body);
    if (plans === undefined) {
      this.#options.logger.error('the plan in Redis cannot be read', { bytes: body.length });
      return;
    }
    this.#plans = new Map(plans.map((plan) => [plan.queue, plan]));
    this.#call(() => this.#options.onPlan());
  }

  #takeHolds(flat: readonly (string | number)[], sentAt: number): void {
    const holds = new Map<QueueId, { hold: Hold; until: number }[]>();
    for (let at = 0; at + 1 < flat.length; at += 2) {
      const stored = parsed<Hold & { queue: QueueId }>(String(flat[at + 1]));
      if (stored === undefined) continue;
      const { queue, scope, reason, message, since } = stored;
      const list = holds.get(queue) ?? [];
      list.push({ hold: { scope, reason, message, since }, until: sentAt + Number(flat[at]) });
      holds.set(queue, list);
    }
    this.#holds = holds;
  }

  #takeJob(uid: string, answer: string): void {
    const job = this.#jobs.get(uid);
    if (job === undefined || (answer !== '' && answer === job.rev)) return;
    const first = !job.known;
    job.known = true;
    const lineBreak = answer.indexOf('\n');
    job.rev = lineBreak < 0 ? '' : answer.slice(0, lineBreak);
    const json = lineBreak < 0 ? '' : answer.slice(lineBreak + 1);
    if (json === job.json && !first) return;
    job.json = json;
    job.descriptor = json === '' ? undefined : parsed<JobDescriptor>(json);
    if (json !== '' && job.descriptor === undefined) {
      this.#options.logger.error('the descriptor of a job cannot be read', { job: uid });
    }
    for (const listener of [...job.listeners]) this.#call(() => listener(job.descriptor));
  }

  #forgetUnused(now: number): void {
    for (const [uid, job] of this.#jobs) {
      if (job.listeners.size === 0 && now - job.usedAt > FORGET_AFTER_MILLISECONDS) this.#jobs.delete(uid);
    }
  }

  #call(listener: () => void): void {
    try {
      listener();
    } catch (error) {
      this.#options.logger.error('listener of the queue failed', { error: messageOf(error) });
    }
  }
}

const NO_HOLDS: readonly Hold[] = [];
