/**
 * HalfSipHash-2-4 with 64 bits of output (Aumasson and Bernstein's reference, 32-bit words): keyed, so that nobody who
 * does not know the key can fill one partition with equal hashes. Equality is decided by the ids, never by the hash.
 */

/** Writes the hash of bytes [start, end) to out[0] (low) and out[1] (high). */
export type IdHash = (bytes: Uint8Array, start: number, end: number, out: Uint32Array) => void;

export const HASH_KEY_BYTES = 8;

const rotate = (x: number, by: number): number => (x << by) | (x >>> (32 - by));

/** @param key eight random bytes, new for each index pass */
export function keyedIdHash(key: Uint8Array): IdHash {
  const word = (at: number): number =>
    key[at]! | (key[at + 1]! << 8) | (key[at + 2]! << 16) | (key[at + 3]! << 24);
  const k0 = word(0);
  const k1 = word(4);
  return (bytes, start, end, out) => {
    let v0 = k0;
    let v1 = k1 ^ 0xee;
    let v2 = 0x6c796765 ^ k0;
    let v3 = 0x74656462 ^ k1;
    const rounds = (count: number): void => {
      for (let i = 0; i < count; i++) {
        v0 = (v0 + v1) | 0;
        v1 = rotate(v1, 5) ^ v0;
        v0 = rotate(v0, 16);
        v2 = (v2 + v3) | 0;
        v3 = rotate(v3, 8) ^ v2;
        v0 = (v0 + v3) | 0;
        v3 = rotate(v3, 7) ^ v0;
        v2 = (v2 + v1) | 0;
        v1 = rotate(v1, 13) ^ v2;
        v2 = rotate(v2, 16);
      }
    };
    const whole = start + ((end - start) & ~3);
    let i = start;
    for (; i < whole; i += 4) {
      const m = bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24);
      v3 ^= m;
      rounds(2);
      v0 ^= m;
    }
    let last = (end - start) << 24;
    if (end - whole > 0) last |= bytes[i]!;
    if (end - whole > 1) last |= bytes[i + 1]! << 8;
    if (end - whole > 2) last |= bytes[i + 2]! << 16;
    v3 ^= last;
    rounds(2);
    v0 ^= last;
    v2 ^= 0xee;
    rounds(4);
    out[0] = v1 ^ v3;
    v1 ^= 0xdd;
    rounds(4);
    out[1] = v1 ^ v3;
  };
}
