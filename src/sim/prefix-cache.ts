/**
 * Which beginnings of prompts are still in the KV cache: whole blocks, each named by a hash over all text up to its
 * end, the least recently used forgotten first. As in vLLM, forgetting ignores priority. Pure.
 */
import { BYTES_PER_TOKEN } from './tokens.ts';

export class PrefixCache {
  readonly #blockTokens: number;
  /** In order of use, the oldest first. */
  readonly #blocks = new Set<number>();

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  /** Names of the whole blocks of a prompt, from its beginning. */
  blocksOf(prompt: string): number[] {
    const bytes = Buffer.from(prompt);
    const blockBytes = this.#blockTokens * BYTES_PER_TOKEN;
    const names: number[] = [];
    let [low, high] = [0x811c9dc5, 0x1b873593];
    for (let at = 0; at + blockBytes <= bytes.length; at += blockBytes) {
      for (let i = at; i < at + blockBytes; i++) {
        low = Math.imul(low ^ (bytes[i] ?? 0), 0x01000193);
        high = Math.imul(high ^ (bytes[i] ?? 0), 0x5bd1e995);
      }
      // 53 bits: two chains of 32 make a collision as rare as it must be for a simulation.
      names.push((low >>> 0) * 2 ** 21 + (high >>> 11));
    }
    return names;
  }

  /** How many tokens of the beginning are there; marks them as used. At least one token is always computed. */
  hit(blocks: readonly number[], promptTokens: number): number {
    let found = 0;
    for (const block of blocks) {
      if (!this.#blocks.delete(block)) break;
      this.#blocks.add(block);
      found++;
    }
    const whole = found * this.#blockTokens;
    return whole < promptTokens ? whole : Math.max(0, whole - this.#blockTokens);
  }

  insert(blocks: readonly number[]): void {
    for (const block of blocks) {
      this.#blocks.delete(block);
      this.#blocks.add(block);
    }
  }

  /** Forgets the oldest until at most so many blocks are left: the others are needed by running requests. */
  shrink(most: number): void {
    for (const block of this.#blocks) {
      if (this.#blocks.size <= most) return;
      this.#blocks.delete(block);
    }
  }

  get size(): number {
    return this.#blocks.size;
  }
}
