/** Links that mean the same tomorrow: what is said from now on or until now becomes an instant. */

import { terms } from './filter';

const UNITS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const REVERSED: Record<string, string> = { '<': '>', '<=': '>=', '>': '<', '>=': '<=' };

function span(text: string): number | null {
  if (!/^(\d+(\.\d+)?(ms|[smhdw]))+$/.test(text)) return null;
  return [...text.matchAll(/(\d+(?:\.\d+)?)(ms|[smhdw])/g)].reduce(
    (sum, [, n, unit]) => sum + Number(n) * (UNITS[unit ?? ''] ?? 0),
    0,
  );
}

/** The same filter without spans: `due:<24h` looks ahead, `age:>1h` and the like look back. */
export function pinned(filter: string, now: number): string {
  return terms(filter)
    .map(({ text, field, value, negated }) => {
      const [, sign, rest] = /^(<=|>=|<|>)(.*)$/.exec(value) ?? [];
      const ms = span(rest ?? '');
      if (!sign || ms === null || !field || !['due', 'age', 'submitted', 'updated'].includes(field)) return text;
      const minus = negated ? '-' : '';
      if (field === 'due') return `${minus}due:${sign}${new Date(now + ms).toISOString()}`;
      return `${minus}${field === 'age' ? 'submitted' : field}:${REVERSED[sign]}${new Date(now - ms).toISOString()}`;
    })
    .join(' ');
}

/** The address of this page with some parameters set. */
export function linkWith(parameters: Record<string, string>): string {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url.href;
}
