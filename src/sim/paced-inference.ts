/** Plays an EngineCore in real time, or faster. */
import type { Clock } from '../observability/contract.ts';
import { EngineCore, type BegunStep, type CoreSettings } from './engine-core.ts';
import { AbortError, type Inference, type InferenceRequest, type InferenceResult } from './inference.ts';
import type { Sequence } from './scheduler.ts';

interface Pending {
  request: InferenceRequest;
  resolve: (result: InferenceResult) => void;
  release: () => void;
}

/** A driver that is later than this has been stopped or starved: it does not try to catch up. */
const MAX_LAG_SECONDS = 0.1;

/** @param timeScale 10 plays ten times as fast. */
export function createPacedInference(settings: CoreSettings, clock: Clock, timeScale: number): Inference {
  const { metrics } = settings;
  const core = new EngineCore(settings);
  const pending = new Map<Sequence, Pending>();
  let serial = 0;
  let timer: NodeJS.Timeout | undefined;
  let stepping = false;
  let stopped = false;
  /** Where the engine's own time has come to; ahead of the clock while a step lasts. */
  let engineNow = 0;

  const now = (): number => clock.monotonic() / 1_000;

  function wake(): void {
    if (stepping || stopped) return;
    stepping = true;
    // What arrives in the same turn of the event loop is scheduled together.
    setImmediate(step);
  }

  function step(): void {
    const late = now() - engineNow;
    if (late > MAX_LAG_SECONDS) engineNow = now();
    const begun = stopped ? undefined : core.begin(engineNow);
    if (begun === undefined) {
      stepping = false;
      return;
    }
    const end = engineNow + begun.durationSeconds / timeScale;
    const wait = (end - now()) * 1_000;
    // Timers have a resolution of a millisecond: what one comes late, the next is shorter.
    if (wait >= 1) timer = setTimeout(() => finish(begun, end), wait);
    else setImmediate(() => finish(begun, end));
  }

  function finish(begun: BegunStep, end: number): void {
    engineNow = end;
    const outcome = core.end(begun.step, end);
    for (const { sequence } of outcome.tokens) pending.get(sequence)?.request.onTokens?.(1);
    for (const sequence of outcome.finished) settle(sequence, end);
    step();
  }

  function settle(sequence: Sequence, end: number): void {
    const found = pending.get(sequence);
    if (found === undefined) return;
    pending.delete(sequence);
    found.release();
    const { arrivedAt, scheduledAt = end, firstTokenAt = end, cached, preemptions } = sequence;
    metrics.bookFinished({
      ...found.request,
      cachedTokens: cached,
      preemptions,
      queueSeconds: scheduledAt - arrivedAt,
      prefillSeconds: firstTokenAt - scheduledAt,
      decodeSeconds: end - firstTokenAt,
    });
    found.resolve({ cachedTokens: cached });
  }

  return {
    metrics,
    run(request, signal) {
      if (signal?.aborted === true) return Promise.reject(new AbortError());
      return new Promise((resolve, reject) => {
        const sequence = core.add({ ...request, id: ++serial }, now());
        const abort = (): void => {
          pending.delete(sequence);
          core.abort(sequence);
          reject(new AbortError());
          wake();
        };
        signal?.addEventListener('abort', abort, { once: true });
        const release = (): void => signal?.removeEventListener('abort', abort);
        pending.set(sequence, { request, resolve, release });
        wake();
      });
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
