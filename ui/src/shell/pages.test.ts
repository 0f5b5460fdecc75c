import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { MENU, PAGES } from './pages';

it('lists the pages that the server answers', () => {
  const source = readFileSync('../crates/server/src/ui.rs', 'utf8');
  const list = /const PAGES[^=]*=\s*&\[([^\]]*)\]/.exec(source)?.[1] ?? '';
  expect([...list.matchAll(/"([^"]+)"/g)].map((it) => it[1])).toEqual(PAGES);
});

it('leads to pages that exist, each by its own key', () => {
  for (const { to } of MENU) expect(to === '' || PAGES.includes(to)).toBe(true);
  expect(new Set(MENU.map(({ key }) => key)).size).toBe(MENU.length);
});
