// How large it is, and how soon somebody who starts the demo sees what it is about.
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { openBrowser, openPage, startServer } from './stage.mjs';

test('all of it is at most 250 KB, compressed', async () => {
  const folder = join(import.meta.dirname, '../dist');
  let total = 0;
  for (const name of await readdir(folder, { recursive: true })) {
    if (!/\.(js|css|html|svg)$/.test(name)) continue;
    const size = gzipSync(await readFile(join(folder, name))).length;
    total += size;
    console.log(`${name}: ${(size / 1024).toFixed(1)} KB`);
  }
  console.log(`all: ${(total / 1024).toFixed(1)} KB`);
  assert.ok(total <= 250 * 1024, `${total} bytes`);
});

/** In seconds from the command; a busy machine is given five times as much. */
const TARGETS = { 'first screen': 3, 'first retry visible': 5, 'first action possible': 20, 'first recovered': 15 };

test('the demo shows what it is about within seconds', async () => {
  const browser = await openBrowser();
  const folder = await mkdtemp(join(tmpdir(), 'comeback-demo-'));
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  const server = await startServer(['demo', '--listen', '127.0.0.1:7390'], folder);
  const took = {};
  try {
    const tab = await openPage({ url: server.url, browser });
    await tab.go('tasks?q=');
    await tab.page.locator('main h1').waitFor();
    took['first screen'] = seconds();
    await tab.page.locator('[data-look=retrying]').first().waitFor();
    took['first retry visible'] = seconds();
    await tab.page.locator('tr', { has: tab.page.locator('[data-look=retrying]') }).first().locator('a').first().click();
    await tab.page.locator('button:not([aria-disabled=true])', { hasText: 'Retry now' }).waitFor();
    took['first action possible'] = seconds();
    await tab.go('tasks?q=state:recovered');
    await tab.page.locator('[data-look=recovered]').first().waitFor();
    took['first recovered'] = seconds();
  } finally {
    await browser.close();
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  }
  for (const [what, target] of Object.entries(TARGETS)) {
    console.log(`${what}: ${took[what]?.toFixed(1)} s (target ${target} s)`);
    assert.ok(took[what] <= target * 5, what);
  }
});
