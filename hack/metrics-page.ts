/** Makes docs/reference/metrics.md from the metrics that every role declares. */
import { createMetrics } from '../src/observability/metrics.ts';

export async function metricsPage(): Promise<string> {
  const { registry } = createMetrics({ role: 'any', version: '0', process: false });
  const declared = await registry.getMetricsAsJSON();
  const rows = declared.map(({ name, help, type }) => {
    const { labelNames = [] } = registry.getSingleMetric(name) as unknown as { labelNames?: string[] };
    return `| \`${name}\` | ${String(type)} | ${labelNames.map((label) => `\`${label}\``).join(', ')} | ${help} |`;
  });
  return `<!-- Generated from src/observability by hack/generate.ts. Do not edit. -->

# Metrics

Every operator and worker serves these at \`/metrics\` (port 8080), besides the usual ones of a Node.js process. No label names a job, a line, a key or a tenant; the one label that is a path, \`prefix\`, keeps the last few values only.

| Metric | Type | Labels | Meaning |
| --- | --- | --- | --- |
${rows.join('\n')}
`;
}
