import { describe, expect, test } from 'vitest';
import type { PolicyBacktest } from '../api/types';
import { change, kindOf, load, rows, verdict } from './backtest';

const arm = (
  recovered: number,
  retries: number,
  more: Partial<PolicyBacktest['recorded']> = {},
): PolicyBacktest['recorded'] => ({
  recovered,
  given_up: 10 - recovered,
  open: 0,
  retries,
  wasted: retries - recovered,
  cost: 0,
  recovery_p50_ms: 60_000,
  recovery_p95_ms: 600_000,
  peak_per_minute: 4,
  ...more,
});
const tested = (
  recorded: PolicyBacktest['recorded'],
  candidate: PolicyBacktest['recorded'],
  unknown = 0,
): PolicyBacktest => ({
  policy: false,
  words: [],
  since: '2026-11-10T00:00:00.000Z',
  until: '2026-11-10T01:00:00.000Z',
  complete: true,
  tasks: 10,
  recorded,
  candidate,
  by_hand: 0,
  unknown,
  lost: { count: 0, first: [] },
  won: { count: 0, first: [] },
  attempts: [],
  bucket_ms: 900_000,
  load: [],
  errors: [],
});

test('one sentence says what comes back, and at what price', () => {
  expect(verdict(tested(arm(8, 40), arm(8, 20)))).toBe(
    '8 of 10 tasks would have come back, as they did, with 20 retries in place of 40 (−50 %).',
  );
  expect(verdict(tested(arm(8, 40), arm(5, 60), 2))).toBe(
    'At least 5 of 10 tasks would have come back; 8 did, with 60 retries in place of 40 (+50 %).',
  );
  expect(verdict(tested(arm(8, 40), arm(5, 60, { open: 3 })))).toMatch(/\(\+50 %\); 3 would still wait\.$/);
  expect(verdict(tested(arm(8, 40), arm(8, 40)))).toBe(
    '8 of 10 tasks would have come back, as they did, with as many retries (40).',
  );
});

test('rows tell what is better', () => {
  const found = rows(tested(arm(8, 40), arm(7, 20, { peak_per_minute: 9, recovery_p50_ms: null })));
  const of = (title: string) => found.find((row) => row.title === title);
  expect(of('Recovered')).toMatchObject({ was: '8 (80 %)', is: '7 (70 %)', good: false });
  expect(of('Retries')).toMatchObject({ change: '−50 %', good: true });
  expect(of('Most retries in a minute')).toMatchObject({ change: '+125 %', good: false });
  expect(of('Half came back within')).toMatchObject({ was: '1m', is: '–', good: null });
  expect(of('Credits')).toBeUndefined();
  expect(rows(tested(arm(8, 40, { cost: 40 }), arm(8, 20, { cost: 20 }))).some((row) => row.title === 'Credits')).toBe(
    true,
  );
});

test('what is not known is neither better nor worse', () => {
  expect(rows({ ...tested(arm(8, 40), arm(5, 20)), by_hand: 2 })[0]?.was).toBe('8 (80 %), 2 by hand');
  const other = { ...tested(arm(8, 40), arm(8, 20)), lost: { count: 1, first: [] }, won: { count: 1, first: [] } };
  expect(verdict(other)).toMatch(/^8 of 10 tasks would have come back; 8 did,/);
  expect(rows(tested(arm(8, 40), arm(5, 20), 3))[0]).toMatchObject({
    is: 'at least 5 (50 %)',
    change: 'up to 3 more',
    good: null,
  });
});

test('a change is said where there is one', () => {
  expect([change(10, 10), change(0, 5), change(3, 4), change(4, 1)]).toEqual(['', '', '+33 %', '−75 %']);
});

test('the load has no gaps', () => {
  const points = load({
    ...tested(arm(1, 1), arm(1, 1)),
    load: [{ at: '2026-11-10T00:30:00.000Z', recorded: 3, candidate: 1 }],
  });
  expect(points.map((it) => it.recorded)).toEqual([0, 0, 3, 0, 0]);
});

describe('the kind of a filter', () => {
  test.each([
    ['kind:payments.charge', 'payments.charge'],
    ['state:dead kind:"a b"', 'a b'],
    ['kind:a,b', null],
    ['kind:a.*', null],
    ['-kind:a', null],
    ['kind:a kind:b', null],
    ['', null],
  ])('%s', (filter, kind) => expect(kindOf(filter)).toBe(kind));
});
