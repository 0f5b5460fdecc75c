/** Thirty days as weeks. Days begin at midnight of the chosen zone, and some have 23 or 25 hours. */

import type { Upcoming } from '../api/types';
import { count } from './words';

export interface Day {
  from: number;
  to: number;
  /** Of the month. */
  number: number;
  /** `Nov`, where a month begins or the picture does. */
  month: string;
  /** `Tuesday 24 November`. */
  title: string;
  /** Tasks that are due. */
  count: number;
  /** How often schedules fire. */
  schedules: number;
  isToday: boolean;
  /** Whether it is one of those that were asked for, in part at least. */
  isInside: boolean;
}

export const WEEKDAYS = ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

/** A date without a time, as days since 1970, which no zone bends. */
type DayNumber = number;
const DAY = 86_400_000;
/** 1 January 1970 was a Thursday. */
const weekday = (date: DayNumber) => (((date + 3) % 7) + 7) % 7;

const formats = new Map<string, Intl.DateTimeFormat>();

/** The clock on the wall, as if it were UTC. `zone` is `local`, `utc` or the name of one. */
function wall(at: number, zone: string): number {
  let format = formats.get(zone);
  if (!format) {
    const timeZone = zone === 'utc' ? 'UTC' : zone === 'local' ? undefined : zone;
    formats.set(
      zone,
      (format = new Intl.DateTimeFormat('en-GB', {
        timeZone,
        hourCycle: 'h23',
        year: 'numeric',
        month: '2-digit',
        day: '2-digit',
        hour: '2-digit',
        minute: '2-digit',
        second: '2-digit',
      })),
    );
  }
  const parts = new Map(format.formatToParts(at).map(({ type, value }) => [type, Number(value)]));
  const part = (name: Intl.DateTimeFormatPartTypes) => parts.get(name) ?? 0;
  return Date.UTC(part('year'), part('month') - 1, part('day'), part('hour'), part('minute'), part('second'));
}

const dateOf = (at: number, zone: string): DayNumber => Math.floor(wall(at, zone) / DAY);

/** The first instant of a date. Where clocks are moved there are two ways to count back; midnight itself may be left out. */
export function beginOf(date: DayNumber, zone: string): number {
  const midnight = date * DAY;
  const ways = [midnight - DAY, midnight + DAY].map((at) => midnight - (wall(at, zone) - at));
  return Math.min(...ways.filter((at) => dateOf(at, zone) >= date));
}

/** Weeks from Monday to Sunday that hold everything that was asked for, with what is due on each day. */
export function weeks({ now, within_ms, bucket_ms, buckets }: Upcoming, zone: string): Day[][] {
  const start = Date.parse(now);
  const today = dateOf(start, zone);
  const last = dateOf(start + Math.max(0, within_ms - 1), zone);
  const first = today - weekday(today);
  const days = Array.from({ length: last - weekday(last) + 7 - first }, (_, i): Day => {
    const date = first + i;
    const shown = new Date(date * DAY);
    const name = MONTHS[shown.getUTCMonth()] ?? '';
    const number = shown.getUTCDate();
    return {
      from: beginOf(date, zone),
      to: beginOf(date + 1, zone),
      number,
      month: number === 1 || i === 0 ? name.slice(0, 3) : '',
      title: `${WEEKDAYS[weekday(date)]} ${number} ${name}`,
      count: 0,
      schedules: 0,
      isToday: date === today,
      isInside: date >= today && date <= last,
    };
  });
  for (const bucket of buckets) {
    // Parts of time begin at now, so one may reach over midnight. It counts where it ends: far more is set to midnight than to a little before.
    const ends = Date.parse(bucket.at) + bucket_ms - 1;
    const day = days.find((it) => it.isInside && ends < it.to) ?? days.findLast((it) => it.isInside);
    if (!day) continue;
    day.count += bucket.count;
    day.schedules += bucket.schedules;
  }
  return Array.from({ length: days.length / 7 }, (_, i) => days.slice(i * 7, i * 7 + 7));
}

/** A day in words: `Tuesday 24 November: 3 tasks due, schedules fire twice`. */
export function dayWords(day: Day, overdue = 0): string {
  if (!day.isInside) return day.title;
  const parts = [day.count ? `${count(day.count, 'task')} due` : 'nothing due'];
  if (day.isToday && overdue) parts.push(`${overdue.toLocaleString('en')} of them overdue`);
  if (day.schedules)
    parts.push(
      `schedules fire ${day.schedules === 1 ? 'once' : day.schedules === 2 ? 'twice' : `${day.schedules.toLocaleString('en')} times`}`,
    );
  return `${day.title}${day.isToday ? ', today' : ''}: ${parts.join(', ')}`;
}
