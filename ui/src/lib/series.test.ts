import { expect, it } from 'vitest';
import { filled, outcomes } from './series';

const point = {
  at: '2026-11-16T01:00:00.000Z',
  attempts: 9,
  succeeded: 5,
  failed: 4,
  first_failures: 4,
  recovered: 2,
  wasted: 1,
  given_up: 1,
  cost: 3,
};

it('fills the parts in which nothing happened', () => {
  const all = filled([point], '2026-11-16T00:00:00.000Z', '2026-11-16T02:30:00.000Z', 3_600_000);
  expect(all.map(({ attempts }) => attempts)).toEqual([0, 9, 0]);
  expect(all[2]?.at).toBe('2026-11-16T02:00:00.000Z');
});

it('tells first tries from what came back', () => {
  expect(outcomes(point)).toEqual({ first: 3, recovered: 2, dead: 1 });
});
