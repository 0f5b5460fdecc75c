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
  const cells = Array.from({ length: Math.max(1, Math.ceil(within_ms / bucket_ms)) }, (_, i) => ({ at: start + i * bucket_ms, count: 0, schedules: 0 }));
  for (const bucket of buckets) {
    const cell = cells[Math.floor((Date.parse(bucket.at) - start + 1) / bucket_ms)];
    if (!cell) continue;
    cell.count += bucket.count;
    cell.schedules += bucket.schedules;
  }
  return cells;
}

/** Stretches that make a readable picture. */
export const RANGES = [
  { title: '1h', within: '1h', bucket: '1m' },
  { title: '24h', within: '24h', bucket: '15m' },
  { title: '7d', within: '7d', bucket: '2h' },
  { title: '30d', within: '30d', bucket: '12h' },
] as const;
