/** The numbers a vLLM engine keeps, with the bucket edges of vLLM 0.32. Rendering stands in metrics-page.ts. Pure. */

const series125 = (max: number): number[] => {
  const edges: number[] = [];
  for (let power = 1; ; power *= 10) {
    for (const factor of [1, 2, 5]) {
      if (factor * power > max) return edges;
      edges.push(factor * power);
    }
  }
};

const FIRST_TOKEN_SECONDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
  2560,
];
const GAP_SECONDS = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
];
const REQUEST_SECONDS = [
  0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
];
const ITERATION_TOKENS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

export class HistogramData {
  readonly edges: readonly number[];
  /** Per bucket, not cumulated; the last is +Inf. */
  readonly counts: number[];
  sum = 0;
  count = 0;

  constructor(edges: readonly number[]) {
    this.edges = edges;
    this.counts = new Array<number>(edges.length + 1).fill(0);
  }

  observe(value: number, times = 1): void {
    let bucket = 0;
    while (bucket < this.edges.length && value > (this.edges[bucket] ?? Infinity)) bucket++;
    this.counts[bucket] = (this.counts[bucket] ?? 0) + times;
    this.sum += value * times;
    this.count += times;
  }
}

export const FINISHED_REASONS = ['stop', 'length', 'abort', 'error', 'repetition'] as const;

export interface FinishedRequest {
  promptTokens: number;
  cachedTokens: number;
  outputTokens: number;
  maxTokens: number | undefined;
  finishReason: 'stop' | 'length';
  preemptions: number;
  queueSeconds: number;
  prefillSeconds: number;
  decodeSeconds: number;
}

export interface KvCacheShape {
  blockSize: number;
  tokens: number;
}

export class EngineMetrics {
  readonly kvCache: KvCacheShape;
  running = 0;
  waiting = 0;
  /** 0…1 */
  kvUsage = 0;
  promptTokens = 0;
  cachedTokens = 0;
  generationTokens = 0;
  prefixQueries = 0;
  prefixHits = 0;
  preemptions = 0;
  readonly success: Record<(typeof FINISHED_REASONS)[number], number> = {
    stop: 0,
    length: 0,
    abort: 0,
    error: 0,
    repetition: 0,
  };
  readonly histograms;

  constructor(kvCache: KvCacheShape, maxModelLength: number) {
    this.kvCache = kvCache;
    const tokens = () => new HistogramData(series125(maxModelLength));
    const requestSeconds = () => new HistogramData(REQUEST_SECONDS);
    this.histograms = {
      requestPromptTokens: tokens(),
      requestGenerationTokens: tokens(),
      iterationTokens: new HistogramData(ITERATION_TOKENS),
      requestMaxGenerationTokens: tokens(),
      requestParamsN: new HistogramData([1, 2, 5, 10, 20]),
      requestParamsMaxTokens: tokens(),
      timeToFirstToken: new HistogramData(FIRST_TOKEN_SECONDS),
      interTokenLatency: new HistogramData(GAP_SECONDS),
      requestTimePerOutputToken: new HistogramData(GAP_SECONDS),
      endToEnd: requestSeconds(),
      queueTime: requestSeconds(),
      inferenceTime: requestSeconds(),
      prefillTime: requestSeconds(),
      decodeTime: requestSeconds(),
      requestPreemptions: new HistogramData([1, 2, 3, 4, 5, 10, 20]),
      requestPrefillComputed: tokens(),
    };
  }

  /** A whole prompt, booked in the iteration that ends its prefill, as vLLM V1 does. */
  bookPrompt(tokens: number, cached: number): void {
    this.promptTokens += tokens;
    this.cachedTokens += cached;
    this.prefixQueries += tokens;
    this.prefixHits += cached;
  }

  bookFirstToken(seconds: number): void {
    this.histograms.timeToFirstToken.observe(seconds);
  }

  bookGaps(seconds: number, times: number): void {
    if (times > 0) this.histograms.interTokenLatency.observe(seconds, times);
  }

  bookGenerated(tokens: number): void {
    this.generationTokens += tokens;
  }

  /** Steps that end no prefill and generate nothing are not on vLLM's page. */
  bookIteration(tokens: number): void {
    if (tokens > 0) this.histograms.iterationTokens.observe(tokens);
  }

  /** Requests that were aborted never come here: vLLM counts them nowhere. */
  bookFinished(request: FinishedRequest): void {
    const { histograms } = this;
    this.success[request.finishReason]++;
    histograms.requestPromptTokens.observe(request.promptTokens);
    histograms.requestGenerationTokens.observe(request.outputTokens);
    histograms.requestMaxGenerationTokens.observe(request.outputTokens);
    histograms.requestParamsN.observe(1);
    if (request.maxTokens !== undefined) histograms.requestParamsMaxTokens.observe(request.maxTokens);
    histograms.requestPreemptions.observe(request.preemptions);
    histograms.requestPrefillComputed.observe(request.promptTokens - request.cachedTokens);
    histograms.queueTime.observe(request.queueSeconds);
    histograms.prefillTime.observe(request.prefillSeconds);
    histograms.decodeTime.observe(request.decodeSeconds);
    histograms.inferenceTime.observe(request.prefillSeconds + request.decodeSeconds);
    histograms.endToEnd.observe(request.queueSeconds + request.prefillSeconds + request.decodeSeconds);
    if (request.outputTokens > 1) {
      histograms.requestTimePerOutputToken.observe(request.decodeSeconds / (request.outputTokens - 1));
    } else {
      histograms.requestTimePerOutputToken.observe(0);
    }
  }
}
