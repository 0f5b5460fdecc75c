/** Folds large graphs: tasks of one step and state share a box, and so do finished steps in a row. */

import { depths } from './depths';
import type { Badge } from './states';

export interface Item {
  id: string;
  kind: string;
  key: string | null;
  badge: Badge;
}

export interface Group {
  id: string;
  /** In the order in which they were given; one where nothing stands together. */
  items: Item[];
  /** Several steps after each other, all of them over. */
  isChain: boolean;
}

export interface Edge {
  from: string;
  to: string;
  when: string;
}

/** Fewer than so many are drawn one by one. */
const FEW = 3;
const OVER = new Set<Badge>(['succeeded', 'recovered', 'skipped']);

/** `load[3]` is one of many `load`. */
export const stem = ({ key, kind }: { key: string | null; kind: string }): string =>
  key?.replace(/[[\-_.:#/]?\d+\]?$/, '') || kind;

/** Circles cannot come of it: those who stand together have as many steps before them, and a chain has no way in but its first. */
export function collapse(items: Item[], edges: Edge[]): { groups: Group[]; edges: Edge[] } {
  const depth = depths(
    items.map((item) => item.id),
    edges,
  );
  const alike = new Map<string, Item[]>();
  for (const item of items) {
    const name = JSON.stringify([depth.get(item.id), stem(item), item.kind, item.badge]);
    const same = alike.get(name);
    if (same) same.push(item);
    else alike.set(name, [item]);
  }
  const together = [...alike.values()].flatMap((same) => (same.length < FEW ? same.map((item) => [item]) : [same]));
  const groups = together.flatMap((same): Group[] =>
    same[0] ? [{ id: same[0].id, items: same, isChain: false }] : [],
  );
  return chained(groups, between(groups, edges));
}

/** The same edges between groups, each once. */
function between(groups: Group[], edges: Edge[]): Edge[] {
  const place = new Map(groups.flatMap((group) => group.items.map((item) => [item.id, group.id] as const)));
  const found = new Map<string, Edge>();
  for (const { from, to, when } of edges) {
    const [a, b] = [place.get(from), place.get(to)];
    if (a !== undefined && b !== undefined && a !== b)
      found.set(JSON.stringify([a, b, when]), { from: a, to: b, when });
  }
  return [...found.values()];
}

/** Steps that are over and follow each other without a side way become one. */
function chained(groups: Group[], edges: Edge[]): { groups: Group[]; edges: Edge[] } {
  const next = new Map<string, Set<string>>();
  const before = new Map<string, Set<string>>();
  for (const { from, to } of edges) {
    next.set(from, (next.get(from) ?? new Set()).add(to));
    before.set(to, (before.get(to) ?? new Set()).add(from));
  }
  const byId = new Map(groups.map((group) => [group.id, group]));
  const isOver = (group: Group) => group.items.every((item) => OVER.has(item.badge));
  /** The one that follows a step and nothing else, if both are over. */
  const follower = (group: Group): Group | undefined => {
    const [only, ...more] = next.get(group.id) ?? [];
    const it = only === undefined || more.length > 0 ? undefined : byId.get(only);
    return it && before.get(it.id)?.size === 1 && isOver(group) && isOver(it) ? it : undefined;
  };
  const inside = new Set(groups.flatMap((group) => follower(group)?.id ?? []));
  const made: Group[] = [];
  for (const group of groups) {
    if (inside.has(group.id)) continue;
    const chain = [group];
    for (let it = follower(group); it; it = follower(it)) chain.push(it);
    if (chain.length < FEW) made.push(...chain);
    else made.push({ id: group.id, items: chain.flatMap((it) => it.items), isChain: true });
  }
  return { groups: made, edges: between(made, edges) };
}
