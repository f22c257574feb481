/**
 * How long one step of the engine takes:
 * `T = overhead + gain · T_lin(N) + c_kv · Σ_decoding context + c_pa · Σ_prefill chunk · (context + chunk/2)`,
 * N = all tokens of the step. Below the ridge of T_lin further tokens are nearly free: that is where waiting work
 * fits without anyone noticing. Pure.
 */
import type { Profile } from './profiles.ts';

/** What is in a step, summed up. */
export interface StepLoad {
  /** Prefill and decode tokens. */
  tokens: number;
  decodingSequences: number;
  /** Context of all decoding sequences, in tokens. */
  decodingContext: number;
  /** Σ chunk · (context before it + chunk / 2) over the prefills. */
  prefillPairs: number;
}

/** Milliseconds, without jitter. */
export function stepMilliseconds(profile: Profile, load: StepLoad): number {
  if (load.tokens === 0 || profile.linear.length === 0) return 0;
  return (
    profile.overheadMilliseconds +
    profile.gain * linearMilliseconds(profile.linear, load.tokens) +
    (load.decodingSequences > 0 ? profile.decodeMilliseconds : 0) +
    (profile.contextNanoseconds * load.decodingContext) / 1e6 +
    (profile.attentionNanoseconds * load.prefillPairs) / 1e6
  );
}

/** Interpolated between the points, and beyond the last one with its last slope. */
export function linearMilliseconds(points: Profile['linear'], tokens: number): number {
  let [x0, y0] = points[0] ?? [1, 0];
  if (tokens <= x0) return y0;
  let slope = 0;
  for (const [x1, y1] of points.slice(1)) {
    slope = (y1 - y0) / (x1 - x0);
    if (tokens <= x1) break;
    [x0, y0] = [x1, y1];
  }
  // The loop leaves x0 at the point below, or at the last point with the slope that led to it.
  return y0 + slope * (tokens - x0);
}
