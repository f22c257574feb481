/** The page `/metrics` as vLLM 0.32 writes it: names, labels in their order, `_created` lines. Pure. */
import { FINISHED_REASONS, type EngineMetrics, type HistogramData } from './engine-metrics.ts';

interface Family {
  name: string;
  type: 'gauge' | 'counter' | 'histogram';
  help: string;
  series: { labels: Record<string, string>; value: number | HistogramData }[];
}

/** @param createdSeconds epoch seconds at which the engine started. */
export function renderMetrics(metrics: EngineMetrics, model: string, createdSeconds: number): string {
  return families(metrics, model)
    .map((family) => renderFamily(family, createdSeconds))
    .join('');
}

function families(metrics: EngineMetrics, model: string): Family[] {
  const base = { engine: '0', model_name: model };
  const one = (value: number | HistogramData, more: Record<string, string> = {}) => ({
    labels: { ...base, ...more },
    value,
  });
  const gauge = (name: string, help: string, ...series: Family['series']): Family => ({
    name,
    type: 'gauge',
    help,
    series,
  });
  const counter = (name: string, help: string, ...series: Family['series']): Family => ({
    name,
    type: 'counter',
    help,
    series,
  });
  const histogram = (name: string, help: string, data: HistogramData): Family => ({
    name,
    type: 'histogram',
    help,
    series: [one(data)],
  });
  const h = metrics.histograms;
  const { blockSize, tokens } = metrics.kvCache;
  return [
    counter(
      'estimated_flops_per_gpu_total',
      'Estimated number of floating point operations per GPU.',
      one(0),
    ),
    counter(
      'estimated_read_bytes_per_gpu_total',
      'Estimated number of bytes read from memory per GPU.',
      one(0),
    ),
    counter(
      'estimated_write_bytes_per_gpu_total',
      'Estimated number of bytes written to memory per GPU.',
      one(0),
    ),
    gauge('num_requests_running', 'Number of requests in model execution batches.', one(metrics.running)),
    gauge('num_requests_waiting', 'Number of requests waiting to be processed.', one(metrics.waiting)),
    gauge(
      'num_requests_waiting_by_reason',
      'Number of waiting requests by reason.',
      one(metrics.waiting, { reason: 'capacity' }),
      one(0, { reason: 'deferred' }),
    ),
    gauge(
      'engine_sleep_state',
      'Engine sleep state.',
      one(1, { sleep_state: 'awake' }),
      one(0, { sleep_state: 'weights_offloaded' }),
      one(0, { sleep_state: 'discard_all' }),
    ),
    gauge('kv_cache_usage_perc', 'KV-cache usage. 1 means 100 percent usage.', one(metrics.kvUsage)),
    counter('prefix_cache_queries_total', 'Prefix cache queries, in tokens.', one(metrics.prefixQueries)),
    counter('prefix_cache_hits_total', 'Prefix cache hits, in tokens.', one(metrics.prefixHits)),
    counter('external_prefix_cache_queries_total', 'External prefix cache queries, in tokens.', one(0)),
    counter('external_prefix_cache_hits_total', 'External prefix cache hits, in tokens.', one(0)),
    counter('mm_cache_queries_total', 'Multi-modal cache queries.', one(0)),
    counter('mm_cache_hits_total', 'Multi-modal cache hits.', one(0)),
    counter(
      'num_preemptions_total',
      'Cumulative number of preemption from the engine.',
      one(metrics.preemptions),
    ),
    counter('prompt_tokens_total', 'Number of prefill tokens processed.', one(metrics.promptTokens)),
    counter(
      'prompt_tokens_by_source_total',
      'Number of prompt tokens by source.',
      one(metrics.promptTokens - metrics.cachedTokens, { source: 'local_compute' }),
      one(metrics.cachedTokens, { source: 'local_cache_hit' }),
      one(0, { source: 'external_kv_transfer' }),
    ),
    counter('prompt_tokens_cached_total', 'Number of cached prompt tokens.', one(metrics.cachedTokens)),
    counter(
      'prompt_tokens_cached_by_source_total',
      'Prefix-cache hit tokens by the cache tier that supplied them.',
      one(metrics.cachedTokens, { source: 'device' }),
      ...['host', 'p2p', 'disk', 'external_unspecified'].map((source) => one(0, { source })),
    ),
    counter(
      'generation_tokens_total',
      'Number of generation tokens processed.',
      one(metrics.generationTokens),
    ),
    counter(
      'request_success_total',
      'Count of successfully processed requests.',
      ...FINISHED_REASONS.map((reason) => ({
        labels: { engine: '0', finished_reason: reason, model_name: model },
        value: metrics.success[reason],
      })),
    ),
    counter(
      'admission_rejections_total',
      'Number of admission attempts rejected by a queue limit, by reason.',
      ...['max_num_queued_reqs', 'max_num_queued_tokens'].map((reason) => ({
        labels: { model_name: model, reason },
        value: 0,
      })),
    ),
    histogram('request_prompt_tokens', 'Number of prefill tokens processed.', h.requestPromptTokens),
    histogram(
      'request_generation_tokens',
      'Number of generation tokens processed.',
      h.requestGenerationTokens,
    ),
    histogram('iteration_tokens_total', 'Histogram of number of tokens per engine_step.', h.iterationTokens),
    histogram(
      'request_max_num_generation_tokens',
      'Histogram of maximum number of requested generation tokens.',
      h.requestMaxGenerationTokens,
    ),
    histogram('request_params_n', 'Histogram of the n request parameter.', h.requestParamsN),
    histogram(
      'request_params_max_tokens',
      'Histogram of the max_tokens request parameter.',
      h.requestParamsMaxTokens,
    ),
    histogram(
      'time_to_first_token_seconds',
      'Histogram of time to first token in seconds.',
      h.timeToFirstToken,
    ),
    histogram(
      'inter_token_latency_seconds',
      'Histogram of inter-token latency in seconds.',
      h.interTokenLatency,
    ),
    histogram(
      'request_time_per_output_token_seconds',
      'Histogram of time_per_output_token_seconds per request.',
      h.requestTimePerOutputToken,
    ),
    histogram('e2e_request_latency_seconds', 'Histogram of e2e request latency in seconds.', h.endToEnd),
    histogram(
      'request_queue_time_seconds',
      'Histogram of time spent in WAITING phase for request.',
      h.queueTime,
    ),
    histogram(
      'request_inference_time_seconds',
      'Histogram of time spent in RUNNING phase for request.',
      h.inferenceTime,
    ),
    histogram(
      'request_prefill_time_seconds',
      'Histogram of time spent in PREFILL phase for request.',
      h.prefillTime,
    ),
    histogram(
      'request_decode_time_seconds',
      'Histogram of time spent in DECODE phase for request.',
      h.decodeTime,
    ),
    histogram(
      'request_num_preemptions',
      'Histogram of the number of times a request was preempted.',
      h.requestPreemptions,
    ),
    histogram(
      'request_prefill_kv_computed_tokens',
      'Histogram of new KV tokens computed during prefill (excluding cached tokens).',
      h.requestPrefillComputed,
    ),
    gauge('cache_config_info', 'Information of the LLMEngine CacheConfig', {
      labels: {
        block_size: String(blockSize),
        cache_dtype: 'auto',
        enable_prefix_caching: 'True',
        engine: '0',
        gpu_memory_utilization: '0.92',
        kv_cache_size_tokens: String(tokens),
        num_cpu_blocks: 'None',
        num_gpu_blocks: String(Math.floor(tokens / blockSize)),
        prefix_caching_hash_algo: 'sha256',
      },
      value: 1,
    }),
  ];
}

function renderFamily(family: Family, createdSeconds: number): string {
  const name = `vllm:${family.name}`;
  const lines = [`# HELP ${name} ${family.help}`, `# TYPE ${name} ${family.type}`];
  for (const { labels, value } of family.series) {
    if (typeof value === 'number') lines.push(`${name}${labelText(labels)} ${number(value)}`);
    else lines.push(...histogramLines(name, labels, value));
  }
  if (family.type !== 'gauge') {
    // The Python client appends when a series began, after dropping the suffix of counters.
    const created = `${family.type === 'counter' ? name.replace(/_total$/, '') : name}_created`;
    lines.push(`# HELP ${created} ${family.help}`, `# TYPE ${created} gauge`);
    for (const { labels } of family.series)
      lines.push(`${created}${labelText(labels)} ${number(createdSeconds)}`);
  }
  return `${lines.join('\n')}\n`;
}

function histogramLines(name: string, labels: Record<string, string>, data: HistogramData): string[] {
  const { engine = '0', ...rest } = labels;
  const lines: string[] = [];
  let below = 0;
  data.counts.forEach((count, bucket) => {
    below += count;
    const edge = data.edges[bucket];
    const le = edge === undefined ? '+Inf' : number(edge);
    lines.push(`${name}_bucket${labelText({ engine, le, ...rest })} ${number(below)}`);
  });
  lines.push(`${name}_count${labelText(labels)} ${number(data.count)}`);
  lines.push(`${name}_sum${labelText(labels)} ${number(data.sum)}`);
  return lines;
}

const labelText = (labels: Record<string, string>): string =>
  `{${Object.entries(labels)
    .map(([name, value]) => `${name}="${value.replace(/[\\"\n]/g, (c) => (c === '\n' ? '\\n' : `\\${c}`))}"`)
    .join(',')}}`;

/** As Python prints a float: a whole number keeps its `.0`. */
const number = (value: number): string => (Number.isInteger(value) ? `${value}.0` : String(value));
