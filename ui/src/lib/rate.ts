/** The speed of a clock, rounded to what a person would have set. */
const USUAL = [2, 3, 5, 10, 20, 30, 60, 100, 120, 300, 600, 1_000, 3_600];

/** How fast another clock runs, from how much passed there and here; near a usual number it is that number. */
export function rateOf(there: number, here: number): number {
  if (here <= 0 || there <= 0) return 1;
  const rate = there / here;
  if (rate < 1.2) return rate > 0.8 ? 1 : rate;
  // A short measurement is not precise.
  const blur = here < 2_000 ? 0.35 : 0.15;
  return USUAL.find((usual) => Math.abs(rate - usual) / usual < blur) ?? rate;
}
