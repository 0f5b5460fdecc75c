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
  await stage.api.put('dependencies/psp.example', { breaker: {}, gate: {}, concurrency: { max: 5 } });
  await stage.api.put('alerts/failures', { types: ['task.failed'], threshold: 5, window: '5m' });
  await stage.api.put('subscriptions/ops', { url: 'http://127.0.0.1:1/hook', types: ['alert.fired'] });
  await stage.api.put('accounts/acme', { credits: 100, budget: { retries_per_day: 20 } });
  await stage.api.post(`tasks/${ids.queued}/pause`, { note: 'for the audit' });
  await stage.api.post('tasks/bulk', { action: 'resume', filter: 'kind:nobody.wants' });
  // Groups are counted in the background.
  let group;
  while (!group) group = (await stage.api.get('errors?limit=1')).items[0]?.fingerprint;
  screens = [
    '',
    'tasks?q=',
    'tasks?q=kind:nothing',
    `t/${ids.retrying}`,
    `t/${ids.final}`,
    `t/${ids.recovered}`,
    'executions',
    `x/${ids.execution}`,
    `x/${ids.execution}?view=gantt`,
    `x/${ids.execution}?view=list`,
    `x/${ids.execution}?view=events`,
    'workflows',
    'workflows/etl/nightly',
    'upcoming',
    'upcoming?range=30d',
    'errors',
    'errors?state=',
    `e/${group}`,
    'analytics',
    'schedules',
    'guards',
    'guards/rules',
    'guards/accounts',
    'workers',
    'playground',
    'admin',
    'admin/audit',
    'admin/operations',
    'admin/alerts',
    'admin/subscriptions',
    'admin/stuck',
    'admin/policies',
    'admin/keys',
  ];
});
after(() => stage?.close());

async function settle(tab, path) {
  await tab.go(path);
  await tab.page.locator('main h1').first().waitFor();
  await tab.page.locator('.skeleton').first().waitFor({ state: 'detached' });
}

/** Findings of axe, of all rules or only of colour contrast. */
async function faults(page, runOnly) {
  return page.evaluate(async (runOnly) => {
    const { violations } = await window.axe.run(document, { runOnly, resultTypes: ['violations'] });
    return violations.map(
      ({ id, nodes }) =>
        `${id}: ${nodes
          .slice(0, 3)
          .map((node) => `${node.html.slice(0, 160)} (${node.any[0]?.message ?? ''})`)
          .join(' | ')}`,
    );
  }, runOnly);
}

test('axe finds nothing, light and dark', async () => {
  const tab = await openPage(stage, { colorScheme: 'light', reducedMotion: 'reduce' });
  const all = [];
  for (const path of screens) {
    await tab.page.emulateMedia({ colorScheme: 'light' });
    await settle(tab, path);
    await tab.page.evaluate(axe);
    const light = await faults(tab.page, {
      type: 'tag',
      values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'],
    });
    await tab.page.emulateMedia({ colorScheme: 'dark' });
    const dark = await faults(tab.page, { type: 'rule', values: ['color-contrast', 'link-in-text-block'] });
    all.push(...light.map((it) => `/${path}: ${it}`), ...dark.map((it) => `/${path}, dark: ${it}`));
  }
  assert.deepEqual(all, []);
  assert.deepEqual(tab.trouble, []);
  await tab.close();
});

test('no screen is wider than a phone', async () => {
  const tab = await openPage(stage, { viewport: { width: 390, height: 844 } });
  for (const path of screens) {
    await settle(tab, path);
    const wide = await tab.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${path} is ${wide} pixels too wide`);
  }
  await tab.close();
});
