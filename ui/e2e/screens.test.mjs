// The main use of each screen, in a real browser.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { clientOf, fill, openPage, openServer, openStage, startServer } from './stage.mjs';

let stage, ids, tab;

before(async () => {
  stage = await openStage('--allow-private-networks');
  ids = await fill(stage.api);
  tab = await openPage(stage);
});
after(async () => {
  assert.deepEqual(tab?.trouble ?? [], []);
  await stage?.close();
});

const text = (selector) => tab.page.locator(selector).first().innerText();
const see = (what) => tab.page.getByText(what).first().waitFor();
const undo = (said) =>
  tab.page.locator('.toasts > div', { hasText: said }).getByRole('button', { name: 'Undo' }).click();
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

test('many tasks are tried out first, done in the background, and taken back', async () => {
  await stage.api.post('tasks', { tasks: Array.from({ length: 120 }, () => ({ kind: 'many.of', delay: '5d' })) });
  await tab.go('tasks?q=kind:many.of');
  await tab.page.getByRole('checkbox', { name: 'Choose all rows of this page' }).check();
  await press('All that match the filter');
  await tab.page.locator('.bulk').getByRole('button', { name: 'Pause' }).click();
  const dialog = tab.page.locator('dialog');
  await dialog.getByText('120 tasks, as of a moment ago').waitFor();
  assert.equal(await dialog.getByRole('button', { name: 'Pause 120 tasks' }).isDisabled(), true);
  await dialog.getByLabel(/Type their number/).fill('120');
  await dialog.getByRole('button', { name: 'Pause 120 tasks' }).click();
  await tab.page.waitForURL(/admin\/operations\//);
  await see('120 of 120');
  await tab.page.getByRole('button', { name: 'Undo', exact: true }).first().click();
  await see('undone');
  assert.equal((await stage.api.get('tasks?q=kind:many.of state:paused&limit=5')).items.length, 0);
});

test('a task shows its past, the now line, its future and where it ends', async () => {
  await tab.go(`t/${ids.retrying}`);
  await see('Attempt 2 of 6 in');
  await see('HTTP 503');
  const picture = tab.page.getByRole('img', { name: /Timeline/ });
  assert.match(await picture.getAttribute('aria-label'), /1 past attempt, next in .*5 to come, gives up .* → dead/);
  assert.equal(await picture.locator('.to-come').count(), 5);
  assert.equal(await picture.locator('.now').count(), 1);
  assert.equal((await picture.locator('.end').count()) > 0, true);
  await press('Policy');
  await see('"strategy": "exponential"');
  await press('Events');
  await see('task.retry_scheduled');
});

test('retry now brings the next attempt forward, and the page follows by itself', async () => {
  await tab.go(`t/${ids.retrying}`);
  await press('Retry now');
  await see(/ retried$/);
  await see('Ready: waits for a worker');
  await stage.api.succeed('payments.charge', { charged: true });
  await see('Recovered at run 2');
});

test('of many attempts the newest are shown, the older ones page by page, any two compared', async () => {
  const [id] = await stage.api.submit({ kind: 'worn.out', retry: { strategy: 'immediate', max_retries: 500 } });
  for (let i = 1; i <= 203; i += 1)
    await stage.api.fail('worn.out', { status: 503, message: i < 203 ? 'not yet' : 'the last one' });
  await tab.go(`t/${id}`);
  await see('50 of 203');
  await see('the last one');
  await see('163 before these');
  assert.match(await text('tbody tr td[data-column=number]'), /^203$/);
  await press('Older ones');
  await tab.page.locator('#attempt-1').waitFor();
  assert.equal(await tab.page.getByRole('button', { name: 'Older ones' }).count(), 0);
  await tab.page.getByLabel('Compared with').selectOption('1');
  await tab.page.locator('del', { hasText: 'not yet' }).waitFor();
  await stage.api.post(`tasks/${id}/cancel`);
});

test('a dead task says why, and can be brought back', async () => {
  await tab.go(`t/${ids.final}`);
  await see('ValidationError');
  assert.equal(await text('.head [data-badge=failed]').then((it) => it.replace('✕', '').trim()), 'failed');
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
  await tab.page
    .getByRole('button', { name: /^Cancel/ })
    .first()
    .click();
  await tab.page.getByLabel('Note (kept in the log)').fill('not needed any more');
  await tab.page.locator('dialog').getByRole('button', { name: 'Cancel', exact: true }).click();
  await tab.page.locator('[data-badge=canceled]').first().waitFor();
  await press('Events');
  await see('not needed any more');
});

test('a payload is edited, its difference seen, and the task retried with it', async () => {
  const [id] = await stage.api.submit({
    kind: 'card.charge',
    payload: { card: { number: '1', name: 'A' }, coupon: 'x' },
    retry: 'fixed(1h, 3 retries)',
  });
  await stage.api.fail('card.charge', { class: 'final', message: 'no such card' });
  await tab.go(`t/${id}`);
  await see('no such card');
  await tab.page.keyboard.press('e');
  const dialog = tab.page.locator('dialog');
  await dialog.getByText('Nothing is changed yet').waitFor();
  await dialog.getByLabel('Payload, as JSON').fill('{"card": {"number": "4242", "name": "A"}');
  await dialog.getByText('It is not JSON yet').waitFor();
  await dialog.getByLabel('Payload, as JSON').fill('{"card": {"number": "4242", "name": "A"}}');
  assert.match(await dialog.locator('tbody').innerText(), /card\.number[\s\S]*1[\s\S]*4242[\s\S]*coupon/);
  await dialog.getByLabel('Note (kept in the log)').fill('a typo');
  await dialog.getByRole('button', { name: 'Retry with this payload' }).click();
  await see('Ready: waits for a worker');
  await see('Version 2, in use');
  const lease = await stage.api.post('leases', { worker: 'tester', kinds: ['card.charge'], limit: 1 });
  assert.deepEqual(lease.leases[0].task.payload, { card: { number: '4242', name: 'A' } });
  await stage.api.post('leases/report', { reports: [{ lease: lease.leases[0].lease, outcome: 'succeeded' }] });
});

test('a pause is taken back by a click', async () => {
  const [id] = await stage.api.submit({ kind: 'undo.me', delay: '1h' });
  await tab.go(`t/${id}`);
  await press('Pause');
  await tab.page.locator('dialog').getByRole('button', { name: 'Pause' }).click();
  await tab.page.locator('.head [data-badge=held]').waitFor();
  await press('Undo');
  await tab.page.locator('.head [data-badge=queued]').waitFor();
  const [failed] = await stage.api.submit({ kind: 'undo.retry', retry: 'fixed(40m, 3 retries)' });
  await stage.api.fail('undo.retry', { message: 'no' });
  await tab.go(`t/${failed}`);
  await press('Retry now');
  await see('Ready: waits for a worker');
  await undo(/ retried/);
  await see(/Attempt 2 of 4 in 39m/);
});

test('the audit says who did what, leads to it, and is exported', async () => {
  await tab.go('admin/audit');
  const line = tab.page.locator('tbody tr', { hasText: 'a typo' });
  await line.getByText('task.retry').waitFor();
  await line.getByRole('button', { name: 'Details' }).click();
  await see('all entries about it');
  await tab.page.locator('select[name=act]').selectOption('execution');
  await press('Filter');
  await tab.page.waitForURL(/act=execution/);
  await tab.page.locator('tbody tr', { hasText: 'a typo' }).waitFor({ state: 'detached' });
  await tab.go('admin/audit?act=task.retry');
  await tab.page.locator('summary', { hasText: 'Export' }).click();
  const [file] = await Promise.all([tab.page.waitForEvent('download'), press('CSV')]);
  assert.equal(file.suggestedFilename(), 'audit.csv');
  await line.getByRole('link').nth(2).click();
  await see('no such card');
});

test('a view of the list is saved, its columns are chosen, and its rows exported', async () => {
  await tab.go('tasks?q=kind:card.*');
  await tab.page.locator('summary', { hasText: 'Columns' }).click();
  await tab.page.getByRole('checkbox', { name: 'Labels' }).check();
  await tab.page.getByRole('columnheader', { name: 'Labels' }).waitFor();
  await tab.page.locator('summary', { hasText: 'Views' }).click();
  await tab.page.getByLabel('Name for this view').fill('Cards');
  await press('Save');
  await tab.go('tasks?q=');
  await tab.page.locator('summary', { hasText: 'Views' }).click();
  await tab.page.getByRole('link', { name: 'Cards' }).click();
  await tab.page.waitForURL(/q=kind%3Acard\.\*.*cols=/);
  await tab.page.getByRole('columnheader', { name: 'Labels' }).waitFor();
  await tab.page.locator('summary', { hasText: 'Export' }).click();
  const [file] = await Promise.all([tab.page.waitForEvent('download'), press('CSV')]);
  const lines = (await readFile(await file.path(), 'utf8')).trim().split('\r\n');
  assert.match(lines[0], /^id,/);
  assert.equal(lines.length, 2);
});

test('a dependency is held by hand, let go, and said to be well', async () => {
  await tab.go('guards');
  await see('No dependencies');
  await press('New dependency…');
  await tab.page.getByLabel('Name', { exact: true }).fill('psp.example');
  await press('Create');
  const line = tab.page.locator('tbody tr', { hasText: 'psp.example' });
  await line.getByText('closed').waitFor();
  await line.getByRole('button', { name: 'Hold…' }).click();
  await tab.page.getByLabel('Note (kept in the audit log)').fill('the bank is down');
  await tab.page.locator('dialog').getByRole('button', { name: 'Hold' }).click();
  await line.getByText('open by hand').waitFor();
  await stage.api.submit({ kind: 'psp.charge', dependency: 'psp.example' });
  await tab.go('tasks?q=dependency:psp.example');
  await see('psp.charge');
  await tab.go('guards/dependencies');
  await line.getByRole('button', { name: 'Healthy…' }).click();
  await tab.page.locator('dialog').getByRole('button', { name: 'Mark healthy' }).click();
  await see('is healthy');
  await line.getByText(/recovering|closed/).waitFor();
});

test('an account is made, given credits, and put back', async () => {
  await tab.go('guards/accounts');
  await see('No accounts');
  await press('New account…');
  await tab.page.getByLabel('Name', { exact: true }).fill('acme');
  await tab.page.getByLabel('Retries a day').fill('200');
  await press('Create');
  await see('100c of 100c');
  await see('200 a day');
  await press('Change…');
  await tab.page.getByLabel(/Add credits/).fill('50');
  await press('Save');
  await see('150c of 150c');
  await press('Undo');
  await see('100c of 100c');
});

test('errors are grouped, said to be resolved, and come back', async () => {
  await tab.go('errors');
  await tab.page.locator('tbody tr', { hasText: 'no such card' }).getByRole('link').first().click();
  await tab.page.waitForURL(/\/e\/[0-9a-f]{16}/);
  await see('card.charge');
  await press('Retry all…');
  await tab.page
    .locator('dialog')
    .getByText(/^fingerprint:.* state:retrying,held,failed,dead$/)
    .waitFor();
  await tab.page.locator('dialog').getByRole('button', { name: 'Leave them' }).click();
  await press('Resolve');
  await tab.page.locator('.state', { hasText: 'resolved' }).waitFor();
  await stage.api.submit({ kind: 'card.charge', retry: 'fixed(1h, 3 retries)' });
  await stage.api.fail('card.charge', { class: 'final', message: 'no such card' });
  await tab.page.locator('.state', { hasText: 'regressed' }).waitFor();
  await tab.page.locator('summary', { hasText: 'Classify' }).click();
  await press('Rate limited: wait, do not count');
  await see(', set by a person');
  await undo('Rate limited from now on');
  await see(', by its policy');
  await tab.page.locator('summary', { hasText: 'Ignore' }).click();
  await press('For a day');
  await tab.page.locator('.state', { hasText: 'ignored' }).waitFor();
});

test('analytics say whether retrying paid, and lead to the tasks', async () => {
  await tab.go('analytics?range=1h');
  await see('Did retrying pay?');
  assert.match(await text('.lead'), /first failures? \d+ recovered/);
  await press('Kind');
  await tab.page.getByRole('link', { name: 'report.export' }).click();
  await tab.page.waitForURL(/tasks\?q=kind/);
  await see('report.export');
});

test('analytics name the hour in which far more failed, what has changed and what it cost', async () => {
  const other = await openServer('--clock', 'virtual');
  const there = await openPage({ ...other, browser: stage.browser });
  try {
    for (const failures of [1, 1, 1, 14, 1]) {
      await other.api.post('tasks', { tasks: Array.from({ length: failures }, () => ({ kind: 'crm.sync' })) });
      const { leases } = await other.api.post('leases', { worker: 'tester', limit: failures });
      await other.api.post('leases/report', {
        reports: leases.map(({ lease }) => ({ lease, outcome: 'failed', error: { message: 'refused' } })),
      });
      await other.api.post('clock/advance', { by: '1h' });
    }
    await there.go('analytics?range=24h');
    await there.page.getByText('14 attempts failed, usually about 1').waitFor();
    await there.page.getByText('In the 24h before no attempt had ended').waitFor();
    assert.match(
      await there.page.locator('.lead').innerText(),
      /0 retries: 0 useful and 0 wasted, which cost 0c of \d+c/,
    );
    const { now } = await other.api.get('clock');
    await other.api.post('clock/advance', { by: '30h' });
    await there.page.reload();
    await there.page.getByText('No attempt has ended in this time').waitFor();
    await there.go(`analytics?range=24h&at=${now}`);
    await there.page.getByText('As it was at').waitFor();
    await there.page.locator('.odd a').click();
    await there.page.waitForURL(/tasks\?q=state%3Aerror/);
    await there.page.locator('tbody tr').nth(13).waitFor();
    assert.deepEqual(there.trouble, []);
  } finally {
    await there.close();
    await other.close();
  }
});

test('upcoming shows what is due as bars that lead to their tasks', async () => {
  await tab.go('upcoming?range=24h');
  await see('nobody.wants');
  await tab.page.locator('svg a[href*="from="]').last().click();
  await see('Due in the chosen stretch');
  await see('nobody.wants');
});

test('an execution is a graph, a gantt, a list and a log', async () => {
  await tab.go('executions');
  await tab.page.getByRole('link', { name: /order-fulfilment/ }).click();
  await tab.page.locator('.state', { hasText: 'waits for charge' }).first().waitFor();
  assert.equal(await tab.page.locator('.box').count(), 4);
  assert.match(
    await tab.page.locator('.box', { hasText: 'charge' }).locator('.name').first().textContent(),
    /↻\s+charge/,
  );
  assert.match(
    await tab.page.locator('.box', { hasText: 'attempt 2, in' }).locator('.state').textContent(),
    /^attempt 2, in \d+/,
  );
  await press('Gantt');
  await tab.page.getByRole('group', { name: /When each of 4 tasks ran/ }).waitFor();
  await press('List');
  await tab.page.locator('tbody tr', { hasText: 'refund' }).waitFor();
  await press('Events');
  await see('task.retry_scheduled');
  await press('Pause');
  await see('Execution paused');
  await press('Resume');
  await see('Execution resumed');
});

test('a large execution is folded into what is alike, and unfolded on request', async () => {
  const loads = Array.from({ length: 160 }, (_, n) => ({
    key: `load[${n}]`,
    kind: 'wide.load',
    delay: '1h',
    needs: ['plan'],
  }));
  const tasks = [
    { key: 'plan', kind: 'wide.plan' },
    ...loads,
    { key: 'report', kind: 'wide.report', needs: loads.map(({ key }) => key) },
  ];
  const { execution_id } = await stage.api.post('tasks', { execution: { name: 'wide-open' }, tasks });
  await tab.go(`x/${execution_id}`);
  await see('162 tasks in 3 boxes');
  assert.deepEqual(
    (await tab.page.locator('.box .name').allTextContents()).map((it) => it.trim()),
    ['○ plan', '○ 160 × load', '○ report'],
  );
  await tab.page.locator('.box', { hasText: '160 × load' }).click();
  await see('160 of 162 tasks');
  await press('Graph');
  await press('Show every task');
  await see('Every task has its box');
  assert.equal(await tab.page.locator('.box').count(), 162);
  await stage.api.post(`executions/${execution_id}/cancel`, {});
});

test('an execution shows its critical path, is filtered, exported, and cancelled only after asking', async () => {
  await tab.go(`x/${ids.execution}`);
  assert.match(await text('p.path'), /^Critical path so far: reserve \S+ → charge/);
  assert.equal(await tab.page.locator('.frame.marked').count(), 2);
  assert.equal(await tab.page.locator('.arrow.marked').count(), 1);
  await press('List');
  await tab.page.getByLabel('State').selectOption('retrying');
  await see('1 of 4 tasks');
  assert.deepEqual(await tab.page.locator('tbody tr strong').allInnerTexts(), ['charge']);
  await tab.page.locator('summary', { hasText: 'Export' }).click();
  const [file] = await Promise.all([tab.page.waitForEvent('download'), press('CSV')]);
  assert.equal(file.suggestedFilename(), 'order-fulfilment.csv');
  assert.match(
    await readFile(await file.path(), 'utf8'),
    /^id,key,.*\r\n[^\r]*,charge,order\.charge,retry_pending,[^\r]*\r\n$/,
  );
  const { execution_id } = await stage.api.post('tasks', {
    execution: { name: 'in vain' },
    tasks: [
      { key: 'a', kind: 'vain.a', delay: '1h' },
      { key: 'b', kind: 'vain.b', needs: ['a'] },
    ],
  });
  await tab.go(`x/${execution_id}`);
  await tab.page.locator('.box').first().waitFor();
  await press('Cancel');
  const dialog = tab.page.locator('dialog');
  await dialog.getByText('2 tasks of 2 will be canceled').waitFor();
  await dialog.getByRole('button', { name: 'Leave it' }).click();
  assert.equal((await stage.api.get(`executions/${execution_id}`)).state, 'pending');
  await press('Cancel');
  await dialog.getByRole('button', { name: 'Cancel 2 tasks' }).click();
  await tab.page.locator('.head [data-badge=canceled]').waitFor();
});

test('of a graph that is larger than the screen a small map shows where one is', async () => {
  const tasks = Array.from({ length: 60 }, (_, i) => ({
    key: `s${i}`,
    kind: 'long.step',
    delay: '1h',
    needs: i < 3 ? [] : [`s${i - 3}`],
  }));
  const { execution_id } = await stage.api.post('tasks', { execution: { name: 'long' }, tasks });
  await tab.go(`x/${execution_id}`);
  const map = tab.page.locator('svg.map');
  await map.waitFor();
  const left = () => tab.page.locator('.view').evaluate((view) => view.scrollLeft);
  assert.equal(await left(), 0);
  const box = await map.boundingBox();
  await tab.page.mouse.click(box.x + box.width - 4, box.y + box.height / 2);
  assert.ok((await left()) > 1_000);
  await press('Fit');
  await map.waitFor({ state: 'detached' });
  await stage.api.post(`executions/${execution_id}/cancel`);
});

test('a workflow is run from the catalog, and versions are compared', async () => {
  await tab.go('workflows');
  await tab.page.getByRole('link', { name: 'etl/nightly' }).click();
  await see('version 2');
  await tab.page.locator('.box', { hasText: 'publish' }).waitFor();
  await press('Steps');
  await see('the step itself');
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
  await see('Schedule nightly started');
  await press('Pause');
  await see('Schedule nightly paused');
});

test('a double click is one act', async () => {
  await stage.api.post('schedules', { name: 'twice', cron: '0 3 1 1 *', task: { kind: 'clicked.twice' } });
  await tab.go('schedules');
  const line = tab.page.locator('tbody tr', { hasText: 'twice' });
  await line.getByRole('button', { name: 'Run now' }).dblclick();
  await see('Schedule twice started');
  await stage.api.put('accounts/twice', { credits: 100 });
  await tab.go('guards/accounts');
  await tab.page.locator('tbody tr', { hasText: 'twice' }).getByRole('button', { name: 'Change…' }).click();
  await tab.page.getByLabel(/Add credits/).fill('50');
  // Both submits come before the first answer, whatever the machine is busy with.
  await tab.page.locator('dialog form').evaluate((form) => [form.requestSubmit(), form.requestSubmit()]);
  await see('150c of 150c');
  assert.equal((await stage.api.get('accounts/twice')).available, 150);
  assert.equal((await stage.api.get('tasks?q=kind:clicked.twice')).items.length, 1);
  await stage.api.call('DELETE', 'accounts/twice');
});

test('a limit can be changed', async () => {
  await tab.go('rules');
  await press('Change…');
  await tab.page.getByLabel('How many may run at once').fill('7');
  await press('Save');
  await see('7 at once');
});

test('a rule stays fair when its limit is changed, and when that is undone', async () => {
  const rule = async (name) => {
    const { max_running, capacity, fair, per } = await stage.api.get(`rules/${name}`);
    return { max_running, capacity, fair, per };
  };
  const only = { max_running: null, capacity: null, fair: true, per: ['tenant'] };
  await stage.api.put('rules/only-fair', { match: { queue: 'mail' }, per: ['tenant'], fair: true });
  await stage.api.put('rules/limited', { match: { queue: 'bulk' }, per: ['tenant'], fair: true, max_running: 3 });
  await tab.go('guards/rules');
  const line = (name) => tab.page.locator('tbody tr', { hasText: name });
  const dialog = tab.page.locator('dialog');
  const save = async (name, limit) => {
    await line(name).getByRole('button', { name: 'Change…' }).click();
    if (limit) await dialog.getByLabel('How many may run at once').fill(limit);
    await dialog.getByRole('button', { name: 'Save' }).click();
    await dialog.waitFor({ state: 'detached' });
  };
  await save('only-fair');
  assert.deepEqual(await rule('only-fair'), only);
  await save('only-fair', '9');
  assert.deepEqual(await rule('only-fair'), { ...only, max_running: 9 });
  await save('limited', '4');
  assert.deepEqual(await rule('limited'), { ...only, max_running: 4 });
  await undo('limited');
  await line('limited').getByText('3 at once, fair').waitFor();
  assert.deepEqual(await rule('limited'), { ...only, max_running: 3 });
  await line('only-fair').getByRole('button', { name: 'Change…' }).click();
  await dialog.getByRole('button', { name: /^Delete/ }).click();
  await line('only-fair').waitFor({ state: 'detached' });
  await undo(/only-fair.*(gone|deleted)/);
  await line('only-fair').getByText('9 at once, fair').waitFor();
});

test('a policy is bound to a kind, and taken back', async () => {
  await tab.go('admin/policies');
  await press('Bind a policy…');
  const dialog = tab.page.locator('dialog');
  await dialog.getByLabel('Kind').fill('report.export');
  await dialog.getByLabel('Policy, as text or JSON').fill('fixed(5m, 3 retries)');
  await dialog.getByRole('button', { name: 'Create' }).click();
  const line = tab.page.locator('tbody tr', { hasText: 'report.export' });
  await line.waitFor();
  await press('Undo');
  await line.waitFor({ state: 'detached' });
});

test('workers and servers are listed, and one is drained', async () => {
  await tab.go('workers');
  await see('worker-1');
  await see('this one');
  const line = tab.page.getByRole('table', { name: 'Workers' }).locator('tbody tr', { hasText: 'worker-1' });
  await line.getByRole('button', { name: 'Drain' }).click();
  await see('is draining: running leases finish');
  await line.getByText('drain').first().waitFor();
  const { leases, draining } = await stage.api.post('leases', { worker: 'worker-1' });
  assert.deepEqual([leases, draining], [[], true]);
  await line.getByRole('button', { name: 'Undrain' }).click();
  await line.getByText('takes work').waitFor();
});

test('a loop is paused for a while with a reason that every page shows', async () => {
  await tab.go('admin');
  await press('Pause…');
  await tab.page.getByLabel('Reason (shown to everybody)').fill('the bank is down');
  await tab.page.locator('dialog').getByRole('button', { name: 'Pause' }).click();
  await see('the bank is down');
  await press('Resume');
  await see(/^Loop .* resumed$/);
});

test('an alert is tried on what has happened before it is made', async () => {
  await tab.go('admin/alerts');
  await see('No alerts');
  await press('New alert…');
  const dialog = tab.page.locator('dialog');
  await dialog.getByLabel('Name').fill('failures');
  await dialog.getByLabel('Event types, separated by commas').fill('attempt.failed');
  await dialog.getByLabel('Threshold').fill('1');
  await dialog.getByRole('button', { name: 'Try it on the last 7 days' }).click();
  await dialog.getByText(/It would have fired \d+ time/).waitFor();
  await dialog.getByRole('button', { name: 'Create' }).click();
  const line = tab.page.locator('tbody tr', { hasText: 'failures' });
  await line.getByRole('button', { name: 'Pause' }).click();
  await line.getByText('paused').waitFor();
  await press('Undo');
  await line.getByText('paused').waitFor({ state: 'detached' });
});

test('a subscription is made, its secret shown once, and a test delivered', async () => {
  const heard = [];
  const hook = createServer((asked, answer) => {
    heard.push(asked.headers);
    answer.end();
  });
  await new Promise((done) => hook.listen(0, '127.0.0.1', done));
  await tab.go('admin/subscriptions');
  await see('No subscriptions');
  await press('New subscription…');
  const dialog = tab.page.locator('dialog');
  await dialog.getByLabel(/^Id/).fill('ops');
  await dialog.getByLabel('URL').fill(`http://127.0.0.1:${hook.address().port}/hook`);
  await dialog.getByRole('button', { name: 'Create' }).click();
  await dialog.getByText(/^whsec_/).waitFor();
  await dialog.getByRole('button', { name: 'Close' }).click();
  await press('Test');
  await see('delivered');
  assert.ok(heard[0]['webhook-signature']);
  hook.close();
});

test('the playground asks the server what a policy means, in every dialect', async () => {
  await tab.go('playground');
  await see('9 executions');
  assert.equal((await tab.page.locator('.band').count()) > 0, true);
  for (const [dialect, executions] of [
    ['workflow', 6],
    ['task', 4],
    ['job', 6],
    ['run', 8],
    ['step', 5],
  ]) {
    await tab.page.getByLabel('Dialect').selectOption(dialect);
    await see(`${executions} executions`);
  }
  await tab.page.locator('textarea').fill('{"max_retries": -1}');
  await tab.page.getByRole('alert').waitFor();
});

test('the playground holds a policy against what really failed, and it can be used from there', async () => {
  await tab.go(
    `playground?policy=${encodeURIComponent('fixed(10m, 3 retries)')}&q=${encodeURIComponent('kind:report.export')}`,
  );
  const card = tab.page.getByRole('region', { name: 'On your own failures' });
  // It came back at once; ten minutes later it would have too.
  await card.getByText('1 of 1 task would have come back, as it did, with as many retries (1).').waitFor();
  await tab.page.locator('textarea').fill('false');
  await card.getByText('0 of 1 task would have come back; 1 did, with 0 retries in place of 1 (−100 %).').waitFor();
  await card.getByText('came back and would have been given up before').waitFor();
  await tab.page.locator('textarea').fill('fixed(10m, 3 retries)');
  await card.getByRole('button', { name: 'Use it for report.export', exact: true }).click();
  await see('Policy of report.export saved');
  assert.equal((await stage.api.get('policies/report.export')).policy.max_retries, 3);
  await undo('Policy of report.export saved');
  await see('Policy of report.export deleted');
  await card.getByRole('combobox', { name: 'Filter' }).fill('state:nonsense');
  await tab.page.keyboard.press('Enter');
  await card.getByRole('alert').waitFor();
});

test('a task that waits is given another policy, and that can be undone', async () => {
  await tab.go(`t/${ids.long}`);
  await press('Policy');
  await tab.page.getByRole('button', { name: 'Change policy…' }).click();
  const dialog = tab.page.getByRole('dialog');
  await dialog.locator('textarea').fill('fixed(1d, 5 retries)');
  await dialog.getByText('6 executions: 1 first try + 5 retries').waitFor();
  await dialog.getByRole('button', { name: 'Save policy' }).click();
  await see('it applies from the next failure on');
  assert.equal((await stage.api.get(`tasks/${ids.long}`)).retry.max_retries, 5);
  await undo('it applies from the next failure on');
  await see(/^Policy of task .* restored$/);
  assert.equal((await stage.api.get(`tasks/${ids.long}`)).retry.max_retries, 2);
});

test('keys lead everywhere, and the palette finds a task', async () => {
  await tab.go('');
  await see('Overview');
  await tab.page.keyboard.press('g');
  await tab.page.keyboard.press('t');
  await tab.page.waitForURL(/\/tasks/);
  await tab.page.keyboard.press('Control+k');
  await tab.page.getByRole('combobox', { name: 'Search or jump' }).fill('kind:email.send');
  await tab.page
    .getByRole('option', { name: /✓ email\.send/ })
    .first()
    .waitFor();
  await tab.page.keyboard.press('Enter');
  await tab.page.waitForURL(new RegExp(`/t/${ids.fine}`));
  await tab.page.keyboard.press('?');
  await see('Local time or UTC');
});

test('a key lists all that can be done to a task, and why not', async () => {
  const [id] = await stage.api.submit({ kind: 'act.on', delay: '1h' });
  await tab.go(`t/${id}`);
  await see('Starts in');
  await tab.page.keyboard.press('.');
  const dialog = tab.page.locator('dialog');
  assert.equal(await dialog.getByRole('button', { name: /^Retry now/ }).isDisabled(), true);
  await dialog.getByText('it is waiting: there is nothing to retry').first().waitFor();
  await dialog.getByRole('button', { name: /^Snooze/ }).click();
  await tab.page.getByLabel(/How long from now/).waitFor();
  await tab.go('tasks?q=kind:act.on');
  await tab.page.locator('tbody tr').first().waitFor();
  await tab.page.keyboard.press('.');
  await tab.page.keyboard.press('c');
  await see('cancel: 1 task done');
});

test('the demo has a guide that is ticked by doing, and a server has none', async () => {
  await tab.go('');
  await tab.page.locator('dt', { hasText: 'Servers' }).waitFor();
  assert.equal(await tab.page.getByText('Five things to try').count(), 0);

  const folder = await mkdtemp(join(tmpdir(), 'comeback-guide-'));
  const demo = await startServer(['demo', '--listen', '127.0.0.1:0', '--no-open'], folder);
  const own = await openPage({ url: demo.url, browser: stage.browser });
  const step = (n) => own.page.locator('ol > li').nth(n - 1);
  const done = (n) => step(n).getByText(/^Done/).waitFor();
  try {
    await own.go('');
    await own.page.getByText('0 of 5 done').waitFor();
    // One that waits for days: it fails still when somebody comes to press the button.
    const api = clientOf(demo.url);
    let failing;
    while (!failing) [failing] = (await api.get('tasks?q=kind:kyc.recheck state:retrying&limit=1')).items;
    await step(1).locator(`a[href="t/${failing.id}"]`).click();
    await own.page.locator('button:not([aria-disabled=true])', { hasText: 'Retry now' }).click();
    await own.page.getByText(/ retried$/).waitFor();
    await own.go('');
    await done(1);
    await done(2);
    await step(3).getByRole('button', { name: 'Take the bank down' }).click();
    await own.page.getByText('the bank is down: every').waitFor();
    await step(3).getByRole('button', { name: 'Bring it back' }).click();
    await done(3);
    await done(4);
    assert.match(
      await own.page.locator('.command code').innerText(),
      new RegExp(`^comeback run --server ${demo.url} --retry `),
    );
    await api.submit({ kind: 'my.own' });
    await own.page.getByText('All five are done').waitFor();
    await own.page.getByRole('button', { name: 'Close', exact: true }).click();
    await own.go('');
    await own.page.locator('dt', { hasText: 'Servers' }).waitFor();
    assert.equal(await own.page.getByText('Five things to try').count(), 0);
    assert.deepEqual(own.trouble, []);
  } finally {
    await own.close();
    await demo.stop();
    await rm(folder, { recursive: true, force: true });
  }
});

test('the line of a task is looked at from near, and says what it leaves out', async () => {
  const [id] = await stage.api.submit({ kind: 'zoom.in', retry: 'schedule(10m, 7d, 14d)' });
  await stage.api.fail('zoom.in', { status: 503, message: '503 Service Unavailable' });
  await tab.go(`t/${id}`);
  const picture = tab.page.getByRole('img', { name: /Timeline/ });
  await press('1h');
  await tab.page.waitForURL(/zoom=1h/);
  await picture.getByText(/^2 later, gives up .* → dead$/).waitFor();
  assert.equal(await picture.locator('.to-come').count(), 1);
  await tab.page.reload();
  await tab.page.getByRole('button', { name: '1h', pressed: true }).waitFor();
  await press('14d');
  await picture.getByText(/^1 later, gives up/).waitFor();
  await press('fit');
  await picture.locator('.end-label').waitFor();
  assert.equal(await picture.locator('.to-come').count(), 3);
  assert.doesNotMatch(tab.page.url(), /zoom/);
  assert.doesNotMatch(await text('.answers'), /\d{4}-\d\d-\d\dT/);
});

test('the next attempt is dragged to another time, and stays when it is let go before now', async () => {
  const [id] = await stage.api.submit({ kind: 'drag.me', retry: 'fixed(1h, 3 retries)' });
  await stage.api.fail('drag.me', { status: 503, message: '503 Service Unavailable' });
  await tab.go(`t/${id}`);
  const { mouse, keyboard } = tab.page;
  const [diamond, sign, dialog] = ['svg .moves', 'svg .hand', 'dialog'].map((it) => tab.page.locator(it));
  const drag = async (by) => {
    await diamond.waitFor();
    const { x, y, width, height } = await diamond.boundingBox();
    await mouse.move(x + width / 2, y + height / 2);
    await mouse.down();
    await mouse.move(x + width / 2 + by, y + height / 2, { steps: 5 });
    await sign.waitFor();
  };
  await drag(60);
  assert.match(await sign.locator('text').textContent(), /, in [1-3]h/);
  await keyboard.press('Escape');
  await sign.waitFor({ state: 'detached' });
  await mouse.up();
  await drag(-800);
  await sign.getByText('let go to leave it as it is').waitFor();
  await mouse.up();
  assert.equal(await dialog.count(), 0);
  await drag(60);
  await mouse.up();
  const when = Date.parse(await dialog.getByLabel(/How long from now/).inputValue());
  assert.ok(when > Date.now() + 3_600_000, new Date(when));
  await dialog.getByRole('button', { name: 'Reschedule' }).click();
  await see(/ rescheduled$/);
  assert.equal(Date.parse((await stage.api.get(`tasks/${id}`)).next_retry_at), when);
  await stage.api.post(`tasks/${id}/cancel`);
});

test('loops say how often they look, when they did and what they moved', async () => {
  await tab.go('admin/loops');
  const cell = (name, column) =>
    tab.page.locator('tbody tr', { hasText: name }).locator(`[data-column=${column}]`).innerText();
  await see('makes tasks ready whose retry is due');
  assert.match(await cell('whose retry is due', 'every'), /^[\d.]+(ms|s|m)$/);
  assert.match(await cell('whose retry is due', 'looked'), /^(now|\d+\w+ ago)$/);
  assert.match(await cell('whose first start is due', 'moved'), /^[\d,]+$/);
  assert.equal(await cell('calls external executors', 'every'), 'when asked');
});

test('thirty days are a calendar whose days lead to their tasks', async () => {
  const noon = new Date(Date.now() + 9 * 86_400_000);
  noon.setHours(12, 0, 0, 0);
  await stage.api.submit({ kind: 'at.noon', delay: `${Math.round((noon - Date.now()) / 1_000)}s` });
  await tab.go('upcoming?range=30d');
  const name = `${noon.toLocaleDateString('en-GB', { weekday: 'long' })} ${noon.getDate()} ${noon.toLocaleDateString('en-GB', { month: 'long' })}: 1 task due`;
  await tab.page.getByRole('link', { name }).click();
  assert.equal(await tab.page.locator('td[aria-current=date]').count(), 1);
  await see('Due in the chosen stretch');
  await tab.page.locator('a.day.chosen', { hasText: name }).waitFor();
  await see('at.noon');
  assert.equal(await tab.page.getByRole('table', { name: 'Tasks that are due' }).locator('tbody tr').count(), 1);
});
