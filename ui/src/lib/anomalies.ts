/** Parts of time in which far more failed than usual. A rule and no guess: so far above the middle of all parts that chance does not explain it. */

export interface Failing {
  at: string;
  attempts: number;
  failed: number;
}

export interface Unusual {
  at: string;
  failed: number;
  /** The usual number for a part of this length. */
  usual: number;
}

/** Fewer failures than these are nobody's business, and fewer parts than these have no usual. */
const MATTERS = 10;
const PARTS = 4;
/** As a normal distribution has it, the middle distance from the middle is so much of its spread. */
const SPREAD = 1.4826;

function middle(numbers: number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b);
  const half = sorted.length / 2;
  return ((sorted[Math.ceil(half) - 1] ?? 0) + (sorted[Math.floor(half)] ?? 0)) / 2;
}

export function unusual(points: Failing[]): Unusual[] {
  // Parts before the first task do not count.
  const first = points.findIndex((point) => point.attempts > 0);
  const lived = first < 0 ? [] : points.slice(first);
  if (lived.length < PARTS) return [];
  const numbers = lived.map((point) => point.failed);
  const usual = middle(numbers);
  const spread = Math.max(1, Math.sqrt(usual), SPREAD * middle(numbers.map((n) => Math.abs(n - usual))));
  return lived
    .filter(({ failed }) => failed >= MATTERS && failed > usual + 4 * spread)
    .map(({ at, failed }) => ({ at, failed, usual }));
}

/** The change of a number: `12 % more than before`, or that there is none to compare with. */
export function trend(now: number, before: number): string {
  if (before === 0) return now === 0 ? 'as before' : 'none before';
  const change = Math.round((100 * (now - before)) / before);
  return change === 0
    ? 'as before'
    : `${Math.abs(change).toLocaleString('en')} % ${change > 0 ? 'more' : 'less'} than before`;
}
