import { expect, it } from 'vitest';
import { collapse, stem, type Edge, type Item } from './collapse';
import type { Badge } from './states';

const item = (id: string, badge: Badge = 'queued', kind = id.replace(/\W?\d+\W?$/, '')): Item => ({
  id,
  kind,
  key: id,
  badge,
});
const edge = (from: string, to: string): Edge => ({ from, to, when: 'success' });
const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const sizes = (groups: { id: string; items: Item[] }[]) =>
  Object.fromEntries(groups.map((group) => [group.id, group.items.length]));

it('knows that many are one step', () => {
  expect([
    stem(item('load[12]')),
    stem(item('a-1')),
    stem(item('plain')),
    stem({ key: null, kind: 'mail' }),
    stem({ key: '7', kind: 'mail' }),
  ]).toEqual(['load', 'a', 'plain', 'mail', 'mail']);
});

it('puts what is alike into one box, and leaves what differs', () => {
  const loads = range(1_000).map((n) => item(`load[${n}]`, n < 2 ? 'dead' : n < 10 ? 'retrying' : 'succeeded'));
  const items = [item('plan', 'succeeded'), ...loads, item('end')];
  const { groups, edges } = collapse(
    items,
    loads.flatMap(({ id }) => [edge('plan', id), edge(id, 'end')]),
  );
  expect(sizes(groups)).toEqual({ plan: 1, 'load[0]': 1, 'load[1]': 1, 'load[2]': 8, 'load[10]': 990, end: 1 });
  expect(edges.length).toBe(8);
});

it('keeps steps of one kind apart that come after each other', () => {
  const items = range(3).flatMap((n) => [item(`a${n}`, 'queued', 'k'), item(`b${n}`, 'queued', 'k')]);
  const { groups, edges } = collapse(
    items,
    range(3).map((n) => edge(`a${n}`, `b${n}`)),
  );
  expect(sizes(groups)).toEqual({ a0: 3, b0: 3 });
  expect(edges).toEqual([edge('a0', 'b0')]);
});

it('makes one of a thousand steps that are over, and none of those that are not', () => {
  const chain = range(1_000).map((n) => item(`s${n}`, n < 900 ? 'succeeded' : 'queued', `k${n}`));
  const { groups, edges } = collapse(
    chain,
    range(999).map((n) => edge(`s${n}`, `s${n + 1}`)),
  );
  expect(groups.length).toBe(101);
  expect(groups[0]).toMatchObject({ id: 's0', isChain: true });
  expect(groups[0]?.items.length).toBe(900);
  expect(edges.length).toBe(100);
});

it('leads into a chain only at its beginning, so that nothing goes round', () => {
  const items = ['a', 'b', 'c', 'd', 'e'].map((id) => item(id, 'succeeded', id));
  const { groups } = collapse(
    [...items, item('x')],
    [edge('a', 'b'), edge('b', 'c'), edge('c', 'd'), edge('d', 'e'), edge('x', 'c')],
  );
  expect(sizes(groups)).toEqual({ a: 1, b: 1, c: 3, x: 1 });
});
