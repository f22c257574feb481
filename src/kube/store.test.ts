import { describe, expect, test } from '@jest/globals';
import type { Change, KubeObject } from './contract.ts';
import { ObjectStore } from './store.ts';

interface Job extends KubeObject {
  spec: { model: string };
}

const job = (name: string, resourceVersion: string, changes: { uid?: string; model?: string } = {}): Job => ({
  apiVersion: 'v1',
  kind: 'Job',
  metadata: { name, namespace: 'ns', uid: changes.uid ?? `uid-${name}`, resourceVersion },
  spec: { model: changes.model ?? 'llama' },
});

const byModel = { model: (object: Job) => [object.spec.model] };
const told = (changes: readonly Change<Job>[]): string[] =>
  changes.map(({ type, object }) => `${type} ${object.metadata.name} ${object.metadata.uid}`);

describe('a store', () => {
  test('tells what is new, what changed with its old state, and what is gone', () => {
    const store = new ObjectStore<Job>();
    const [first, second] = [job('a', '1'), job('a', '2')];
    expect(store.put(first)).toEqual([{ type: 'Added', object: first }]);
    expect(store.put(second)).toEqual([{ type: 'Updated', object: second, old: first }]);
    expect(told(store.delete(job('a', '3')))).toEqual(['Deleted a uid-a']);
    expect([store.size, store.get('ns/a')]).toEqual([0, undefined]);
  });

  test('tells nothing of a version it has', () => {
    const store = new ObjectStore<Job>();
    store.put(job('a', '1'));
    expect(store.put(job('a', '1'))).toEqual([]);
  });

  test('tells an object with another UID as the end of the old one and the beginning of a new one', () => {
    const store = new ObjectStore<Job>(byModel);
    store.put(job('a', '1', { uid: 'old', model: 'x' }));
    expect(told(store.put(job('a', '9', { uid: 'new', model: 'y' })))).toEqual([
      'Deleted a old',
      'Added a new',
    ]);
    expect(store.byIndex('model', 'x')).toEqual([]);
    expect(store.byIndex('model', 'y')).toHaveLength(1);
  });

  test('keeps an object when the deletion of its predecessor comes late', () => {
    const store = new ObjectStore<Job>();
    store.put(job('a', '9', { uid: 'new' }));
    expect(store.delete(job('a', '5', { uid: 'old' }))).toEqual([]);
    expect(store.size).toBe(1);
  });

  test('takes in a whole list: ends first, then what is new or changed', () => {
    const store = new ObjectStore<Job>();
    for (const name of ['gone', 'same', 'changed', 'replaced']) store.put(job(name, '1'));
    const same = store.get('ns/same');
    const changes = store.replace([
      job('same', '1'),
      job('changed', '2'),
      job('replaced', '7', { uid: 'other' }),
      job('new', '8'),
    ]);
    expect(told(changes)).toEqual([
      'Deleted gone uid-gone',
      'Updated changed uid-changed',
      'Deleted replaced uid-replaced',
      'Added replaced other',
      'Added new uid-new',
    ]);
    expect(store.get('ns/same')).toBe(same);
  });

  test('freezes objects to the bottom and drops managedFields', () => {
    const store = new ObjectStore<Job>();
    const object = job('a', '1');
    Object.assign(object.metadata, { managedFields: [{ manager: 'kubectl' }] });
    store.put(object);
    const kept = store.get('ns/a');
    expect(kept?.metadata).not.toHaveProperty('managedFields');
    expect(() => {
      Object.assign(kept?.spec ?? {}, { model: 'other' });
    }).toThrow(TypeError);
  });

  test('keeps indexes right through changes, and names the ones there are', () => {
    const store = new ObjectStore<Job>({ ...byModel, none: () => [] });
    store.put(job('a', '1', { model: 'x' }));
    store.put(job('b', '1', { model: 'x' }));
    store.put(job('a', '2', { model: 'y' }));
    const names = (value: string): string[] =>
      store.byIndex('model', value).map(({ metadata }) => metadata.name);
    expect([names('x'), names('y'), names('z')]).toEqual([['b'], ['a'], []]);
    store.delete(job('b', '1'));
    expect(names('x')).toEqual([]);
    expect(() => store.byIndex('modle', 'x')).toThrow('no index "modle"; there are: model, none');
  });

  test('keeps an object that an indexer cannot read, and reports it', () => {
    const reported: string[] = [];
    const store = new ObjectStore<Job>(byModel, (index, object) => {
      reported.push(`${index} ${object.metadata.name}`);
    });
    const broken = job('a', '1');
    delete (broken as Partial<Job>).spec;
    expect(told(store.put(broken))).toEqual(['Added a uid-a']);
    expect(reported).toEqual(['model a']);
  });

  test('lists without copying until something changes', () => {
    const store = new ObjectStore<Job>();
    store.put(job('a', '1'));
    const list = store.list();
    expect(store.list()).toBe(list);
    store.put(job('b', '1'));
    expect(store.list()).toHaveLength(2);
    expect(list).toHaveLength(1);
  });
});
