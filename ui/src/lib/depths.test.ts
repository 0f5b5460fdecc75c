import { expect, it } from 'vitest';
import { depths } from './depths';

it('counts the longest way to each task', () => {
  const edges = [
    ['a', 'b'],
    ['b', 'c'],
    ['a', 'c'],
  ].map(([from, to]) => ({ from: from as string, to: to as string }));
  expect([...depths(['a', 'b', 'c', 'd'], edges)]).toEqual([
    ['a', 0],
    ['b', 1],
    ['c', 2],
    ['d', 0],
  ]);
});

it('ends in a circle too', () => {
  expect(
    depths(
      ['a', 'b'],
      [
        { from: 'a', to: 'b' },
        { from: 'b', to: 'a' },
      ],
    ).size,
  ).toBe(2);
});
