import { describe, expect, it } from 'vitest';
import {
  clockTime,
  coarse,
  countdown,
  duration,
  fullTime,
  localised,
  minutes,
  readTime,
  relative,
  written,
  zoneName,
} from './time';

const NOW = Date.UTC(2026, 10, 16, 14, 14, 22);

describe('durations', () => {
  it.each([
    [0, '0ms'],
    [842, '842ms'],
    [1_000, '1s'],
    [2_100, '2.1s'],
    [41_000, '41s'],
    [72_000, '1m 12s'],
    [3_600_000, '1h'],
    [3 * 3_600_000 + 180_000, '3h 3m'],
    [604_800_000, '7d'],
    [604_800_000 + 5_000, '7d'],
    [59_999, '1m'],
    [-72_000, '1m 12s'],
  ])('%i ms is %s', (ms, text) => expect(duration(ms)).toBe(text));

  it('counts down in whole seconds', () => {
    expect(countdown(2_999)).toBe('2s');
    expect(countdown(400)).toBe('0s');
  });

  it('says one unit of what has passed', () => {
    expect(coarse(2 * 3_600_000 + 59 * 60_000)).toBe('2h');
    expect(coarse(12)).toBe('12ms');
  });
});

describe('instants', () => {
  it('are relative to the time they are given', () => {
    expect(relative(NOW + 41_000, NOW)).toBe('in 41s');
    expect(relative(NOW - 190_000, NOW)).toBe('3m ago');
    expect(relative(NOW + 300, NOW)).toBe('now');
  });

  it('carry a date only on another day', () => {
    expect(clockTime(NOW, NOW, 'utc')).toBe('14:14:22');
    expect(clockTime(NOW + 7 * 86_400_000, NOW, 'utc')).toBe('23 Nov, 14:14');
    expect(clockTime(NOW + 400 * 86_400_000, NOW, 'utc')).toContain('2027');
  });

  it('always name their zone in full', () => {
    expect(fullTime(NOW, 'utc')).toMatch(/14:14:22\.000 UTC$/);
    expect(zoneName(NOW, 'utc')).toBe('UTC');
  });
});

it('leaves out the seconds at the foot of a chart, and nothing else', () => {
  const now = Date.parse('2026-11-16T12:00:00Z');
  expect(minutes(now, now, 'utc')).toBe('12:00');
  expect(minutes(now + 2 * 86_400_000, now, 'utc')).toMatch(/12:00$/);
});

describe('sentences of the server', () => {
  const say = (text: string) => localised(text, NOW, 'utc');

  it('have their instants as a person reads them', () => {
    expect(
      say('retry 2 of 5, in 1m at 2026-11-16T14:15:34.009Z; held by breaker psp until 2026-11-18T09:00:00.000Z'),
    ).toBe('retry 2 of 5, in 1m at 14:15:34; held by breaker psp until 18 Nov, 09:00');
    expect(say('2026-11-16T14:15:34Z')).toBe('14:15:34');
    expect(say('from 2026-11-16T14:15:34+00:00.')).toBe('from 14:15:34.');
    expect(say('the call said "come back at 2026-11-16T15:00:00Z"')).toBe('the call said "come back at 15:00:00"');
  });

  it('keep everything else', () => {
    for (const text of [
      '',
      'not retried because the error is final',
      'order 2026-11-16 of 14:15',
      '2026-99-99T99:99:99.000Z',
      'x2026-11-16T14:15:34Z',
      '2026-11-16T14:15:34Zulu',
      '2026-11-16T14:15:34+02:00',
    ])
      expect(say(text)).toBe(text);
  });

  it('follow the zone', () => {
    const at = Date.parse('2026-11-16T14:15:34.009Z');
    expect(localised('at 2026-11-16T14:15:34.009Z', NOW, 'local')).toBe(`at ${clockTime(at, NOW, 'local')}`);
  });
});

describe('a time that is typed', () => {
  it('is what is written for an instant', () => {
    expect(written(NOW, 'utc')).toBe('2026-11-16T14:14:22Z');
    for (const zone of ['utc', 'local'] as const) expect(readTime(written(NOW, zone), zone)).toBe(NOW);
  });

  it('is meant in the chosen zone, unless it says which', () => {
    expect(readTime('2026-11-16T14:14:22', 'utc')).toBe(NOW);
    expect(readTime('2026-11-16 14:14:22', 'utc')).toBe(NOW);
    expect(readTime('2026-11-16T14:14:22', 'local')).toBe(new Date(2026, 10, 16, 14, 14, 22).getTime());
    expect(readTime('2026-11-16T16:14:22+02:00', 'utc')).toBe(NOW);
    expect(readTime('2026-11-16', 'utc')).toBe(Date.UTC(2026, 10, 16));
  });

  it('is nothing when it is not a time', () => {
    for (const text of ['', '3h', 'in 3h', '2026', '2026-99-99T00:00']) expect(readTime(text, 'utc')).toBeNull();
  });
});
