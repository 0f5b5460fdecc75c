/** What the loops in the background say of themselves. */

import type { Loop } from '../api/types';
import { duration, instant } from './time';

/** How often one looks: some do only what they are asked for. */
export function everyWords(period: number | null): string {
  return period === null ? 'when asked' : duration(period);
}

/** When the loops said this. It is not before any of them looked, however far behind our idea of their time is. */
export function toldAt(loops: Pick<Loop, 'looked_at'>[], now: number): number {
  return Math.max(now, ...loops.map((it) => instant(it.looked_at) ?? 0));
}

/** Who paused it and why, in one line. */
export function pauseWords({ note, by }: Pick<Loop, 'note' | 'by'>): string {
  return [note ?? '', by ? `(${by})` : ''].filter(Boolean).join(' ');
}
