/** How workers stand. */

import type { Worker } from '../api/types';

/** So long a worker is silent at most while it waits for work: a poll takes a minute. */
const SILENCE = 90_000;

/** Whether it has asked lately; polls take their time on the wall, however fast the server's clock runs. */
export function asksStill(worker: Pick<Worker, 'last_seen_at'>, now: number, rate: number): boolean {
  return worker.last_seen_at !== null && now - Date.parse(worker.last_seen_at) < SILENCE * Math.max(1, rate / 10);
}

/** What a worker holds, as far as it was counted. */
export interface Held {
  count: number;
  /** There may be more. */
  more: boolean;
}

/** A word for the list. Only of one that holds nothing for certain it is said that it can be stopped. */
export function standing(worker: Pick<Worker, 'last_seen_at' | 'draining'>, { count, more }: Held, now: number, rate: number): 'draining' | 'drained' | 'takes work' | 'silent' {
  if (worker.draining) return count > 0 || more ? 'draining' : 'drained';
  // Whoever is busy with all it can do asks for no more.
  return count > 0 || asksStill(worker, now, rate) ? 'takes work' : 'silent';
}
