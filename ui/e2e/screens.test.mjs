// What each screen is for, done by hand in a real browser.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fill, openPage, openStage } from './stage.mjs';

let stage, ids, tab;

before(async () => {
  stage = await openStage();
  ids = await fill(stage.api);
  tab = await openPage(stage);
});
after(async () => {
  assert.deepEqual(tab?.trouble ?? [], []);
  await stage?.close();
});

const text = (selector) => tab.page.locator(selector).first().innerText();
const see = (what) => tab.page.getByText(what).first().waitFor();
const press = (name) => tab.page.getByRole('button', { name, exact: true }).first().click();

test('the overview names what is failing, when it is retried and what can be pressed', async () => {
  await tab.go('');
  await see('Most trouble');
  await see('vat_id is missing');
  await see('503 Service Unavailable');
  await tab.page.getByRole('button', { name: 'Retry all' }).first().waitFor();
  await see('Next hour');
  await tab.page.locator('.figures a', { hasText: 'dead' }).click();
  await tab.page.waitForURL(/tasks\?q=state%3Afailed%2Cdead/);
  await see('invoice.render');
});

test('a filter is in the address, and a bad one is explained where it was written', async () => {
  await tab.go('tasks?q=kind:payments.*');
  await see('payments.charge');
  assert.equal(await tab.page.locator('tbody tr').count(), 1);
  const box = tab.page.getByRole('combobox', { name: 'Filter' });
  await box.fill('nonsense:1');
  await box.press('Enter');
  await see('`nonsense` is not a field');
  await box.fill('st');
  await see('state:');
});

test('new tasks wait behind a button, and rows do not move', async () => {
  await tab.go('tasks?q=');
  await tab.page.locator('tbody tr').first().waitFor();
  const first = await text('tbody tr td[data-column=task]');
  await tab.page.getByText('live', { exact: true }).waitFor();
  await stage.api.submit({ kind: 'brand.new', delay: '1h' });
  await see('1 new');
  assert.equal(await text('tbody tr td[data-column=task]'), first);
  await press('1 new ▲');
  await tab.page.locator('tbody tr', { hasText: 'brand.new' }).waitFor();
});

test('chosen rows can be cancelled together', async () => {
  await tab.go('tasks?q=kind:brand.new');
  await tab.page.getByRole('checkbox', { name: 'Choose all rows of this page' }).check();
  await tab.page.locator('.bulk').getByRole('button', { name: 'Cancel' }).click();
  await see('cancel: 1 task done');
});

test('a task shows its past, the now line, its future and where it ends', async () => {
  await tab.go(`t/${ids.retrying}`);
  await see('Attempt 2 of 6 in');
  await see('HTTP 503');
  const picture = tab.page.getByRole('img', { name: /Timeline/ });
  assert.match(await picture.getAttribute('aria-label'), /1 past attempt, next in .*5 to come, gives up .* → dead/);
  assert.equal(await picture.locator('.to-come').count(), 5);
  assert.equal(await picture.locator('.now').count(), 1);
  assert.equal(await picture.locator('.end').count() > 0, true);
  await press('Policy');
  await see('"strategy": "exponential"');
  await press('Events');
  await see('task.retry_scheduled');
});

test('retry now brings the next attempt forward, and the page follows by itself', async () => {
  await tab.go(`t/${ids.retrying}`);
  await press('Retry now');
  await see('is tried again');
  await see('Ready: waits for a worker');
  await stage.api.succeed('payments.charge', { charged: true });
  await see('Recovered at run 2');
});

test('a dead task says why, and can be brought back', async () => {
  await tab.go(`t/${ids.final}`);
  await see('ValidationError');
  assert.match(await text('.answers'), /final/);
  await press('Retry now');
  await see('Ready: waits for a worker');
});

test('a retry can be put off and cancelled with a note', async () => {
  await tab.go(`t/${ids.long}`);
  await see('Attempt 2 of 3 in 6d');
  await press('Reschedule');
  await tab.page.getByLabel(/How long from now/).fill('3h');
  await tab.page.locator('dialog').getByRole('button', { name: 'Reschedule' }).click();
  await see('Attempt 2 of 3 in 2h 59m');
  await tab.page.getByRole('button', { name: /^Cancel/ }).first().click();
  await tab.page.getByLabel('Note (kept in the log)').fill('not needed any more');
  await tab.page.locator('dialog').getByRole('button', { name: 'Cancel', exact: true }).click();
  await tab.page.locator('[data-look=cancelled]').first().waitFor();
  await press('Events');
  await see('not needed any more');
});

test('upcoming shows what is due as bars that lead to their tasks', async () => {
  await tab.go('upcoming?range=24h');
  await see('nobody.wants');
  await tab.page.locator('svg a').last().click();
  await see('Due in the chosen stretch');
  await see('nobody.wants');
});

test('an execution is a graph, a gantt, a list and a log', async () => {
  await tab.go('executions');
  await tab.page.getByRole('link', { name: /order-fulfilment/ }).click();
  await tab.page.locator('.state', { hasText: 'waits for charge' }).first().waitFor();
  assert.equal(await tab.page.locator('.box').count(), 4);
  assert.match(await tab.page.locator('.box', { hasText: 'charge' }).locator('.name').first().textContent(), /↻\s+charge/);
  assert.match(await tab.page.locator('.box', { hasText: 'attempt 2, in' }).locator('.state').textContent(), /^attempt 2, in \d+/);
  await press('Gantt');
  await tab.page.getByRole('group', { name: /When each of 4 tasks ran/ }).waitFor();
  await press('List');
  await tab.page.locator('tbody tr', { hasText: 'refund' }).waitFor();
  await press('Events');
  await see('task.retry_scheduled');
  await press('Pause');
  await see('The execution is paused');
  await press('Resume');
  await see('The execution goes on');
});

test('a workflow is run from the catalog, and versions are compared', async () => {
  await tab.go('workflows');
  await tab.page.getByRole('link', { name: 'etl/nightly' }).click();
  await see('version 2');
  await press('Changes');
  await see('From version 1 to version 2');
  await see('b.csv');
  await press('Run…');
  await tab.page.locator('dialog').getByRole('button', { name: 'Run' }).click();
  await tab.page.waitForURL(/\/x\//);
  await tab.page.locator('.box', { hasText: 'extract' }).first().waitFor();
});

test('schedules can be run now and paused', async () => {
  await tab.go('schedules');
  await press('Run now');
  await see('nightly was started by hand');
  await press('Pause');
  await see('nightly is paused');
});

test('a limit can be changed', async () => {
  await tab.go('rules');
  await press('Change…');
  await tab.page.getByLabel('How many may run at once').fill('7');
  await press('Save');
  await see('7 at once');
});

test('workers and servers are listed', async () => {
  await tab.go('workers');
  await see('worker-1');
  await see('this one');
});

test('a loop is paused for a while with a reason that every page shows', async () => {
  await tab.go('admin');
  await press('Pause…');
  await tab.page.getByLabel('Why (everybody sees it)').fill('the bank is down');
  await tab.page.locator('dialog').getByRole('button', { name: 'Pause' }).click();
  await see('the bank is down');
  await press('Resume');
  await see('runs again');
});

test('the playground asks the server what a policy means, in every dialect', async () => {
  await tab.go('playground');
  await see('9 executions');
  assert.equal(await tab.page.locator('.band').count() > 0, true);
  for (const [dialect, executions] of [['workflow', 6], ['task', 4], ['job', 6], ['run', 8], ['step', 5]]) {
    await tab.page.getByLabel('Dialect').selectOption(dialect);
    await see(`${executions} executions`);
  }
  await tab.page.locator('textarea').fill('{"max_retries": -1}');
  await tab.page.getByRole('alert').waitFor();
});

test('keys lead everywhere, and the palette finds a task', async () => {
  await tab.go('');
  await see('Overview');
  await tab.page.keyboard.press('g');
  await tab.page.keyboard.press('t');
  await tab.page.waitForURL(/\/tasks/);
  await tab.page.keyboard.press('Control+k');
  await tab.page.getByRole('combobox', { name: 'Search or jump' }).fill('kind:email.send');
  await tab.page.getByRole('option', { name: /✓ email\.send/ }).first().waitFor();
  await tab.page.keyboard.press('Enter');
  await tab.page.waitForURL(new RegExp(`/t/${ids.fine}`));
  await tab.page.keyboard.press('?');
  await see('Local time or UTC');
});
