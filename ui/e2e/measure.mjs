// Measurements for the tests and `make ui-budgets`: size, and how soon the demo shows a retry and a recovery.
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { openPage, startServer } from './stage.mjs';

/** Bytes of every file that a browser loads, compressed. */
export async function weigh() {
  const folder = join(import.meta.dirname, '../dist');
  const sizes = {};
  for (const name of await readdir(folder, { recursive: true })) {
    if (/\.(js|css|html|svg)$/.test(name)) sizes[name] = gzipSync(await readFile(join(folder, name))).length;
  }
  return sizes;
}

/** In seconds from the command. */
export const TARGETS = {
  'first screen': 3,
  'first retry visible': 5,
  'first action possible': 20,
  'first recovered': 15,
};

/** Starts the demo as somebody would, and says when each of the above was seen. `then` looks at what else is there. */
export async function watchDemo(browser, then = async () => {}) {
  const folder = await mkdtemp(join(tmpdir(), 'comeback-demo-'));
  const began = performance.now();
  const took = {};
  const note = (what) => (took[what] = (performance.now() - began) / 1000);
  const server = await startServer(['demo', '--listen', '127.0.0.1:0'], folder);
  try {
    const tab = await openPage({ url: server.url, browser });
    await tab.go('');
    await tab.page.locator('.figures').waitFor();
    note('first screen');
    await tab.page.locator('[data-badge=retrying]').first().waitFor();
    note('first retry visible');
    // One that waits for days: most others have come back before somebody has clicked.
    await tab.go('tasks?q=state:retrying+kind:kyc.recheck');
    await tab.page.locator('tbody tr').first().locator('a').first().click();
    await tab.page.locator('button:not([aria-disabled=true])', { hasText: 'Retry now' }).waitFor();
    note('first action possible');
    await tab.go('tasks?q=state:recovered');
    await tab.page.locator('[data-badge=recovered]').first().waitFor();
    note('first recovered');
    await then(tab);
    await tab.close();
  } finally {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  }
  return took;
}
