/**
 * Faults of the engine look-alikes, kept by scope: tests that share the engines switch their own on and off without
 * touching those of others, and an engine that was restarted gets them again.
 */
import type { EngineProcess } from './tidegate.ts';

/** As `POST /_control` of the look-alike takes it; see src/sim/http/faults.ts. */
export interface FaultRule {
  fault: string;
  match?: string;
  next?: number;
  every?: number;
  retryAfterSeconds?: number;
  delayMilliseconds?: number;
}

export class EngineFaults {
  readonly #engines: readonly Pick<EngineProcess, 'controlUrl' | 'running'>[];
  readonly #rules = new Map<string, readonly FaultRule[]>();
  #last: Promise<void> = Promise.resolve();

  constructor(engines: readonly Pick<EngineProcess, 'controlUrl' | 'running'>[]) {
    this.#engines = engines;
  }

  /** Replaces the rules of this scope on all engines that run. One change at a time. */
  set(scope: string, rules: readonly FaultRule[]): Promise<void> {
    if (rules.length === 0) this.#rules.delete(scope);
    else this.#rules.set(scope, rules);
    return this.send();
  }

  /** Tells all engines that run what holds now. */
  send(): Promise<void> {
    const sent = this.#last.then(async () => {
      const set = [...this.#rules.values()].flat();
      await Promise.all(
        this.#engines.filter((engine) => engine.running()).map(({ controlUrl }) => post(controlUrl, { set })),
      );
    });
    this.#last = sent.catch(() => {});
    return sent;
  }
}

async function post(controlUrl: string, body: object): Promise<void> {
  const answer = await fetch(`${controlUrl}/_control`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(5_000),
  });
  if (!answer.ok) throw new Error(`the engine refuses these faults: ${await answer.text()}`);
}
