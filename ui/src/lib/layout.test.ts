import { expect, it } from 'vitest';
import { BOX, picture } from './layout';

const edges = [
  { from: 'a', to: 'b', when: 'success' },
  { from: 'b', to: 'c', when: 'success' },
  { from: 'b', to: 'd', when: 'failure' },
];

it('puts what needs something to the right of it', () => {
  const { boxes, arrows, width } = picture(['a', 'b', 'c', 'd'], edges);
  const x = Object.fromEntries(boxes.map((box) => [box.id, box.x]));
  expect(x.a).toBeLessThan(x.b as number);
  expect(x.b).toBeLessThan(x.c as number);
  expect(x.c).toBe(x.d);
  expect(arrows.every((arrow) => arrow.path.startsWith('M'))).toBe(true);
  expect(boxes.every((box) => box.x >= 0 && box.x + BOX.width <= width)).toBe(true);
});

it('is the same every time, and leaves out arrows to nowhere', () => {
  const first = picture(['a', 'b'], [...edges]);
  expect(picture(['a', 'b'], [...edges])).toEqual(first);
  expect(first.arrows.length).toBe(1);
});

it('draws two thousand at once, none upon another', () => {
  const ids = Array.from({ length: 2_000 }, (_, i) => `n${i}`);
  const many = ids.slice(1).map((to, i) => ({ from: ids[Math.floor(i / 3)] ?? '', to, when: 'success' }));
  const began = performance.now();
  const { boxes, width, height } = picture(ids, many);
  expect(performance.now() - began).toBeLessThan(2_000);
  expect(new Set(boxes.map((box) => `${box.x} ${box.y}`)).size).toBe(2_000);
  expect(
    boxes.every((box) => box.x >= 0 && box.y >= 0 && box.x + BOX.width <= width && box.y + BOX.height <= height),
  ).toBe(true);
  const x = new Map(boxes.map((box) => [box.id, box.x]));
  expect(many.every(({ from, to }) => (x.get(from) ?? 0) < (x.get(to) ?? 0))).toBe(true);
});
