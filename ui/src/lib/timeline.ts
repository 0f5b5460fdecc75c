/**
 * Where things stand on a line of time that must show 2 seconds and 14 days at once: distances from now are drawn by their
 * logarithm, the past to the left, the future to the right.
 */

export interface PastPoint {
  start: number;
  end: number;
}

export interface FuturePoint {
  number: number;
  at: number;
  earliest: number;
  latest: number;
}

export interface Scale {
  /** From an instant to a place between 0 and 1. */
  x(at: number): number;
  /** And back. Beyond the last instant it goes on for a while, so that something can be put after all others. */
  at(x: number): number;
  /** Where now is. */
  now: number;
}

/** Room at both ends, as a part of the width. */
const MARGIN = 0.03;
/** How many times as far as the last instant a place can mean. */
const BEYOND = 10;

export function scale(past: number[], now: number, future: number[]): Scale {
  const behind = past.map((at) => now - at).filter((it) => it > 0);
  const ahead = future.map((at) => at - now).filter((it) => it > 0);
  const least = Math.min(...behind, ...ahead);
  const unit = Number.isFinite(least) ? Math.max(250, least / 2) : 1_000;
  const longest = { behind: Math.max(0, ...behind), ahead: Math.max(0, ...ahead) };
  const place = nowAt(past.length, future.length);
  const side = (span: number, full: number, room: number) =>
    full <= 0 ? 0 : (Math.log1p(Math.min(span, full) / unit) / Math.log1p(full / unit)) * room;
  const span = (part: number, full: number, room: number) =>
    full <= 0 ? 0 : Math.min(unit * Math.expm1((part / room) * Math.log1p(full / unit)), full * BEYOND);
  return {
    now: place,
    x: (at) =>
      at < now
        ? place - side(now - at, longest.behind, place - MARGIN)
        : place + side(at - now, longest.ahead, 1 - MARGIN - place),
    at: (x) =>
      x < place
        ? now - span(place - x, longest.behind, place - MARGIN)
        : now + span(x - place, longest.ahead, 1 - MARGIN - place),
  };
}

/** Each side gets room by how much there is on it, neither less than a quarter. */
function nowAt(past: number, future: number): number {
  if (past === 0 && future === 0) return 0.5;
  if (past === 0) return MARGIN * 2;
  if (future === 0) return 1 - MARGIN * 2;
  return Math.min(0.65, Math.max(0.25, past / (past + future)));
}

export type Shown<T> = { item: T } | { left: number };

/** All of a few; of many the first five, how many are left out, and the last. */
export function abridged<T>(items: T[], most = 12): Shown<T>[] {
  const last = items.at(-1);
  if (items.length <= most || last === undefined) return items.map((item) => ({ item }));
  return [...items.slice(0, 5).map((item) => ({ item })), { left: items.length - 6 }, { item: last }];
}

export interface Label {
  x: number;
  width: number;
  /** Labels of more weight are placed first. */
  weight: number;
}

/** The row of each label, so that none covers another; -1 where there is no room for it. */
export function rows(labels: Label[], count: number, gap = 6): number[] {
  const taken: [number, number][][] = Array.from({ length: count }, () => []);
  const result = labels.map(() => -1);
  const order = labels.map((_, i) => i).sort((a, b) => (labels[b]?.weight ?? 0) - (labels[a]?.weight ?? 0));
  for (const i of order) {
    const label = labels[i];
    if (!label) continue;
    const from = label.x - label.width / 2 - gap / 2;
    const to = label.x + label.width / 2 + gap / 2;
    const row = taken.findIndex((spans) => spans.every(([start, end]) => to <= start || end <= from));
    if (row < 0) continue;
    taken[row]?.push([from, to]);
    result[i] = row;
  }
  return result;
}

/** A label stays inside the picture. */
export function inside(x: number, width: number, full: number): number {
  return Math.max(width / 2, Math.min(full - width / 2, x));
}

/** Places in rising order, moved as little as needed so that none is nearer to its neighbour than `gap`; unchanged where there is no room. */
export function spread(places: number[], gap: number, from: number, to: number): number[] {
  if ((places.length - 1) * gap > to - from) return places;
  const moved = [...places];
  for (let i = 0; i < moved.length; i += 1)
    moved[i] = Math.max(moved[i] ?? 0, i === 0 ? from : (moved[i - 1] ?? 0) + gap);
  for (let i = moved.length - 1; i >= 0; i -= 1)
    moved[i] = Math.min(moved[i] ?? 0, i === moved.length - 1 ? to : (moved[i + 1] ?? 0) - gap);
  return moved;
}

/** How far to look, to both sides of now. */
export const ZOOMS = [
  { title: '1h', span: 3_600_000 },
  { title: '1d', span: 86_400_000 },
  { title: '14d', span: 14 * 86_400_000 },
] as const;

export interface Near<P, F> {
  past: P[];
  future: F[];
  /** How many are left out before and after. */
  earlier: number;
  later: number;
}

/** Attempts within a span before and after now; all of them without a span. */
export function near<P extends PastPoint, F extends FuturePoint>(
  past: P[],
  future: F[],
  now: number,
  span: number | null,
): Near<P, F> {
  if (span === null) return { past, future, earlier: 0, later: 0 };
  const before = past.filter((it) => it.end >= now - span);
  const after = future.filter((it) => it.at <= now + span);
  return { past: before, future: after, earlier: past.length - before.length, later: future.length - after.length };
}

/** The spans that leave something out, and not everything. */
export function zooms(
  past: PastPoint[],
  future: FuturePoint[],
  end: number | null,
  now: number,
): (typeof ZOOMS)[number][] {
  return ZOOMS.filter(({ span }) => {
    const it = near(past, future, now, span);
    const isShorter = it.earlier + it.later > 0 || (end !== null && end > now + span);
    return isShorter && it.past.length + it.future.length > 0;
  });
}

/** A hand is not exact to the second over days: the further away, the rounder. Quarters of hours are round in every zone. */
export function rounded(at: number, now: number): number {
  const far = Math.abs(at - now);
  const step = far < 600_000 ? 1_000 : far < 6 * 3_600_000 ? 60_000 : far < 3 * 86_400_000 ? 300_000 : 900_000;
  return Math.round(at / step) * step;
}
