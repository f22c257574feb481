/** Reads the metrics page of a process of ours, or of Kubernetes. */
import type { KubeRequest } from '../../stack/kube-request.ts';

export interface Sample {
  name: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(page: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of page.split('\n')) {
    const match = SAMPLE.exec(line);
    if (match === null) continue;
    const [, name = '', labels = '', value] = match;
    samples.push({
      name,
      labels: Object.fromEntries(
        Array.from(labels.matchAll(LABEL), ([, key = '', text = '']) => [key, text]),
      ),
      value: Number(value),
    });
  }
  return samples;
}

export async function metricsOf(httpUrl: string): Promise<Sample[]> {
  const answer = await fetch(`${httpUrl}/metrics`, { signal: AbortSignal.timeout(10_000) });
  return parseMetrics(await answer.text());
}

export async function apiServerMetrics(request: KubeRequest): Promise<Sample[]> {
  return parseMetrics(String((await request('GET', '/metrics')).body));
}

/** Sum over all series of this name that the filter lets through. */
export const sumOf = (
  samples: readonly Sample[],
  name: string,
  filter: (labels: Sample['labels']) => boolean = () => true,
): number =>
  samples.reduce(
    (sum, sample) => sum + (sample.name === name && filter(sample.labels) ? sample.value : 0),
    0,
  );
