/** Points by time, with the parts in between that hold nothing, so that a line does not jump over them. */

export interface Point {
  at: string;
  attempts: number;
  succeeded: number;
  failed: number;
  first_failures: number;
  recovered: number;
  wasted: number;
  given_up: number;
  cost: number;
}

const NOTHING = {
  attempts: 0,
  succeeded: 0,
  failed: 0,
  first_failures: 0,
  recovered: 0,
  wasted: 0,
  given_up: 0,
  cost: 0,
};

export function filled(points: Point[], since: string, until: string, bucketMs: number): Point[] {
  const known = new Map(points.map((point) => [Date.parse(point.at), point]));
  const all: Point[] = [];
  for (let at = Date.parse(since); at < Date.parse(until); at += bucketMs)
    all.push(known.get(at) ?? { at: new Date(at).toISOString(), ...NOTHING });
  return all;
}

/** How tasks ended, from below: at the first try, recovered, given up. */
export const outcomes = (point: Point) => ({
  first: Math.max(0, point.succeeded - point.recovered),
  recovered: point.recovered,
  dead: point.given_up,
});
