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
      return { from, to, when, path: curve(edge.points) };
    }),
  };
}

/** A line that bends, rather than one with corners. */
function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  if (!first || !last) return '';
  const parts = [`M${r(first.x)} ${r(first.y)}`];
  for (let i = 0; i < rest.length - 1; i += 1) {
    const via = rest[i];
    const next = rest[i + 1];
    if (!via || !next) continue;
    const end = i === rest.length - 2 ? next : { x: (via.x + next.x) / 2, y: (via.y + next.y) / 2 };
    parts.push(`Q${r(via.x)} ${r(via.y)} ${r(end.x)} ${r(end.y)}`);
  }
  if (rest.length === 1) parts.push(`L${r(last.x)} ${r(last.y)}`);
  return parts.join('');
}

const r = (n: number) => Math.round(n * 10) / 10;
