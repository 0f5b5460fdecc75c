import { expect, it } from 'vitest';
import { fillBuckets, heat } from './buckets';

it('has a cell for every stretch of time, empty ones too', () => {
  const now = '2026-11-16T00:00:00.000Z';
  const cells = fillBuckets({
    now,
    within_ms: 300_000,
    bucket_ms: 60_000,
    total: 3,
    overdue: 0,
    complete: true,
    buckets: [
      { at: now, count: 1, schedules: 0 },
      { at: '2026-11-16T00:03:00.000Z', count: 2, schedules: 1 },
    ],
  });
  expect(cells.map((cell) => cell.count)).toEqual([1, 0, 0, 2, 0]);
  expect(cells.map((cell) => cell.schedules)).toEqual([0, 0, 0, 1, 0]);
  expect(cells[4]?.at).toBe(Date.parse(now) + 240_000);
});

it('has a step of heat for every number, and none for nothing', () => {
  expect([0, 1, 20, 21, 99, 100, 120].map((n) => heat(n, 100))).toEqual([0, 1, 1, 2, 5, 5, 5]);
  expect(heat(1, 1)).toBe(5);
});
