import { expect, test } from '@jest/globals';
import { selects, type LabelSelector } from './label-selector.ts';

const labels = { batch: 'yes', team: 'risk', empty: '' };

test.each<[string, LabelSelector, boolean]>([
  ['an empty selector selects everything', {}, true],
  ['a label with its value', { matchLabels: { batch: 'yes' } }, true],
  ['a label with another value', { matchLabels: { batch: 'no' } }, false],
  ['a label that is not there', { matchLabels: { night: 'yes' } }, false],
  ['an empty value is a value', { matchLabels: { empty: '' } }, true],
  ['an absent label has not the empty value', { matchLabels: { night: '' } }, false],
  ['all labels must match', { matchLabels: { batch: 'yes', team: 'other' } }, false],
  ['In', { matchExpressions: [{ key: 'team', operator: 'In', values: ['a', 'risk'] }] }, true],
  ['In needs the label', { matchExpressions: [{ key: 'night', operator: 'In', values: ['a'] }] }, false],
  ['NotIn', { matchExpressions: [{ key: 'team', operator: 'NotIn', values: ['risk'] }] }, false],
  [
    'NotIn holds without the label',
    { matchExpressions: [{ key: 'night', operator: 'NotIn', values: ['a'] }] },
    true,
  ],
  ['Exists', { matchExpressions: [{ key: 'empty', operator: 'Exists' }] }, true],
  ['DoesNotExist', { matchExpressions: [{ key: 'empty', operator: 'DoesNotExist' }] }, false],
  [
    'labels and expressions together',
    { matchLabels: { batch: 'yes' }, matchExpressions: [{ key: 'x', operator: 'Exists' }] },
    false,
  ],
  [
    'a name that every object inherits is no label',
    { matchExpressions: [{ key: 'constructor', operator: 'Exists' }] },
    false,
  ],
])('%s', (_name, selector, expected) => {
  expect(selects(selector, labels)).toBe(expected);
});
