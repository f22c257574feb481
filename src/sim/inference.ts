/** What the HTTP face asks of an engine, and an engine that takes no time at all. */
import type { EngineMetrics } from './engine-metrics.ts';

export interface InferenceRequest {
  promptTokens: number;
  /** Text the prefix cache goes by. */
  promptText: string;
  /** Tokens it will generate; 0 for embeddings. */
  outputTokens: number;
  /** The limit the caller gave, for metrics; undefined where it gave none. */
  maxTokens: number | undefined;
  /** Lower goes first; obeyed with priority scheduling only. */
  priority: number;
  finishReason: 'stop' | 'length';
  /** Called with the number of tokens generated since the last call; for streams. */
  onTokens?: (count: number) => void;
}

export interface InferenceResult {
  cachedTokens: number;
}

export interface Inference {
  /** Settles when the last token is there. Rejects with AbortError when the signal aborts. */
  run(request: InferenceRequest, signal: AbortSignal | undefined): Promise<InferenceResult>;
  readonly metrics: EngineMetrics;
  stop(): void;
}

export class AbortError extends Error {
  constructor() {
    super('aborted');
    this.name = 'AbortError';
  }
}

/** For tests of everything but time: the answer is there at once, and the counters move as if it had been computed. */
export function createInstantInference(metrics: EngineMetrics): Inference {
  return {
    metrics,
    async run(request) {
      metrics.bookPrompt(request.promptTokens, 0);
      if (request.outputTokens > 0) {
        request.onTokens?.(request.outputTokens);
        metrics.bookFirstToken(0);
        metrics.bookGenerated(request.outputTokens);
        metrics.bookGaps(0, request.outputTokens - 1);
      }
      metrics.bookIteration(request.promptTokens + request.outputTokens);
      metrics.bookFinished({
        ...request,
        cachedTokens: 0,
        preemptions: 0,
        queueSeconds: 0,
        prefillSeconds: 0,
        decodeSeconds: 0,
      });
      return { cachedTokens: 0 };
    },
    stop: () => undefined,
  };
}
