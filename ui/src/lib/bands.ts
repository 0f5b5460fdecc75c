/** How far chance spreads each attempt: the earliest and the latest of several simulations of the same policy. */

import type { Simulation } from '../api/types';
import type { FuturePoint } from './timeline';

export function bands(draws: Pick<Simulation, 'now' | 'attempts'>[]): FuturePoint[] {
  const [first] = draws;
  if (!first) return [];
  const start = Date.parse(first.now);
  return first.attempts.map((attempt, i) => {
    const after = draws.flatMap(({ now, attempts }) =>
      attempts[i] ? [Date.parse(attempts[i].at) - Date.parse(now)] : [],
    );
    return {
      number: attempt.number,
      at: Date.parse(attempt.at),
      earliest: start + Math.min(...after),
      latest: start + Math.max(...after),
    };
  });
}
