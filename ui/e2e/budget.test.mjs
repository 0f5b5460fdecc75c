// How large it is, and how soon somebody who starts the demo sees what it is about.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TARGETS, watchDemo, weigh } from './measure.mjs';
import { openBrowser } from './stage.mjs';

test('all of it is at most 250 KB, compressed', async () => {
  const sizes = await weigh();
  const total = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  for (const [name, size] of [...Object.entries(sizes), ['all', total]])
    console.log(`${name}: ${(size / 1024).toFixed(1)} KB`);
  assert.ok(total <= 250 * 1024, `${total} bytes`);
});

/** Each sort of trouble in the demo, and the screen that it is there to show. */
const SHOWN = {
  'tasks?q=kind:payments.charge': 'payments.charge',
  'tasks?q=kind:email.send': 'email.send',
  'guards/dependencies': 'crm.example',
  'errors?state=': 'vat_id is missing',
  'tasks?q=kind:report.export': 'report.export',
  'upcoming?range=30d': 'kyc.recheck',
  executions: 'order-fulfilment',
  'guards/accounts': 'acme',
};

test('the demo shows what it is about within seconds, each workload on its screen', async () => {
  const browser = await openBrowser();
  try {
    const took = await watchDemo(browser, async (tab) => {
      for (const [path, words] of Object.entries(SHOWN)) {
        await tab.go(path);
        await tab.page.locator('main').getByText(words).first().waitFor();
      }
      assert.deepEqual(tab.trouble, []);
    });
    for (const [what, target] of Object.entries(TARGETS)) {
      console.log(`${what}: ${took[what]?.toFixed(1)} s (target ${target} s)`);
      // A busy machine is given five times as much.
      assert.ok(took[what] <= target * 5, what);
    }
  } finally {
    await browser.close();
  }
});
