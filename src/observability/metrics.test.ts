import { describe, expect, test } from '@jest/globals';
import { createMetrics } from './metrics.ts';

const settings = { role: 'worker', version: '0.0.0', process: false };

describe('metrics', () => {
  test.each([
    'tidegate_jobs{state="Running"} 0',
    'tidegate_lines_total{outcome="expired"} 0',
    'tidegate_tokens_total{kind="cached_input"} 0',
    'tidegate_retries_total{reason="Busy"} 0',
    'tidegate_engine_request_duration_seconds_count{outcome="hold"} 0',
    'tidegate_build_info{version="0.0.0",role="worker"} 1',
    'tidegate_leader 0',
  ])('%s is there before anything happened', async (line) => {
    expect(await createMetrics(settings).registry.metrics()).toContain(line);
  });

  test('all carry the prefix, a help text, and no label that grows without bound', async () => {
    for (const metric of await createMetrics(settings).registry.getMetricsAsJSON()) {
      expect(metric.name).toMatch(/^tidegate_[a-z0-9_]+$/);
      expect(metric.help).not.toBe('');
      const labels = metric.values.flatMap((value) => Object.keys(value.labels));
      expect(labels).not.toEqual(
        expect.arrayContaining([expect.stringMatching(/^(job|uid|tenant|line|key)$/)]),
      );
    }
  });

  test('a second registry starts from 0', async () => {
    createMetrics(settings).lines.inc({ outcome: 'completed' }, 5);
    expect(await createMetrics(settings).registry.metrics()).toContain(
      'tidegate_lines_total{outcome="completed"} 0',
    );
  });

  test('replicas that are gone leave no series behind', async () => {
    const metrics = createMetrics(settings);
    metrics.setReplica('http://a:1', 3, 8);
    metrics.setReplica('http://b:1', 1, 8);
    metrics.retainReplicas(new Set(['http://b:1']));
    const page = await metrics.registry.metrics();
    expect(page).not.toContain('http://a:1');
    expect(page).toContain('tidegate_in_flight_limit{replica="http://b:1"} 8');
  });

  test('prefixes left behind are counted without bound and named with one', async () => {
    const metrics = createMetrics(settings);
    for (let job = 0; job < 100; job++) metrics.leaveBehind(`out/${job}/`, 1_000);
    const page = await metrics.registry.metrics();
    expect(page).toContain('tidegate_prefixes_left_behind_total 100');
    expect(page.match(/^tidegate_prefix_left_behind_timestamp_seconds\{/gm)).toHaveLength(16);
    expect(page).toContain('prefix="out/99/"');
  });

  test('the delay of the event loop is read when the page is', async () => {
    let delay = 0.25;
    const metrics = createMetrics({
      ...settings,
      eventLoop: { delaySeconds: () => delay, stop: () => undefined },
    });
    expect(await metrics.registry.metrics()).toContain(
      'tidegate_event_loop_delay_seconds{quantile="0.99"} 0.25',
    );
    delay = 0.5;
    expect(await metrics.registry.metrics()).toContain(
      'tidegate_event_loop_delay_seconds{quantile="0.99"} 0.5',
    );
  });
});
