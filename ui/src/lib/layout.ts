/** Where the boxes of a graph stand: layered, from left to right, the same every time for the same graph. */

import { graphlib, layout } from '@dagrejs/dagre';
import { depths } from './depths';

export interface Box {
  id: string;
  x: number;
  y: number;
}

export interface Arrow {
  from: string;
  to: string;
  when: string;
  path: string;
}

export interface Picture {
  width: number;
  height: number;
  boxes: Box[];
  arrows: Arrow[];
}

export const BOX = { width: 208, height: 56 };

type Edges = { from: string; to: string; when: string }[];

/** The careful layout takes seconds from here on; the plain one takes none. */
const MANY = 250;

export function picture(ids: string[], edges: Edges): Picture {
  return ids.length > MANY ? plain(ids, edges) : careful(ids, edges);
}

/** Columns by how much must come before; in each, what comes from the same place stands together. */
export function plain(ids: string[], edges: Edges): Picture {
  const known = new Set(ids);
  const inside = edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
  const before = new Map<string, string[]>(ids.map((id) => [id, []]));
  for (const { from, to } of inside) before.get(to)?.push(from);
  const found = depths(ids, inside);
  const columns: string[][] = [];
  for (const id of ids) (columns[found.get(id) ?? 0] ??= []).push(id);
  const place = new Map<string, number>();
  columns.forEach((column, depth) => {
    if (depth > 0) {
      const middle = (id: string) => {
        const places = (before.get(id) ?? []).map((it) => place.get(it) ?? 0);
        return places.reduce((sum, it) => sum + it, 0) / Math.max(1, places.length);
      };
      const middles = new Map(column.map((id) => [id, middle(id)]));
      column.sort((a, b) => (middles.get(a) ?? 0) - (middles.get(b) ?? 0));
    }
    column.forEach((id, i) => place.set(id, i - column.length / 2));
  });
  const [wide, high] = [BOX.width + 64, BOX.height + 14];
  const tallest = Math.max(1, ...columns.map((column) => column.length));
  const boxes = ids.map((id) => ({
    id,
    x: 12 + (found.get(id) ?? 0) * wide,
    y: Math.round(12 + ((place.get(id) ?? 0) + tallest / 2) * high),
  }));
  const at = new Map(boxes.map((box) => [box.id, box]));
  const side = (id: string, sign: number) => ({
    x: (at.get(id)?.x ?? 0) + (sign > 0 ? BOX.width : 0),
    y: (at.get(id)?.y ?? 0) + BOX.height / 2,
  });
  return {
    width: 24 + columns.length * wide - 64,
    height: 24 + tallest * high,
    boxes,
    arrows: inside.map(({ from, to, when }) => ({ from, to, when, path: curve(side(from, 1), [], side(to, -1)) })),
  };
}

function careful(ids: string[], edges: Edges): Picture {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: 'LR', nodesep: 18, ranksep: 48, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of ids) graph.setNode(id, { ...BOX });
  const known = new Set(ids);
  const inside = edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
  for (const { from, to } of inside) graph.setEdge(from, to);
  layout(graph as never);
  /** The middle of the right side of a box, or of its left one. */
  const side = (id: string, sign: number) => {
    const node = graph.node(id) as { x: number; y: number };
    return { x: node.x + (sign * BOX.width) / 2, y: node.y };
  };
  const size = graph.graph() as { width?: number; height?: number };
  return {
    width: Math.ceil(size.width ?? BOX.width),
    height: Math.ceil(size.height ?? BOX.height),
    boxes: ids.map((id) => {
      const node = graph.node(id) as { x: number; y: number };
      return { id, x: Math.round(node.x - BOX.width / 2), y: Math.round(node.y - BOX.height / 2) };
    }),
    arrows: inside.map(({ from, to, when }) => {
      const edge = graph.edge(from, to) as { points: { x: number; y: number }[] };
      return { from, to, when, path: curve(side(from, 1), edge.points.slice(1, -1), side(to, -1)) };
    }),
  };
}

interface Point {
  x: number;
  y: number;
}

/** From side to side, by what lies between; a line that bends rather than one with corners. */
function curve(from: Point, via: Point[], to: Point): string {
  // Between neighbours what lies between is only the middle.
  const stops = [from, ...(via.length > 1 ? via : []), to];
  const parts = [`M${r(from.x)} ${r(from.y)}`];
  for (let i = 1; i < stops.length; i += 1) {
    const [a, b] = [stops[i - 1], stops[i]];
    if (!a || !b) continue;
    const half = (b.x - a.x) / 2;
    parts.push(`C${r(a.x + half)} ${r(a.y)} ${r(b.x - half)} ${r(b.y)} ${r(b.x)} ${r(b.y)}`);
  }
  return parts.join('');
}

const r = (n: number) => Math.round(n * 10) / 10;
