/**
 * Hardware and model pairs the look-alike can pretend to be. The T_lin points, ridge, context and attention costs
 * are kernel sums from aiconfigurator's measured vLLM tables (H100/H200: vLLM 0.24, A100: 0.14; bf16); `overhead`
 * and `gain` stand for CPU and launch cost, chosen in the middle of the ranges that fit Splitwise's end-to-end
 * figures. Defaults of M and max_num_seqs are vLLM's own for the hardware.
 */

export interface Profile {
  /** What it stands for, for people. */
  title: string;
  /** [tokens in a step, milliseconds of its linear layers], growing. Empty: a step takes no time. */
  linear: readonly (readonly [tokens: number, milliseconds: number])[];
  overheadMilliseconds: number;
  gain: number;
  /** Nanoseconds for each token of context of each decoding sequence. */
  contextNanoseconds: number;
  /** Added once to a step that decodes anything. */
  decodeMilliseconds: number;
  /** Nanoseconds for each pair of a prefill token and a token before it. */
  attentionNanoseconds: number;
  /** Standard deviation of the logarithm of a step's time. */
  jitter: number;
  kvTokens: number;
  blockSize: number;
  maxNumBatchedTokens: number;
  maxNumSeqs: number;
}

const POINTS = [1, 64, 256, 512, 1024, 2048, 4096, 8192] as const;
const linear = (...milliseconds: number[]): Profile['linear'] =>
  POINTS.map((tokens, index) => [tokens, milliseconds[index] ?? 0] as const);

const gpu = (
  title: string,
  points: Profile['linear'],
  contextNanoseconds: number,
  decodeMilliseconds: number,
  attentionNanoseconds: number,
  kvTokens: number,
  small: 'A100' | 'larger',
  tensorParallel: boolean,
): Profile => ({
  title,
  linear: points,
  overheadMilliseconds: tensorParallel ? 3 : 1.5,
  gain: tensorParallel ? 1.3 : 1.15,
  contextNanoseconds,
  decodeMilliseconds,
  attentionNanoseconds,
  jitter: 0.05,
  kvTokens,
  blockSize: 16,
  maxNumBatchedTokens: small === 'A100' ? 2_048 : 8_192,
  maxNumSeqs: small === 'A100' ? 256 : 1_024,
});

export const PROFILES = {
  instant: {
    title: 'no time at all: for tests of everything but time',
    linear: [],
    overheadMilliseconds: 0,
    gain: 1,
    contextNanoseconds: 0,
    decodeMilliseconds: 0,
    attentionNanoseconds: 0,
    jitter: 0,
    kvTokens: 4_000_000,
    blockSize: 16,
    maxNumBatchedTokens: 8_192,
    maxNumSeqs: 1_024,
  },
  // Fitted by eye to vLLM 0.32 on one CPU core with a random model of 4 layers: ITL 7.5 ms alone, 10.8 ms beside
  // 16 requests of 256 to 64 tokens, steps of about 90 ms where a prompt of 1,510 tokens is computed whole.
  'tiny-cpu': {
    title: 'the tiny random model that the real vLLM serves on one CPU core',
    linear: [
      [1, 5.5],
      [16, 7],
      [64, 10],
      [256, 20],
      [512, 34],
      [1024, 62],
      [2048, 120],
    ],
    overheadMilliseconds: 1.5,
    gain: 1,
    contextNanoseconds: 500,
    decodeMilliseconds: 0,
    attentionNanoseconds: 5,
    jitter: 0.1,
    kvTokens: 262_144,
    blockSize: 128,
    maxNumBatchedTokens: 2_048,
    maxNumSeqs: 32,
  },
  'llama3-8b-h100': gpu(
    'Llama-3-8B, one H100',
    linear(5.4, 6.3, 6.9, 9.8, 18.3, 36.4, 71.8, 154),
    48,
    0.4,
    0.77,
    430_000,
    'larger',
    false,
  ),
  'llama3-8b-h200': gpu(
    'Llama-3-8B, one H200',
    linear(4.1, 4.7, 5.9, 9.5, 18.4, 39.6, 78.4, 159),
    34,
    0,
    0.79,
    850_000,
    'larger',
    false,
  ),
  'llama3-8b-a100': gpu(
    'Llama-3-8B, one A100-80',
    linear(10.4, 10.5, 18.0, 30.7, 56.7, 107, 213, 431),
    85,
    0,
    2.88,
    421_000,
    'A100',
    false,
  ),
  'llama3-70b-tp4-h100': gpu(
    'Llama-3-70B, four H100',
    linear(13.1, 16.1, 23.3, 38.4, 72.6, 136, 278, 595),
    28.6,
    1.0,
    0.95,
    487_000,
    'larger',
    true,
  ),
  'llama3-70b-tp8-h100': gpu(
    'Llama-3-70B, eight H100',
    linear(8.4, 10.4, 16.1, 27.6, 51.3, 98, 181, 369),
    14.2,
    1.1,
    0.46,
    1_420_000,
    'larger',
    true,
  ),
  'llama3-70b-tp4-a100': gpu(
    'Llama-3-70B, four A100-80',
    linear(24.9, 30.8, 64, 107, 184, 346, 665, 1_311),
    57.8,
    0,
    3.64,
    487_000,
    'A100',
    true,
  ),
  'llama3-70b-tp8-a100': gpu(
    'Llama-3-70B, eight A100-80',
    linear(15.0, 18.7, 45, 84, 137, 237, 460, 856),
    28.0,
    0,
    1.84,
    1_420_000,
    'A100',
    true,
  ),
} as const satisfies Record<string, Profile>;

export type ProfileName = keyof typeof PROFILES;
export const PROFILE_NAMES = Object.keys(PROFILES) as ProfileName[];
