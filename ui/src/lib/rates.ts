/** Rates never stand alone: how many they are of is always said, and few prove nothing. */

export interface Rate {
  rate: number | null;
  n: number;
  low: number | null;
  high: number | null;
}

/** Below this many a rate is not said. */
export const ENOUGH = 20;

const percent = (share: number) => `${share > 0 && share < 0.01 ? '<1' : Math.round(100 * share)} %`;

/** `84 % of 512`, or that there are too few to say. */
export function rateWords({ rate, n }: Rate): string {
  if (n === 0 || rate === null) return 'none yet';
  if (n < ENOUGH) return `${Math.round(rate * n)} of ${n} so far`;
  return `${percent(rate)} of ${n.toLocaleString('en')}`;
}

/** Where the true rate lies, for those who ask. */
export function rateHint({ rate, n, low, high }: Rate): string {
  if (rate === null || low === null || high === null) return 'nothing has been counted';
  const sure = `with 95 % confidence between ${percent(low)} and ${percent(high)}`;
  return n < ENOUGH ? `not enough history (n=${n}); ${sure}` : `${sure} (n=${n})`;
}
