import { expect, it } from 'vitest';
import { merge } from './merge';

it('changes rows in place, keeps what is gone, and holds back what is new', () => {
  const before = [
    { id: 'a', n: 1 },
    { id: 'b', n: 1 },
  ];
  const { rows, fresh, gone } = merge(before, [
    { id: 'c', n: 1 },
    { id: 'a', n: 2 },
  ]);
  expect(rows).toEqual([
    { id: 'a', n: 2 },
    { id: 'b', n: 1 },
  ]);
  expect(fresh).toEqual([{ id: 'c', n: 1 }]);
  expect([...gone]).toEqual(['b']);
});
