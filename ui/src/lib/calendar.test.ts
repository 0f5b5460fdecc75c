import { describe, expect, it } from 'vitest';
import type { Upcoming } from '../api/types';
import { beginOf, dayWords, weeks, type Day } from './calendar';

const HOUR = 3_600_000;
const asked = (now: string, buckets: [string, number, number?][] = [], within_ms = 30 * 24 * HOUR): Upcoming => ({
  now,
  within_ms,
  bucket_ms: 600_000,
  total: 0,
  overdue: 0,
  complete: true,
  buckets: buckets.map(([at, count, schedules = 0]) => ({ at, count, schedules })),
});
const date = (text: string) => Date.parse(`${text}T00:00:00Z`) / 86_400_000;
const iso = (at: number) => new Date(at).toISOString();
const find = (all: Day[][], title: string) => all.flat().find((day) => day.title === title);

describe('days', () => {
  it('begin at midnight of the zone', () => {
    expect(iso(beginOf(date('2026-11-24'), 'utc'))).toBe('2026-11-24T00:00:00.000Z');
    expect(iso(beginOf(date('2026-11-24'), 'Asia/Kolkata'))).toBe('2026-11-23T18:30:00.000Z');
    expect(iso(beginOf(date('2026-11-24'), 'America/New_York'))).toBe('2026-11-24T05:00:00.000Z');
    expect(beginOf(date('2026-11-24'), 'local')).toBe(new Date(2026, 10, 24).getTime());
  });

  it('have 23 or 25 hours where clocks are moved', () => {
    const hours = (day: string, zone: string) => (beginOf(date(day) + 1, zone) - beginOf(date(day), zone)) / HOUR;
    expect(
      ['2026-03-28', '2026-03-29', '2026-03-30', '2026-10-25', '2026-10-26'].map((day) => hours(day, 'Europe/Berlin')),
    ).toEqual([24, 23, 24, 25, 24]);
    // There midnight itself is left out.
    expect(iso(beginOf(date('2026-03-08'), 'America/Havana'))).toBe('2026-03-08T05:00:00.000Z');
    expect(hours('2026-03-08', 'America/Havana')).toBe(23);
    expect(hours('2026-11-01', 'America/Havana')).toBe(25);
  });
});

describe('weeks', () => {
  it('go from Monday to Sunday, over the end of a month', () => {
    const all = weeks(asked('2026-11-17T13:39:18.932Z'), 'utc');
    expect(all.map((week) => week[0]?.title)).toEqual([
      'Monday 16 November',
      'Monday 23 November',
      'Monday 30 November',
      'Monday 7 December',
      'Monday 14 December',
    ]);
    expect(all.every((week) => week.length === 7)).toBe(true);
    const days = all.flat();
    expect(days.filter((day) => day.month).map((day) => `${day.number} ${day.month}`)).toEqual(['16 Nov', '1 Dec']);
    expect(days.filter((day) => day.isToday).map((day) => day.title)).toEqual(['Tuesday 17 November']);
    // Thirty days from the middle of one are a part of 31.
    expect(days.filter((day) => day.isInside)).toHaveLength(31);
    expect(find(all, 'Monday 16 November')?.isInside).toBe(false);
    expect(find(all, 'Thursday 17 December')?.isInside).toBe(true);
    expect(find(all, 'Friday 18 December')?.isInside).toBe(false);
    expect(days.slice(1).every((day, i) => day.from === days[i]?.to)).toBe(true);
  });

  it('may begin on a Sunday, and end on one', () => {
    const all = weeks(asked('2026-11-15T23:59:00.000Z'), 'utc');
    expect(all).toHaveLength(6);
    expect(all[0]?.map((day) => day.isInside)).toEqual([false, false, false, false, false, false, true]);
    expect(weeks(asked('2026-11-15T00:00:00.000Z', [], 24 * HOUR), 'utc')).toHaveLength(1);
  });

  it('follow the zone', () => {
    const now = '2026-11-15T23:30:00.000Z';
    expect(
      weeks(asked(now), 'Asia/Tokyo')
        .flat()
        .find((day) => day.isToday)?.title,
    ).toBe('Monday 16 November');
    expect(weeks(asked(now), 'Asia/Tokyo')[0]?.[0]?.isToday).toBe(true);
  });

  it('hold each part of time on one day', () => {
    const now = '2026-11-17T13:05:00.000Z';
    const all = weeks(
      asked(now, [
        [now, 4, 1],
        ['2026-11-17T23:45:00.000Z', 2],
        ['2026-11-17T23:55:00.000Z', 3, 1],
        ['2026-11-24T12:05:00.000Z', 5],
        ['2026-12-17T12:55:00.000Z', 1],
      ]),
      'utc',
    );
    const [today, tomorrow] = [find(all, 'Tuesday 17 November'), find(all, 'Wednesday 18 November')];
    expect([today?.count, today?.schedules]).toEqual([6, 1]);
    // It reaches over midnight.
    expect([tomorrow?.count, tomorrow?.schedules]).toEqual([3, 1]);
    expect(find(all, 'Tuesday 24 November')?.count).toBe(5);
    expect(find(all, 'Thursday 17 December')?.count).toBe(1);
    expect(all.flat().reduce((sum, day) => sum + day.count, 0)).toBe(15);
  });

  it('lose nothing at the far edge', () => {
    const all = weeks(asked('2026-11-16T00:00:00.000Z', [['2026-12-15T23:55:00.000Z', 2]]), 'utc');
    expect(find(all, 'Tuesday 15 December')?.count).toBe(2);
    expect(find(all, 'Wednesday 16 December')?.isInside).toBe(false);
  });
});

it('says a day in words', () => {
  const all = weeks(
    asked('2026-11-17T13:00:00.000Z', [
      ['2026-11-17T14:00:00.000Z', 12],
      ['2026-11-24T12:00:00.000Z', 3, 2],
      ['2026-11-25T12:00:00.000Z', 1],
      ['2026-11-26T12:00:00.000Z', 0, 1440],
    ]),
    'utc',
  );
  const say = (title: string, overdue = 0) => dayWords(find(all, title) as Day, overdue);
  expect(say('Tuesday 24 November')).toBe('Tuesday 24 November: 3 tasks due, schedules fire twice');
  expect(say('Wednesday 25 November')).toBe('Wednesday 25 November: 1 task due');
  expect(say('Thursday 26 November')).toBe('Thursday 26 November: nothing due, schedules fire 1,440 times');
  expect(say('Tuesday 17 November', 2)).toBe('Tuesday 17 November, today: 12 tasks due, 2 of them overdue');
  expect(say('Monday 16 November')).toBe('Monday 16 November');
});
