import { monitorEventLoopDelay } from 'node:perf_hooks';

export interface EventLoopMonitor {
  /** Seconds that timers came late, at this quantile, over the last one to two windows. */
  delaySeconds(quantile: number): number;
  stop(): void;
}

const RESOLUTION_MILLISECONDS = 10;

/** Watches how late this process's timers come. Old trouble is forgotten after two windows. */
export function startEventLoopMonitor(options: { windowMilliseconds?: number } = {}): EventLoopMonitor {
  let current = watch();
  let previous = watch();
  const turn = setInterval(() => {
    previous.disable();
    previous = current;
    current = watch();
  }, options.windowMilliseconds ?? 5_000);
  turn.unref();
  return {
    delaySeconds: (quantile) => Math.max(lateness(current, quantile), lateness(previous, quantile)),
    stop: () => {
      clearInterval(turn);
      current.disable();
      previous.disable();
    },
  };
}

function watch() {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MILLISECONDS });
  histogram.enable();
  return histogram;
}

/** The histogram holds the time between two ticks of its timer: the tick itself is no delay. */
function lateness(histogram: ReturnType<typeof monitorEventLoopDelay>, quantile: number): number {
  if (histogram.count === 0) return 0;
  return Math.max(0, histogram.percentile(quantile * 100) / 1e9 - RESOLUTION_MILLISECONDS / 1e3);
}
