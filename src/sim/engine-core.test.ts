import { describe, expect, test } from '@jest/globals';
import { EngineCore } from './engine-core.ts';
import { EngineMetrics } from './engine-metrics.ts';
import { PROFILES, type ProfileName } from './profiles.ts';
import { seededRandom } from './random.ts';

/** In virtual time: `batch` requests are kept in flight beside a stream of 200 tokens, whose mean gap is returned. */
function meanGapSeconds(profileName: ProfileName, batch: number, maxNumBatchedTokens?: number): number {
  const profile = PROFILES[profileName];
  const metrics = new EngineMetrics({ blockSize: profile.blockSize, tokens: profile.kvTokens }, 32_768);
  const limits = {
    maxNumBatchedTokens: maxNumBatchedTokens ?? profile.maxNumBatchedTokens,
    maxNumSeqs: profile.maxNumSeqs,
    kvTokens: profile.kvTokens,
    blockSize: profile.blockSize,
    policy: 'priority' as const,
  };
  const core = new EngineCore({ profile, limits, metrics, random: seededRandom(7) });
  let id = 0;
  let now = 0;
  const add = (promptTokens: number, outputTokens: number, priority: number) =>
    core.add(
      { id: ++id, promptTokens, promptText: `${id}`.padEnd(64, `${id}`), outputTokens, priority },
      now,
    );
  const stream = add(128, 200, 0);
  for (let i = 0; i < batch; i++) add(256, 64, 100);
  while (stream.generated < stream.outputTokens) {
    const begun = core.begin(now);
    if (begun === undefined) throw new Error('the engine stands still');
    now += begun.durationSeconds;
    for (const sequence of core.end(begun.step, now).finished) if (sequence !== stream) add(256, 64, 100);
  }
  return ((stream.lastTokenAt ?? 0) - (stream.firstTokenAt ?? 0)) / (stream.outputTokens - 1);
}

describe('an engine in virtual time', () => {
  test.each<ProfileName>(['tiny-cpu', 'llama3-8b-h100', 'llama3-70b-tp4-a100'])(
    'more waiting work makes everyone slower (%s)',
    (profile) => {
      const gaps = [0, 4, 8, 16, 24].map((batch) => meanGapSeconds(profile, batch));
      expect(gaps).toEqual([...gaps].sort((a, b) => a - b));
      expect(gaps.at(-1)).toBeGreaterThan((gaps[0] ?? 0) * 1.2);
    },
  );

  test('the tiny CPU profile is about as fast as the real one was seen to be', () => {
    // Measured ITL p50: 7.5 ms alone, 10.8 ms beside 16 requests; the mean lies above it by the prefill steps.
    expect(meanGapSeconds('tiny-cpu', 0) * 1_000).toBeGreaterThan(6);
    expect(meanGapSeconds('tiny-cpu', 0) * 1_000).toBeLessThan(9);
    expect(meanGapSeconds('tiny-cpu', 16) * 1_000).toBeGreaterThan(9);
    expect(meanGapSeconds('tiny-cpu', 16) * 1_000).toBeLessThan(22);
  });

  test('the same seed gives the same run', () => {
    expect(meanGapSeconds('llama3-8b-h100', 8)).toBe(meanGapSeconds('llama3-8b-h100', 8));
  });
});
