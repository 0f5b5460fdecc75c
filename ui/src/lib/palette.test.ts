import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { contrast, distance, linear, seen, SIGHTS } from './palette';

const css = readFileSync('src/styles.css', 'utf8');
const pairs = new Map(
  [...css.matchAll(/--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)].map(([, name, light, dark]) => [
    name as string,
    [light as string, dark as string] as const,
  ]),
);
const STATES = ['queued', 'running', 'retrying', 'succeeded', 'dead', 'held', 'canceled'];
const THEMES = ['light', 'dark'] as const;

function colour(name: string, theme: number): string {
  const found = pairs.get(name)?.[theme];
  if (!found) throw new Error(`styles.css has no colour ${name}`);
  return found;
}

it('computes distances as the literature does', () => {
  // Black and white are 100 apart whatever the formula; equal colours are not apart.
  expect(distance([0, 0, 0], [1, 1, 1])).toBeCloseTo(100, 0);
  expect(distance(linear('#336699'), linear('#336699'))).toBe(0);
  expect(contrast('#000000', '#ffffff')).toBeCloseTo(21, 1);
});

describe.each(THEMES.map((name, i) => [name, i] as const))('in the %s theme', (name, theme) => {
  it('no two states look alike to anybody', () => {
    const least = { light: 15, dark: 17 }[name];
    for (const sight of SIGHTS) {
      for (const [i, one] of STATES.entries()) {
        for (const two of STATES.slice(i + 1)) {
          const apart = distance(seen(linear(colour(one, theme)), sight), seen(linear(colour(two, theme)), sight));
          expect(apart, `${one} and ${two}, ${sight}`).toBeGreaterThanOrEqual(least);
        }
      }
    }
  });

  it('fills stand out from the page, and words can be read on every surface', () => {
    for (const state of STATES) {
      // Canceled is meant to step back on the dark page; its word is always beside it.
      if (!(state === 'canceled'))
        expect(contrast(colour(state, theme), colour('page', theme)), state).toBeGreaterThanOrEqual(3);
      for (const surface of ['page', 'surface'])
        expect(
          contrast(colour(`${state}-text`, theme), colour(surface, theme)),
          `${state} on ${surface}`,
        ).toBeGreaterThanOrEqual(4.5);
    }
    for (const surface of ['page', 'surface', 'sunken', 'hover', 'chosen']) {
      expect(contrast(colour('text', theme), colour(surface, theme)), surface).toBeGreaterThanOrEqual(7);
      expect(contrast(colour('quiet', theme), colour(surface, theme)), surface).toBeGreaterThanOrEqual(4.5);
    }
  });

  it('numbers can be read on every heat', () => {
    for (const i of [0, 1, 2, 3, 4, 5])
      expect(contrast(colour(`on-heat-${i}`, theme), colour(`heat-${i}`, theme)), `heat ${i}`).toBeGreaterThanOrEqual(
        4.5,
      );
  });

  it('heat grows steadily', () => {
    const light = [0, 1, 2, 3, 4, 5].map((i) => contrast(colour(`heat-${i}`, theme), colour('surface', theme)));
    expect(light).toEqual([...light].sort((a, b) => a - b));
  });
});
