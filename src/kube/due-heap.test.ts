import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { DueHeap } from './due-heap.ts';

describe('DueHeap', () => {
  test('keeps the earliest moment of a key', () => {
    const heap = new DueHeap();
    heap.add('a', 5);
    heap.add('a', 3);
    heap.add('a', 9);
    expect([heap.size, heap.next]).toEqual([1, 3]);
    expect(heap.takeDue(2)).toBeUndefined();
    expect(heap.takeDue(3)).toBe('a');
    expect(heap.takeDue(100)).toBeUndefined();
    expect([heap.size, heap.next]).toEqual([0, undefined]);
  });

  test('agrees with a sorted list, whatever is added and taken', () => {
    const step = fc.oneof(
      fc.record({ add: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g'), at: fc.nat(20) }),
      fc.record({ take: fc.nat(20) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const heap = new DueHeap();
        const model = new Map<string, number>();
        for (const move of steps) {
          if ('add' in move) {
            heap.add(move.add, move.at);
            model.set(move.add, Math.min(move.at, model.get(move.add) ?? Infinity));
          } else {
            const soonest = Math.min(...model.values());
            const taken = heap.takeDue(move.take);
            if (soonest > move.take) {
              expect(taken).toBeUndefined();
            } else {
              // Among equals any may come.
              expect(model.get(taken ?? '')).toBe(soonest);
              model.delete(taken ?? '');
            }
          }
          expect(heap.size).toBe(model.size);
          expect(heap.next).toBe(model.size === 0 ? undefined : Math.min(...model.values()));
        }
      }),
      { numRuns: 500 },
    );
  });
});
