/** Facets of tasks: for each label and the queue, how many tasks have which value. */

import { quote } from './filter';

export interface Facet {
  name: string;
  values: { value: string; n: number; filter: string }[];
  /** How many values are not listed. */
  more: number;
}

const MOST = 5;

export function facets(tasks: { queue: string; labels?: Record<string, string> | null }[]): Facet[] {
  const found = new Map<string, Map<string, number>>();
  const add = (name: string, value: string) => {
    const values = found.get(name) ?? new Map<string, number>();
    found.set(name, values.set(value, (values.get(value) ?? 0) + 1));
  };
  for (const { queue, labels } of tasks) {
    add('queue', queue);
    for (const [name, value] of Object.entries(labels ?? {})) add(`label.${name}`, value);
  }
  return [...found].map(([name, counts]) => {
    const ranked = [...counts].toSorted(([a, n], [b, m]) => m - n || a.localeCompare(b));
    return {
      name,
      values: ranked.slice(0, MOST).map(([value, n]) => ({ value, n, filter: `${name}:${quote(value)}` })),
      more: Math.max(0, ranked.length - MOST),
    };
  });
}
