import { expect, it } from 'vitest';
import { bands } from './bands';

const T = Date.parse('2026-01-01T00:00:00.000Z');
const draw = (shift: number, ...after: number[]) =>
  ({
    now: new Date(T + shift).toISOString(),
    attempts: after.map((ms, i) => ({ number: i + 1, at: new Date(T + shift + ms).toISOString() })),
  }) as never;

it('spans the earliest and the latest of all draws, each from its own now', () => {
  expect(bands([draw(0, 0, 1_000), draw(500, 0, 700), draw(900, 0, 1_600)])).toEqual([
    { number: 1, at: T, earliest: T, latest: T },
    { number: 2, at: T + 1_000, earliest: T + 700, latest: T + 1_600 },
  ]);
  expect(bands([])).toEqual([]);
});
