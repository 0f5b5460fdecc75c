/** Where the boxes of a graph stand: layered, from left to right, the same every time for the same graph. */

import { graphlib, layout } from '@dagrejs/dagre';

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

export function picture(ids: string[], edges: { from: string; to: string; when: string }[]): Picture {
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
