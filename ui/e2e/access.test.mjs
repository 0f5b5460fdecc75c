// Everybody can use it: axe on every screen in both themes, and nothing wider than a phone.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { fill, openPage, openStage } from './stage.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let stage, screens;

before(async () => {
  stage = await openStage();
  const ids = await fill(stage.api);
  screens = [
    '', 'tasks?q=', 'tasks?q=kind:nothing', `t/${ids.retrying}`, `t/${ids.final}`, `t/${ids.recovered}`, 'executions', `x/${ids.execution}`,
    `x/${ids.execution}?view=gantt`, `x/${ids.execution}?view=list`, 'workflows', 'workflows/etl/nightly', 'upcoming', 'schedules', 'rules', 'workers',
    'playground', 'admin', 'admin/stuck', 'admin/policies', 'admin/keys',
  ];
});
after(() => stage?.close());

async function settle(tab, path) {
  await tab.go(path);
  await tab.page.locator('main h1').first().waitFor();
  await tab.page.locator('.skeleton').first().waitFor({ state: 'detached' });
}

for (const colorScheme of ['light', 'dark']) {
  test(`axe finds nothing, ${colorScheme}`, async () => {
    const tab = await openPage(stage, { colorScheme });
    const all = [];
    for (const path of screens) {
      await settle(tab, path);
      await tab.page.evaluate(axe);
      const found = await tab.page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] });
        return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} (${node.any[0]?.message ?? ''})`).join(' | ')}`);
      });
      all.push(...found.map((it) => `/${path}: ${it}`));
    }
    assert.deepEqual(all, []);
    assert.deepEqual(tab.trouble, []);
    await tab.close();
  });
}

test('no screen is wider than a phone', async () => {
  const tab = await openPage(stage, { viewport: { width: 390, height: 844 } });
  for (const path of screens) {
    await settle(tab, path);
    const wide = await tab.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${path} is ${wide} pixels too wide`);
  }
  await tab.close();
});
