/** How fast another clock runs, from how much passed there and here; near a whole number it is that number. */
export function rateOf(there: number, here: number): number {
  if (here <= 0 || there <= 0) return 1;
  const rate = there / here;
  if (rate < 1.2) return rate > 0.8 ? 1 : rate;
  const nearest = rate > 20 ? Math.round(rate / 5) * 5 : Math.round(rate);
  return Math.abs(rate - nearest) / nearest < 0.1 ? nearest : rate;
}
