/** The server names only stretches of time in which something is due; a picture needs the others too. */

import type { Upcoming } from '../api/types';

export interface Cell {
  at: number;
  count: number;
  /** How often schedules fire in it. */
  schedules: number;
}

export function fillBuckets({ now, within_ms, bucket_ms, buckets }: Upcoming): Cell[] {
  const start = Date.parse(now);
  const cells = Array.from({ length: Math.max(1, Math.ceil(within_ms / bucket_ms)) }, (_, i) => ({
    at: start + i * bucket_ms,
    count: 0,
    schedules: 0,
  }));
  for (const bucket of buckets) {
    const cell = cells[Math.floor((Date.parse(bucket.at) - start + 1) / bucket_ms)];
    if (!cell) continue;
    cell.count += bucket.count;
    cell.schedules += bucket.schedules;
  }
  return cells;
}

/** Which of the six steps of heat so many are, of the most there are at once. */
export function heat(n: number, most: number): number {
  return n === 0 ? 0 : Math.min(5, Math.max(1, Math.ceil((n / most) * 5)));
}

/** Stretches that make a readable picture. Thirty days are a calendar: parts that fit into days of every zone, of which the server tells 10,000 at most. */
export const RANGES = [
  { title: '1h', within: '1h', bucket: '1m' },
  { title: '24h', within: '24h', bucket: '15m' },
  { title: '7d', within: '7d', bucket: '2h' },
  { title: '30d', within: '30d', bucket: '10m' },
] as const;
