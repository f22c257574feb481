/**
 * Tells the operator which jobs changed. Workers number their changes in Redis and send a message; the watch reads
 * from the last number it saw, at each message and once a second, so that a lost message costs a second and no more.
 */
import type { Logger } from '../observability/contract.ts';
import { messageOf, type RedisLink } from './connection.ts';
import { pollChanges } from './job-scripts.ts';
import type { Keys } from './keys.ts';
import type { QueueSettings } from './settings.ts';

export interface ChangeWatchOptions {
  link: RedisLink;
  keys: Keys;
  logger: Logger;
  settings: QueueSettings;
}

/** A job's uid, or undefined: holds or workers changed, or Redis lost its data. */
export type ChangeListener = (uid: string | undefined) => void;

/** Reports of one moment are read together. */
const SOON_MILLISECONDS = 10;

export class ChangeWatch {
  readonly #options: ChangeWatchOptions;
  readonly #listeners = new Set<ChangeListener>();
  readonly #timer: NodeJS.Timeout;
  #soon: NodeJS.Timeout | undefined;
  #seen = 0;
  #ledOnce = false;
  #polling = false;
  #pollAgain = false;
  #closed = false;

  constructor(options: ChangeWatchOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.#poll(), options.settings.pollMilliseconds);
    this.#timer.unref();
  }

  listen(listener: ChangeListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  soon(): void {
    if (this.#closed || this.#soon !== undefined) return;
    this.#soon = setTimeout(() => {
      this.#soon = undefined;
      void this.#poll();
    }, SOON_MILLISECONDS);
    this.#soon.unref();
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    clearTimeout(this.#soon);
    this.#listeners.clear();
  }

  /** Never rejects: the next poll asks again from the same number. */
  async #poll(): Promise<void> {
    if (this.#polling) {
      this.#pollAgain = true;
      return;
    }
    this.#polling = true;
    try {
      await this.#read();
    } catch (error) {
      this.#options.logger.debug('changes not read', { error: messageOf(error) });
    } finally {
      this.#polling = false;
    }
    if (this.#pollAgain) {
      this.#pollAgain = false;
      this.soon();
    }
  }

  async #read(): Promise<void> {
    const { link, keys } = this.#options;
    const [current, led, changed] = (await link.run(
      pollChanges,
      [keys.changes, keys.changeCounter, keys.workers, keys.holds, keys.holdExpiries, keys.fence],
      [this.#seen, keys.events],
    )) as [number, number, string[]];
    const lost = current < this.#seen || (this.#ledOnce && led === 0);
    this.#ledOnce = led === 1;
    this.#seen = current;
    if (lost) this.#tell(undefined);
    for (const member of changed) this.#tell(member === '*' ? undefined : member);
  }

  #tell(uid: string | undefined): void {
    for (const listener of this.#listeners) {
      try {
        listener(uid);
      } catch (error) {
        this.#options.logger.error('listener of queue events failed', { error: messageOf(error) });
      }
    }
  }
}
