import type { KubeClient, KubeObject, Recorder, Resource } from './contract.ts';
import { KubeError } from './contract.ts';
import { isNamespaceTerminating } from './failures.ts';
import { microTime } from './lease.ts';
import { mayRetry } from './retry.ts';
import { truncateUtf8 } from './text.ts';
import { backoffMilliseconds, pause, type Cancel, type Runtime } from './timers.ts';

export interface EventObject extends KubeObject {
  eventTime: string;
  reportingController: string;
  reportingInstance: string;
  action: string;
  reason: string;
  type: 'Normal' | 'Warning';
  note: string;
  regarding: Record<string, string | undefined>;
  series?: { count: number; lastObservedTime: string };
}

export const events: Resource<EventObject> = {
  group: 'events.k8s.io',
  version: 'v1',
  plural: 'events',
  kind: 'Event',
  namespaced: true,
};

export interface RecorderSettings {
  /** Different messages of one object, type and reason: so many at once, then one each refill. */
  burst: number;
  refillMilliseconds: number;
  /** A repetition later than this begins a new event. */
  seriesMilliseconds: number;
  /** Counts of repetitions are written no more often than this. */
  flushMilliseconds: number;
  /** Events waiting to be written. */
  queueLength: number;
  /** How long `close` may take. */
  closeMilliseconds: number;
}

export const defaultRecorderSettings: RecorderSettings = {
  burst: 10,
  refillMilliseconds: 30_000,
  seriesMilliseconds: 360_000,
  flushMilliseconds: 10_000,
  queueLength: 1_000,
  closeMilliseconds: 2_000,
};

/** For metrics. */
export interface RecorderObservation {
  type: 'Normal' | 'Warning';
  outcome: 'written' | 'aggregated' | 'dropped';
  why?: 'rate' | 'queueFull' | 'namespaceGone' | 'failed' | 'closed';
}

export interface RecorderOptions {
  client: Pick<KubeClient, 'create' | 'mergePatch'>;
  runtime: Runtime;
  /** `domain/name`. */
  controller: string;
  /** Pod name or the like. */
  instance: string;
  settings?: Partial<RecorderSettings>;
  observe?: (observation: RecorderObservation) => void;
}

/** One event and its repetitions. */
interface Series {
  readonly key: string;
  readonly event: EventObject;
  count: number;
  lastObservedTime: string;
  lastSeenAt: number;
  /** What the server knows; 0 before it was created. */
  writtenCount: number;
  queued: boolean;
}

const longestNameBytes = 128;
const longestPrefix = 200;
const writeAttempts = 4;
/** Series and buckets kept; beyond, the ones that were used longest ago are forgotten. */
const remembered = 4_096;

/**
 * events.k8s.io/v1: repetitions become one event with a count; a burst of one reason never takes the room of another
 * (kubernetes#124747); nobody waits for a write, and no failure of one reaches a reconciler.
 */
export class EventRecorder implements Recorder {
  readonly #options: RecorderOptions;
  readonly #runtime: Runtime;
  readonly #settings: RecorderSettings;
  /** By object, type, reason and note: the server takes no change of an event's note. */
  readonly #series = new Map<string, Series>();
  /** By object, type and reason. */
  readonly #buckets = new Map<string, { tokens: number; filledAt: number }>();
  #queue: Series[] = [];
  #writer: Promise<void> | undefined;
  #flushAlarm: Cancel | undefined;
  readonly #closing = new AbortController();
  #closed = false;
  #names = 0;

  constructor(options: RecorderOptions) {
    this.#options = options;
    this.#runtime = options.runtime;
    this.#settings = { ...defaultRecorderSettings, ...options.settings };
  }

  event(about: KubeObject, type: 'Normal' | 'Warning', reason: string, message: string): void {
    if (this.#closed) {
      this.#observe({ type, outcome: 'dropped', why: 'closed' });
      return;
    }
    const note = truncateUtf8(message);
    const { namespace, name, uid } = about.metadata;
    const bucket = JSON.stringify([about.kind, namespace, name, uid, type, reason]);
    const key = JSON.stringify([bucket, note]);
    const now = this.#runtime.clock.monotonic();
    const known = this.#series.get(key);
    if (known !== undefined && now - known.lastSeenAt < this.#settings.seriesMilliseconds) {
      known.count += 1;
      known.lastSeenAt = now;
      known.lastObservedTime = microTime(this.#runtime.clock.now());
      touch(this.#series, key, known);
      this.#observe({ type, outcome: 'aggregated' });
      this.#scheduleFlush();
      return;
    }
    if (!this.#takeToken(bucket, now)) {
      this.#observe({ type, outcome: 'dropped', why: 'rate' });
      return;
    }
    const event = this.#newEvent(about, type, reason, note);
    const series: Series = {
      key,
      event,
      count: 1,
      lastObservedTime: event.eventTime,
      lastSeenAt: now,
      writtenCount: 0,
      queued: false,
    };
    touch(this.#series, key, series);
    this.#enqueue(series);
  }

  /** Writes what waits, for a bounded time. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#flushAlarm?.();
    for (const series of this.#series.values()) {
      if (series.count > Math.max(1, series.writtenCount)) this.#enqueue(series);
    }
    const cancel = this.#runtime.timers.after(this.#settings.closeMilliseconds, () => {
      this.#closing.abort();
    });
    await this.#writer;
    cancel();
    this.#closing.abort();
  }

  #takeToken(key: string, now: number): boolean {
    const { burst, refillMilliseconds } = this.#settings;
    const bucket = this.#buckets.get(key) ?? { tokens: burst, filledAt: now };
    bucket.tokens = Math.min(burst, bucket.tokens + (now - bucket.filledAt) / refillMilliseconds);
    bucket.filledAt = now;
    touch(this.#buckets, key, bucket);
    if (bucket.tokens < 1) return false;
    bucket.tokens -= 1;
    return true;
  }

  #newEvent(about: KubeObject, type: 'Normal' | 'Warning', reason: string, note: string): EventObject {
    const { clock, random } = this.#runtime;
    const { namespace, name, uid, resourceVersion } = about.metadata;
    this.#names += 1;
    // Events of v1 have no time that kubectl describe sorts by; it shows them in the order of their names.
    const inOrder = hex(clock.now(), 12) + hex(this.#names, 8);
    const unique = inOrder + hex(random() * 2 ** 40, 10);
    const prefix = name.slice(0, longestPrefix).replace(/[^a-z0-9]+$/, '');
    return {
      apiVersion: 'events.k8s.io/v1',
      kind: 'Event',
      metadata: {
        name: `${prefix === '' ? 'event' : prefix}.${unique}`,
        // Events about objects of the whole cluster live in `default`.
        namespace: namespace ?? 'default',
      },
      eventTime: microTime(clock.now()),
      reportingController: this.#options.controller,
      reportingInstance: truncateUtf8(this.#options.instance, longestNameBytes),
      action: truncateUtf8(reason, longestNameBytes),
      reason: truncateUtf8(reason, longestNameBytes),
      type,
      note,
      regarding: { apiVersion: about.apiVersion, kind: about.kind, namespace, name, uid, resourceVersion },
    };
  }

  #scheduleFlush(): void {
    this.#flushAlarm ??= this.#runtime.timers.after(this.#settings.flushMilliseconds, () => {
      this.#flushAlarm = undefined;
      for (const series of this.#series.values()) {
        if (series.writtenCount > 0 && series.count > series.writtenCount) this.#enqueue(series);
      }
    });
  }

  #enqueue(series: Series): void {
    if (series.queued) return;
    if (this.#queue.length >= this.#settings.queueLength && !this.#makeRoomFor(series)) {
      this.#series.delete(series.key);
      this.#observe({ type: series.event.type, outcome: 'dropped', why: 'queueFull' });
      return;
    }
    series.queued = true;
    this.#queue.push(series);
    this.#writer ??= this.#write();
  }

  /** A Warning takes the place of a waiting Normal; never the other way round. */
  #makeRoomFor(series: Series): boolean {
    if (series.event.type !== 'Warning') return false;
    const index = this.#queue.findIndex((waiting) => waiting.event.type === 'Normal');
    const [victim] = index === -1 ? [] : this.#queue.splice(index, 1);
    if (victim === undefined) return false;
    this.#series.delete(victim.key);
    this.#observe({ type: 'Normal', outcome: 'dropped', why: 'queueFull' });
    return true;
  }

  /** One write at a time: events give way to everything else. Must not reject. */
  async #write(): Promise<void> {
    // The caller of `event` goes on first.
    await Promise.resolve();
    for (let series = this.#queue.shift(); series !== undefined; series = this.#queue.shift()) {
      series.queued = false;
      await this.#writeWithPatience(series);
    }
    this.#writer = undefined;
  }

  async #writeWithPatience(series: Series): Promise<void> {
    const { timers, random, logger } = this.#runtime;
    const { type } = series.event;
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#writeOnce(series);
        this.#observe({ type, outcome: 'written' });
        return;
      } catch (error) {
        if (isNamespaceTerminating(error) || (error instanceof KubeError && error.status === 404)) {
          this.#series.delete(series.key);
          this.#observe({ type, outcome: 'dropped', why: 'namespaceGone' });
          return;
        }
        const hope = error instanceof KubeError && mayRetry(error, true) && attempt < writeAttempts;
        if (!hope || this.#closing.signal.aborted) {
          this.#series.delete(series.key);
          this.#observe({ type, outcome: 'dropped', why: 'failed' });
          logger.warn('an event could not be written', {
            about: `${series.event.metadata.namespace}/${series.event.regarding.name}`,
            reason: series.event.reason,
            error: error instanceof Error ? error.message : String(error),
          });
          return;
        }
        await pause(timers, backoffMilliseconds(attempt, 1_000, 15_000, random), this.#closing.signal);
      }
    }
  }

  async #writeOnce(series: Series): Promise<void> {
    const { client } = this.#options;
    const call = { signal: this.#closing.signal, timeoutMilliseconds: 10_000 };
    const { count, lastObservedTime } = series;
    const { namespace, name } = series.event.metadata;
    if (series.writtenCount > 0) {
      try {
        await client.mergePatch(events, namespace, name, { series: { count, lastObservedTime } }, call);
        series.writtenCount = count;
        return;
      } catch (error) {
        // The server forgets events after an hour; the series goes on with a new one.
        if (!(error instanceof KubeError && error.status === 404)) throw error;
      }
    }
    try {
      await client.create(
        events,
        count === 1 ? series.event : { ...series.event, series: { count, lastObservedTime } },
        call,
      );
    } catch (error) {
      // The answer to an earlier attempt was lost.
      if (!(error instanceof KubeError && error.status === 409)) throw error;
    }
    series.writtenCount = count;
  }

  #observe(observation: RecorderObservation): void {
    this.#options.observe?.(observation);
  }
}

const hex = (value: number, digits: number): string => Math.floor(value).toString(16).padStart(digits, '0');

/** Puts the entry last, and forgets the first one when there are too many. */
function touch<V>(map: Map<string, V>, key: string, value: V): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= remembered) return;
  const [oldest] = map.keys();
  if (oldest !== undefined) map.delete(oldest);
}
