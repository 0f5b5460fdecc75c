/** How workers stand. */

import type { Worker } from '../api/types';

/** So long a worker is silent at most while it waits for work: a poll takes a minute. */
const SILENCE = 90_000;

/** Whether it has asked lately; polls take their time on the wall, however fast the server's clock runs. */
export function asksStill(worker: Pick<Worker, 'last_seen_at'>, now: number, rate: number): boolean {
  return worker.last_seen_at !== null && now - Date.parse(worker.last_seen_at) < SILENCE * Math.max(1, rate / 10);
}

/** A word for the list. One that holds nothing any more can be stopped. */
export function standing(worker: Pick<Worker, 'last_seen_at' | 'draining'>, holds: number, now: number, rate: number): 'draining' | 'drained' | 'takes work' | 'silent' {
  if (worker.draining) return holds > 0 ? 'draining' : 'drained';
  // Whoever is busy with all it can do asks for no more.
  return holds > 0 || asksStill(worker, now, rate) ? 'takes work' : 'silent';
}
