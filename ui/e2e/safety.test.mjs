// Foreign text is only ever shown as text, keys stay out of addresses, and a viewer sees why a button is disabled.
import assert from 'node:assert/strict';
import { createServer, request } from 'node:http';
import { after, before, test } from 'node:test';
import { clientOf, openPage, openStage } from './stage.mjs';

let stage;

before(async () => {
  stage = await openStage();
});
after(() => stage?.close());

const CORE = [
  '<img src=x onerror=window.__xss=1>',
  '"><script>window.__xss=1</script>',
  '<svg/onload=window.__xss=1>',
  'javascript:window.__xss=1',
  "'-window.__xss=1-'",
  '<iframe srcdoc="<script>parent.__xss=1</script>">',
  '{@html "<img src=x onerror=window.__xss=1>"}',
  '${window.__xss=1}',
  '{{constructor.constructor("window.__xss=1")()}}',
  '<a href="javascript:window.__xss=1">x</a>',
  '<style>@import "//evil.example/x"</style><base href="//evil.example/">',
  '\u202e<math><mtext><img src onerror=window.__xss=1>',
];
const WRAPPED = [
  (it) => it,
  (it) => `</pre>${it}`,
  (it) => `"${it}`,
  (it) => `'>${it}`,
  (it) => `]]>${it}`,
  (it) => `-->${it}`,
  (it) => `</textarea>${it}`,
  (it) => `</title>${it}`,
  (it) => `</svg>${it}`,
  (it) => it.toUpperCase().replaceAll('__XSS', '__xss'),
];
const ALL = process.env.XSS === 'all' ? WRAPPED.flatMap((wrap) => CORE.map(wrap)) : CORE;

test(`${ALL.length} ways to smuggle a script are all shown as text`, async () => {
  const tab = await openPage(stage);
  const { api } = stage;
  const shown = [];
  for (const [i, evil] of ALL.entries()) {
    const [id] = await api.submit({
      kind: `evil.${i}`,
      name: evil.slice(0, 200),
      labels: { evil: evil.slice(0, 200) },
      payload: { [evil]: evil },
      external_id: evil.slice(0, 100),
      retry: 'fixed(1h, 3 retries)',
    });
    await api.fail(
      `evil.${i}`,
      { type: evil, code: evil.slice(0, 100), status: 500, message: evil, stack: evil },
      evil.slice(0, 100),
    );
    shown.push(id);
  }
  await api.post('tasks', {
    execution: { name: ALL[0] },
    tasks: [
      { key: ALL[1], kind: 'evil.step', name: ALL[2] },
      { key: 'b', kind: 'evil.step', needs: [ALL[1]] },
    ],
  });
  await api.post('admin/loops/prune/pause', { note: ALL[0], duration: '1h' });
  await api.post('leases', { worker: ALL[0], kinds: ['none'] });
  await api.post(`admin/workers/${encodeURIComponent(ALL[0])}/drain`, { note: ALL[1] });
  await api
    .put('rules/evil', { match: { queue: ALL[3] }, max_running: 1 })
    .catch((error) => assert.equal(error.status, 400));
  await api.put('dependencies/evil', { breaker: {} });
  await api.post('dependencies/evil/open', { for: '1h', note: ALL[0] });
  await api.put('alerts/evil', { types: ['task.failed'], threshold: 5, window: '5m', note: ALL[0] });
  await api.put('subscriptions/evil', { url: 'http://127.0.0.1:1/hook', types: ['alert.fired'], note: ALL[1] });
  await api.put('accounts/evil', { credits: 3, costs: {} });
  await api.post(`tasks/${shown[0]}/retry`, {
    payload_patch: { [ALL[0]]: ALL[1] },
    note: ALL[2],
    requested_by: ALL[3].slice(0, 100),
  });
  await api.post('schedules', { name: 'evil', cron: '0 2 * * *', task: { kind: 'evil.cron', name: ALL[2] } });

  async function clean(where) {
    const found = await tab.page.evaluate(() => ({
      ran: window.__xss,
      strange: [
        ...document.querySelectorAll(
          'img, iframe, object, embed, math, style:not([data-vite-dev-id]), script:not([src]), [onerror], [onload], [onclick]',
        ),
      ]
        .filter((it) => !it.closest('[data-axe]'))
        .map((it) => it.outerHTML),
      links: [...document.querySelectorAll('a')]
        .filter((it) => new URL(it.getAttribute('href'), document.baseURI).origin !== location.origin)
        .map((it) => it.outerHTML),
      base: document.baseURI,
    }));
    assert.deepEqual(found, { ran: undefined, strange: [], links: [], base: `${stage.url}/` }, where);
  }
  for (const path of [
    '',
    'tasks?q=',
    'executions',
    'schedules',
    'guards',
    'guards/rules',
    'guards/accounts',
    'workers',
    'admin',
    'admin/audit',
    'admin/alerts',
    'admin/subscriptions',
    'upcoming',
    'upcoming?range=30d',
    'errors',
    'analytics?range=1h&by=kind',
    `tasks?q=${encodeURIComponent(ALL[0])}`,
  ]) {
    await tab.go(path);
    await tab.page.locator('main h1').waitFor();
    await tab.page.locator('.skeleton').first().waitFor({ state: 'detached' });
    await clean(path);
  }
  await tab.go(`playground?policy=${encodeURIComponent('fixed(1m, 1 retries)')}`);
  await tab.page.getByRole('heading', { name: 'By error' }).waitFor();
  await clean('playground');
  await tab.go(`playground?policy=${encodeURIComponent(ALL[0])}&q=${encodeURIComponent(ALL[1])}`);
  await tab.page.getByRole('alert').first().waitFor();
  await clean('playground with evil words');
  for (const id of shown) {
    await tab.go(`t/${id}`);
    await tab.page.getByRole('img', { name: /Timeline/ }).waitFor();
    for (const name of ['Output', 'Policy', 'Events', 'Facts', 'Input']) {
      await tab.page.getByRole('button', { name, exact: true }).click();
      await clean(`${id} ${name}`);
    }
  }
  for (const { fingerprint } of (await api.get('errors?limit=500')).items) {
    await tab.go(`e/${fingerprint}`);
    await tab.page.getByRole('heading', { name: 'By attempt' }).waitFor();
    await clean(fingerprint);
  }
  const { items } = await api.get('executions?limit=1');
  await tab.go(`x/${items[0].id}`);
  await tab.page.locator('.box').first().waitFor();
  await clean('graph');
  assert.deepEqual(tab.trouble, []);
  await tab.close();
});

test('the page allows nothing from elsewhere and nothing inline', async () => {
  const answer = await fetch(`${stage.url}/t/whatever`);
  assert.match(answer.headers.get('content-security-policy'), /default-src 'self'/);
  assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
  const page = await answer.text();
  assert.doesNotMatch(page, /<script(?![^>]*src)|<style|https?:/);
  assert.match(page, /<div id="app">/, 'this is the dashboard, not the small page in its place');
});

test('it works behind a prefix that a proxy takes away', async () => {
  const [id] = await stage.api.submit({ kind: 'far.away', delay: '1h' });
  const proxy = createServer((asked, answer) => {
    if (!asked.url.startsWith('/tools/jobs/')) return answer.writeHead(404).end();
    const passed = request(
      `${stage.url}${asked.url.slice('/tools/jobs'.length)}`,
      { method: asked.method, headers: asked.headers },
      (got) => {
        answer.writeHead(got.statusCode, got.headers);
        got.pipe(answer);
      },
    );
    asked.pipe(passed);
    return undefined;
  });
  await new Promise((done) => proxy.listen(0, '127.0.0.1', done));
  const tab = await openPage({ ...stage, url: `http://127.0.0.1:${proxy.address().port}` });
  await tab.go(`tools/jobs/t/${id}`);
  await tab.page.getByRole('heading', { name: 'far.away' }).waitFor();
  await tab.page.getByRole('link', { name: 'Tasks' }).first().click();
  await tab.page.waitForURL(/\/tools\/jobs\/tasks$/);
  await tab.page.goBack();
  await tab.page.getByRole('heading', { name: 'far.away' }).waitFor();
  await tab.page.reload();
  await tab.page.getByRole('heading', { name: 'far.away' }).waitFor();
  assert.deepEqual(tab.trouble, []);
  await tab.close();
  proxy.closeAllConnections();
  proxy.close();
});

test('with keys: asked for once, in no address, and a viewer is told what is missing', async () => {
  const [id] = await stage.api.submit({ kind: 'guarded', retry: 'fixed(1h, 3 retries)' });
  await stage.api.fail('guarded', { message: 'no' });
  const admin = (await stage.api.post('keys', { role: 'admin', name: 'boss' })).key;
  const viewer = (await clientOf(stage.url, admin).post('keys', { role: 'viewer', name: 'guest' })).key;
  const tab = await openPage(stage);
  const addresses = [];
  tab.page.on('request', (asked) => addresses.push(asked.url()));
  await tab.go(`t/${id}`);
  await tab.page.getByLabel('Key', { exact: true }).fill('cbk_wrong_key');
  await tab.page.getByRole('button', { name: 'Use this key' }).click();
  await tab.page.getByLabel('Key', { exact: true }).fill(viewer);
  await tab.page.getByRole('button', { name: 'Use this key' }).click();
  await tab.page.getByRole('heading', { name: 'guarded' }).waitFor();
  await tab.page.getByText('guest').waitFor();
  const retry = tab.page.getByRole('button', { name: /Retry now/ });
  assert.equal(await retry.getAttribute('aria-disabled'), 'true');
  assert.match(await retry.getAttribute('title'), /your key is a viewer's; this needs an operator/);
  await retry.click({ force: true });
  await tab.page.getByText(/Attempt 2 of 4/).waitFor();
  await tab.page.reload();
  await tab.page.getByRole('heading', { name: 'guarded' }).waitFor();
  assert.equal(
    [...addresses, tab.page.url()].some((it) => it.includes(viewer) || it.includes('cbk_')),
    false,
  );
  await tab.close();
});
