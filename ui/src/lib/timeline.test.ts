import { describe, expect, it } from 'vitest';
import { abridged, inside, near, rounded, rows, scale, spread, zooms } from './timeline';

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

  it('leads back from a place to its instant', () => {
    const past = [NOW - 3 * DAY, NOW - 300_000, NOW - 2_000];
    const future = [NOW + 72_000, NOW + 600_000, NOW + 14 * DAY];
    const { x, at, now } = scale(past, NOW, future);
    for (const instant of [...past, NOW, ...future, NOW - 40_000, NOW + 5 * DAY])
      expect(Math.abs(at(x(instant)) - instant)).toBeLessThan(1);
    for (const place of [0.03, 0.1, now, 0.7, 0.97]) expect(x(at(place))).toBeCloseTo(place, 9);
    expect(at(now)).toBe(NOW);
  });

  it('goes on beyond the last instant, and not for ever', () => {
    const { at } = scale([NOW - 1_000], NOW, [NOW + DAY]);
    expect(at(0.99)).toBeGreaterThan(NOW + DAY);
    expect(at(50)).toBe(NOW + 10 * DAY);
    expect(scale([NOW - 1_000], NOW, []).at(1)).toBe(NOW);
    expect(scale([], NOW, [NOW + DAY]).at(0)).toBe(NOW);
  });
});

it('abridges what is long', () => {
  const many = Array.from({ length: 40 }, (_, i) => i);
  expect(abridged(many)).toEqual(
    [0, 1, 2, 3, 4].map((item) => ({ item })).concat([{ left: 34 }, { item: 39 }] as never),
  );
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

describe('a zoom', () => {
  const run = (ago: number) => ({ start: NOW - ago - 1_000, end: NOW - ago });
  const to = (ahead: number, band = 0) => ({
    number: 1,
    at: NOW + ahead,
    earliest: NOW + ahead,
    latest: NOW + ahead + band,
  });
  const past = [run(2 * DAY), run(7_200_000), run(60_000)];
  const future = [to(60_000), to(3_500_000, 300_000), to(20 * DAY)];

  it('keeps what is near, and counts the rest', () => {
    const it = near(past, future, NOW, 3_600_000);
    expect([it.past.length, it.future.length, it.earlier, it.later]).toEqual([1, 2, 2, 1]);
    expect(near([{ start: NOW - 2 * DAY, end: NOW - 1_000 }], [], NOW, DAY).earlier).toBe(0);
    expect(near(past, future, NOW, null)).toEqual({ past, future, earlier: 0, later: 0 });
  });

  it('is offered where it leaves something out, and not everything', () => {
    const titles = (...given: Parameters<typeof zooms>) => zooms(...given).map(({ title }) => title);
    expect(titles(past, future, null, NOW)).toEqual(['1h', '1d', '14d']);
    expect(titles([run(60_000)], [to(60_000)], null, NOW)).toEqual([]);
    expect(titles([run(60_000)], [to(60_000)], NOW + 2 * DAY, NOW)).toEqual(['1h', '1d']);
    expect(titles([run(3 * DAY)], [to(4 * DAY)], null, NOW)).toEqual([]);
    expect(titles([], [], null, NOW)).toEqual([]);
  });
});

it('rounds what a hand means by how far it is', () => {
  const at = Date.UTC(2026, 10, 17, 19, 15, 34, 123);
  const text = (ahead: number) => new Date(rounded(at, at - ahead)).toISOString().slice(11, 23);
  expect(text(60_000)).toBe('19:15:34.000');
  expect(text(3_600_000)).toBe('19:16:00.000');
  expect(text(DAY)).toBe('19:15:00.000');
  expect(text(9 * DAY)).toBe('19:15:00.000');
  expect(rounded(at + 480_000, at - 9 * DAY)).toBe(Date.UTC(2026, 10, 17, 19, 30));
});
