/** Waiting for conditions instead of sleeping. */
import { setTimeout as delay } from 'node:timers/promises';

export interface UntilOptions {
  /** How long the condition may take on a busy two-core machine; a limit against hanging, not a measurement. */
  withinSeconds?: number;
  /** Added to the message of a failure. */
  explain?: () => Promise<string>;
}

/** The first value of `read` for which `holds`. A rejected read counts as "not yet": parts are down now and then. */
export async function until<T>(
  what: string,
  read: () => Promise<T>,
  holds: (value: T) => boolean,
  { withinSeconds = 60, explain }: UntilOptions = {},
): Promise<T> {
  const deadline = performance.now() + withinSeconds * 1000;
  let last: unknown;
  for (let pause = 20; ; pause = Math.min(200, pause * 1.3)) {
    try {
      const value = await read();
      if (holds(value)) return value;
      last = value;
    } catch (error) {
      last = error;
    }
    if (performance.now() > deadline) {
      const found = last instanceof Error ? last.message : JSON.stringify(last, undefined, 1);
      const more = explain === undefined ? '' : `\n${await explain().catch(String)}`;
      throw new Error(`${what}: not within ${withinSeconds} s. Last seen: ${shortened(found)}${more}`);
    }
    await delay(pause);
  }
}

const shortened = (text: string | undefined): string =>
  text === undefined ? 'nothing' : text.length > 3_000 ? `${text.slice(0, 3_000)} …` : text;
