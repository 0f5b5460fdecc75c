/** Words about background loops. */

import type { Loop } from '../api/types';
import { duration, instant } from './time';

/** The interval of a loop; some run only on request. */
export function everyWords(period: number | null): string {
  return period === null ? 'when asked' : duration(period);
}

/** The time of the answer: not before any loop's last run, even if our clock is behind. */
export function toldAt(loops: Pick<Loop, 'looked_at'>[], now: number): number {
  return Math.max(now, ...loops.map((it) => instant(it.looked_at) ?? 0));
}

/** The note of a pause and its author, in one line. */
export function pauseWords({ note, by }: Pick<Loop, 'note' | 'by'>): string {
  return [note ?? '', by ? `(${by})` : ''].filter(Boolean).join(' ');
}
