/** States of workers. */

import type { Worker } from '../api/types';

/** Longest time between two polls of a live worker: a poll takes a minute. */
const SILENCE = 90_000;

/** Whether it has asked lately; polls take their time on the wall, however fast the server's clock runs. */
export function asksStill(worker: Pick<Worker, 'last_seen_at'>, now: number, rate: number): boolean {
  return worker.last_seen_at !== null && now - Date.parse(worker.last_seen_at) < SILENCE * Math.max(1, rate / 10);
}

/** Leases of a worker, as far as they were counted. */
export interface Held {
  count: number;
  /** There may be more. */
  more: boolean;
}

/** The state of a worker. `drained`, so that it can be stopped, only if it certainly has no lease. */
export function standing(
  worker: Pick<Worker, 'last_seen_at' | 'draining'>,
  { count, more }: Held,
  now: number,
  rate: number,
): 'draining' | 'drained' | 'takes work' | 'silent' {
  if (worker.draining) return count > 0 || more ? 'draining' : 'drained';
  // A worker that is fully busy does not poll.
  return count > 0 || asksStill(worker, now, rate) ? 'takes work' : 'silent';
}
