import { describe, expect, it } from 'vitest';
import { abridged, inside, rows, scale, spread } from './timeline';

const NOW = 1_000_000_000_000;
const DAY = 86_400_000;

describe('the scale', () => {
  it('keeps the order of time, and everything inside', () => {
    const past = [NOW - 360_000, NOW - 300_000, NOW - 168_000];
    const future = [NOW + 72_000, NOW + 600_000, NOW + 14 * DAY];
    const { x, now } = scale(past, NOW, future);
    const places = [...past, NOW, ...future].map(x);
    expect(places).toEqual([...places].sort((a, b) => a - b));
    expect(new Set(places).size).toBe(places.length);
    expect(x(NOW)).toBe(now);
    expect(places.every((it) => it >= 0.02 && it <= 0.98)).toBe(true);
  });

  it('gives two seconds and two weeks room each', () => {
    const { x } = scale([NOW - 2_000], NOW, [NOW + 2_000, NOW + 14 * DAY]);
    expect(x(NOW + 2_000) - x(NOW)).toBeGreaterThan(0.02);
    expect(x(NOW + 14 * DAY) - x(NOW + 2_000)).toBeGreaterThan(0.1);
  });

  it('puts now at the edge when one side is empty', () => {
    expect(scale([], NOW, [NOW + 1_000]).now).toBeLessThan(0.1);
    expect(scale([NOW - 1_000], NOW, []).now).toBeGreaterThan(0.9);
    expect(scale([], NOW, []).x(NOW)).toBe(0.5);
  });
});

it('abridges what is long', () => {
  const many = Array.from({ length: 40 }, (_, i) => i);
  expect(abridged(many)).toEqual([0, 1, 2, 3, 4].map((item) => ({ item })).concat([{ left: 34 }, { item: 39 }] as never));
  expect(abridged([1, 2])).toEqual([{ item: 1 }, { item: 2 }]);
  expect(abridged([])).toEqual([]);
});

it('puts labels into rows so that none covers another', () => {
  const labels = [
    { x: 50, width: 60, weight: 1 },
    { x: 70, width: 60, weight: 2 },
    { x: 80, width: 60, weight: 0 },
    { x: 300, width: 60, weight: 0 },
  ];
  expect(rows(labels, 2)).toEqual([1, 0, -1, 0]);
});

it('moves what stands too near, and no further than it must', () => {
  expect(spread([10, 12, 100], 20, 0, 200)).toEqual([10, 30, 100]);
  expect(spread([190, 195, 200], 20, 0, 200)).toEqual([160, 180, 200]);
  expect(spread([1, 2, 3], 20, 0, 30)).toEqual([1, 2, 3]);
  expect(spread([], 20, 0, 30)).toEqual([]);
});

it('keeps labels inside', () => {
  expect(inside(5, 60, 500)).toBe(30);
  expect(inside(495, 60, 500)).toBe(470);
  expect(inside(100, 60, 500)).toBe(100);
});
