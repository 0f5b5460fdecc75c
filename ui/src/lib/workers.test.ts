import { expect, test } from 'vitest';
import { asksStill, standing } from './workers';

const NOW = Date.parse('2026-11-16T12:00:00Z');
const seen = (secondsAgo: number) => ({ last_seen_at: new Date(NOW - secondsAgo * 1_000).toISOString() });

test('a worker that polls is heard of every minute', () => {
  expect(asksStill(seen(61), NOW, 1)).toBe(true);
  expect(asksStill(seen(91), NOW, 1)).toBe(false);
  expect(asksStill(seen(91), NOW, 60)).toBe(true);
  expect(asksStill({ last_seen_at: null }, NOW, 1)).toBe(false);
});

test('a worker is drained when it holds nothing any more', () => {
  const holds = (count: number, more = false) => ({ count, more });
  expect(standing({ ...seen(1), draining: true }, holds(2), NOW, 1)).toBe('draining');
  expect(standing({ ...seen(500), draining: true }, holds(0), NOW, 1)).toBe('drained');
  expect(standing({ ...seen(500), draining: true }, holds(0, true), NOW, 1)).toBe('draining');
  expect(standing({ ...seen(500), draining: false }, holds(1), NOW, 1)).toBe('takes work');
  expect(standing({ ...seen(1), draining: false }, holds(0), NOW, 1)).toBe('takes work');
  expect(standing({ ...seen(500), draining: false }, holds(0), NOW, 1)).toBe('silent');
});
