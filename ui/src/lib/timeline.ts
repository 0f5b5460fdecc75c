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
  /** Where now is. */
  now: number;
}

/** Room at both ends, as a part of the width. */
const MARGIN = 0.03;

export function scale(past: number[], now: number, future: number[]): Scale {
  const behind = past.map((at) => now - at).filter((it) => it > 0);
  const ahead = future.map((at) => at - now).filter((it) => it > 0);
  const least = Math.min(...behind, ...ahead);
  const unit = Number.isFinite(least) ? Math.max(250, least / 2) : 1_000;
  const longest = { behind: Math.max(0, ...behind), ahead: Math.max(0, ...ahead) };
  const place = nowAt(past.length, future.length);
  const side = (span: number, full: number, room: number) =>
    full <= 0 ? 0 : (Math.log1p(Math.min(span, full) / unit) / Math.log1p(full / unit)) * room;
  return {
    now: place,
    x: (at) =>
      at < now
        ? place - side(now - at, longest.behind, place - MARGIN)
        : place + side(at - now, longest.ahead, 1 - MARGIN - place),
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
  for (let i = 0; i < moved.length; i += 1) moved[i] = Math.max(moved[i] ?? 0, i === 0 ? from : (moved[i - 1] ?? 0) + gap);
  for (let i = moved.length - 1; i >= 0; i -= 1) moved[i] = Math.min(moved[i] ?? 0, i === moved.length - 1 ? to : (moved[i + 1] ?? 0) - gap);
  return moved;
}
