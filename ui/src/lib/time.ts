/** Times as people read them. Whoever asks says what time it is: the server's clock may run differently from ours. */

export type Zone = 'local' | 'utc';

const UNITS: [string, number][] = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1_000],
];

/** `842ms`, `41s`, `1m 12s`, `3h 3m`, `7d`: at most two units, nothing that does not matter. */
export function duration(ms: number): string {
  const span = Math.abs(ms);
  if (span < 1_000) return `${Math.round(span)}ms`;
  if (span < 10_000) return `${trim((span / 1_000).toFixed(1))}s`;
  const parts: string[] = [];
  let rest = Math.round(span / 1_000) * 1_000;
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count}${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(' ');
}

function trim(text: string): string {
  return text.replace(/\.0$/, '');
}

/** Whole seconds, for a text that counts down. */
export function countdown(ms: number): string {
  return ms < 1_000 ? '0s' : duration(Math.floor(ms / 1_000) * 1_000);
}

/** `in 41s`, `3m ago`, `now`. */
export function relative(at: number, now: number): string {
  const ahead = at - now;
  if (Math.abs(ahead) < 1_000) return 'now';
  return ahead > 0 ? `in ${countdown(ahead)}` : `${coarse(-ahead)} ago`;
}

/** One unit is enough for what has passed. */
export function coarse(ms: number): string {
  for (const [unit, size] of UNITS) {
    if (ms >= size) return `${Math.floor(ms / size)}${unit}`;
  }
  return `${Math.max(0, Math.round(ms))}ms`;
}

export function instant(text: string | null | undefined): number | null {
  if (!text) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : at;
}

/** To make one takes longer than to use it a hundred times. */
const formats = new Map<string, Intl.DateTimeFormat>();

function format(at: number, zone: Zone, options: Intl.DateTimeFormatOptions): string {
  const name = `${zone} ${Object.entries(options).join(' ')}`;
  let made = formats.get(name);
  if (!made)
    formats.set(
      name,
      (made = new Intl.DateTimeFormat('en-GB', { ...options, timeZone: zone === 'utc' ? 'UTC' : undefined })),
    );
  return made.format(at);
}

function day(at: number, zone: Zone): string {
  return format(at, zone, { year: 'numeric', month: '2-digit', day: '2-digit' });
}

/** The time of day; with the date when it is not the day of `now`, with the year when that differs. */
export function clockTime(at: number, now: number, zone: Zone): string {
  const time = format(at, zone, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
  if (day(at, zone) === day(now, zone)) return time;
  const far = Math.abs(at - now) > 300 * 86_400_000;
  const date = format(at, zone, { month: 'short', day: 'numeric', year: far ? 'numeric' : undefined });
  return `${date}, ${time.slice(0, 5)}`;
}

/** Everything there is to say, for a tooltip. */
export function fullTime(at: number, zone: Zone): string {
  const text = format(at, zone, {
    weekday: 'short',
    year: 'numeric',
    month: 'short',
    day: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    fractionalSecondDigits: 3,
  });
  return `${text} ${zoneName(at, zone)}`;
}

/** `UTC`, `UTC+7`, `UTC-3:30`. */
export function zoneName(at: number, zone: Zone): string {
  if (zone === 'utc') return 'UTC';
  const minutes = -new Date(at).getTimezoneOffset();
  if (minutes === 0) return 'UTC+0';
  const rest = Math.abs(minutes) % 60;
  const hours = Math.floor(Math.abs(minutes) / 60);
  return `UTC${minutes < 0 ? '-' : '+'}${hours}${rest ? `:${String(rest).padStart(2, '0')}` : ''}`;
}

/** The same without seconds, for the foot of a chart. */
export function minutes(at: number, now: number, zone: Zone): string {
  return clockTime(at, now, zone).replace(/(\d\d:\d\d):\d\d$/, '$1');
}

/** As a person would type it in the chosen zone, with how far that is from UTC, so that it is one instant only: `2026-11-17T20:15:34+01:00`. */
export function written(at: number, zone: Zone): string {
  const ahead = zone === 'utc' ? 0 : -new Date(at).getTimezoneOffset();
  const text = new Date(at + ahead * 60_000).toISOString().slice(0, 19);
  if (zone === 'utc') return `${text}Z`;
  const two = (n: number) => String(Math.floor(n)).padStart(2, '0');
  return `${text}${ahead < 0 ? '-' : '+'}${two(Math.abs(ahead) / 60)}:${two(Math.abs(ahead) % 60)}`;
}

/** Reads a time that a person typed; without an offset it is meant in the chosen zone. */
export function readTime(text: string, zone: Zone): number | null {
  const typed = text.trim();
  if (!/^\d{4}-\d\d-\d\d/.test(typed)) return null;
  const isWhole = /(?:z|[+-]\d\d:?\d\d)$/i.test(typed.slice(10));
  const day = /^[\d-]+$/.test(typed) ? `${typed}T00:00` : typed.replace(' ', 'T');
  return instant(isWhole || zone === 'local' ? day : `${day}Z`);
}

const INSTANTS = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)(?!\w)/g;

/** A sentence of the server with its instants as this person reads them. What only looks like one stays as it is. */
export function localised(text: string, now: number, zone: Zone): string {
  return text.replace(INSTANTS, (found) => {
    const at = instant(found);
    return at === null ? found : clockTime(at, now, zone);
  });
}
