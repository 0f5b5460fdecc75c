// Pictures of every screen: light, dark and phone, of the demo with a little more in it.
//   node e2e/screenshots.mjs [FOLDER]      six of them also go to docs/images with --docs; WAYS=dark,phone or SCREENS=task,tasks for only those,
//                                          WHOLE=1 for whole pages too
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { clientOf, openBrowser, startServer } from './stage.mjs';

const here = import.meta.dirname;
const out = process.argv.find((it, i) => i > 1 && !it.startsWith('--')) ?? join(here, '../screenshots');
const CHOSEN = {
  'overview-light': 'overview',
  'task-light': 'task',
  'task-long-dark': 'task-dark',
  'tasks-dark': 'tasks-dark',
  'execution-light': 'execution',
  'playground-light': 'playground',
};
const WAYS = {
  light: { viewport: { width: 1440, height: 900 }, colorScheme: 'light' },
  dark: { viewport: { width: 1440, height: 900 }, colorScheme: 'dark' },
  phone: { viewport: { width: 390, height: 844 }, colorScheme: 'light', deviceScaleFactor: 2 },
};

const folder = await mkdtemp(join(tmpdir(), 'comeback-pictures-'));
const server = await startServer(['demo', '--listen', '127.0.0.1:7395'], folder);
const browser = await openBrowser();
const api = clientOf(server.url);
try {
  await more();
  // A minute of the demo is an hour: enough for failures, recoveries and something in between.
  await new Promise((done) => setTimeout(done, Number(process.env.SECONDS_OF_DEMO ?? 45) * 1000));
  await mkdir(out, { recursive: true });
  for (const [way, options] of Object.entries(WAYS)) {
    if (process.env.WAYS && !process.env.WAYS.split(',').includes(way)) continue;
    const page = await browser.newPage(options);
    for (const [name, { find, act }] of Object.entries(screens(way === 'phone'))) {
      if (process.env.SCREENS && !process.env.SCREENS.split(',').includes(name)) continue;
      await page.goto(`${server.url}/${await find()}`);
      await page.locator('main h1').first().waitFor();
      await page.waitForTimeout(900);
      if (act) {
        await act(page);
        await page.waitForTimeout(500);
      }
      await page.screenshot({ path: join(out, `${name}-${way}.png`) });
      // The whole page too.
      if (process.env.WHOLE) await page.screenshot({ path: join(out, `${name}-${way}-whole.png`), fullPage: true });
    }
    await page.close();
  }
  if (process.argv.includes('--docs')) {
    const docs = join(here, '../../docs/images');
    await mkdir(docs, { recursive: true });
    for (const [from, to] of Object.entries(CHOSEN)) await copyFile(join(out, `${from}.png`), join(docs, `${to}.png`));
  }
  console.log(`pictures are in ${out}`);
} finally {
  await browser.close();
  await server.stop();
  await rm(folder, { recursive: true, force: true });
}

/** Resources that the demo lacks: a workflow, a schedule, a rule, a policy, and a task that has been failing for a while. */
async function more() {
  const exp = 'exp(60s, x2, max 1h, 5 retries, jitter full)';
  const steps = {
    reserve: { kind: 'order.reserve' },
    fraud: { kind: 'order.reserve', needs: ['reserve'] },
    charge: { kind: 'payments.charge', needs: ['reserve'], retry: 'exp(6m, x2, 5 retries)' },
    ship: { kind: 'order.ship', needs: ['charge', 'fraud'] },
    notify: { kind: 'order.ship', needs: ['ship'] },
  };
  await api.put('workflows/shop%2Forder', {
    name: 'order',
    input: { order: 1181 },
    steps: { ...steps, notify: { kind: 'order.ship', needs: ['charge'] } },
  });
  await api.put('workflows/shop%2Forder', { name: 'order', input: { order: 1182 }, steps });
  await api.post('schedules', {
    name: 'nightly',
    cron: '0 2 * * *',
    time_zone: 'Europe/Berlin',
    workflow: 'shop/order',
  });
  await api.post('schedules', { name: 'sweep', every: '15m', task: { kind: 'order.reserve' } });
  await api.put('rules/payments', { match: { kind: 'payments.charge' }, max_running: 5 });
  await api.put('policies/payments.charge', { policy: exp });
  await api.put('alerts/many-failures', {
    types: ['task.failed'],
    threshold: 5,
    window: '5m',
    note: 'Tell the one on call',
  });
  await api.put('alerts/outage', { types: ['attempt.failed'], threshold: 50, window: '1h' });
  await api.put('subscriptions/on-call', { url: 'http://127.0.0.1:1/hook', types: ['alert.fired'], note: 'The pager' });
  await api.put('accounts/acme', { credits: 100, budget: { retries_per_day: 20 } });
  const [put_off] = await api.submit({ kind: 'kyc.recheck', delay: '20d' });
  await api.post(`tasks/${put_off}/pause`, { note: 'asked to wait' });
  await api.post('tasks/bulk', { action: 'resume', filter: 'kind:kyc.recheck', note: 'they answered' });
  await api.submit({
    kind: 'crm.export',
    name: 'Export customer 8841',
    labels: { tenant: 'acme' },
    payload: { customer: 8841, fields: ['email', 'plan'] },
    retry: 'exp(4m, x2, max 6h, 7 retries)',
  });
  await api.fail(
    'crm.export',
    {
      type: 'ConnectionRefused',
      message: 'crm.example refused the connection',
      stack: 'ConnectionRefused: crm.example refused the connection\n  at export (crm.js:41)\n  at run (worker.js:12)',
    },
    'worker-2',
  );
  // It goes on failing while the pictures wait.
  const refused = { type: 'ConnectionRefused', message: 'crm.example refused the connection' };
  void (async () => {
    for (const error of [{ status: 503, message: 'crm.example answered 503' }, refused, refused, refused, refused]) {
      for (;;) {
        const { leases } = await api.post('leases', {
          worker: 'worker-1',
          kinds: ['crm.export'],
          limit: 1,
          wait: '20s',
        });
        if (!leases[0]) continue;
        await api.post('leases/report', { reports: [{ lease: leases[0].lease, outcome: 'failed', error }] });
        break;
      }
    }
  })().catch(() => undefined);
}

function screens(isPhone) {
  const first = (path, to, act) => ({ find: async () => to((await api.get(path)).items[0]), act });
  const still = (path, act) => ({ find: () => path, act });
  const press = (name) => (page) => page.getByRole('button', { name, exact: true }).first().click();
  const open = (label) => (page) => page.locator('summary', { hasText: label }).first().click();
  const all = {
    guide: still(''),
    overview: still('', press('Hide')),
    tasks: still('tasks?q='),
    failures: still('tasks'),
    views: still('tasks?q=', open('Views')),
    task: first('tasks?q=kind:crm.export&limit=1', (it) => `t/${it.id}`),
    'task-long': first('tasks?q=kind:kyc.recheck state:retrying&limit=1', (it) => `t/${it.id}`),
    'task-dead': first('tasks?q=state:failed&limit=1', (it) => `t/${it.id}`),
    'task-edit': first('tasks?q=kind:crm.export&limit=1', (it) => `t/${it.id}`, press('Edit & retry')),
    'task-zoom': first('tasks?q=kind:crm.export&limit=1', (it) => `t/${it.id}?zoom=1h`),
    'task-policy': first(
      'tasks?q=kind:crm.export&limit=1',
      (it) => `t/${it.id}`,
      async (page) => {
        await page.getByRole('button', { name: 'Policy', exact: true }).click();
        await page.getByRole('button', { name: 'Change policy…' }).click();
      },
    ),
    'task-acts': first(
      'tasks?q=kind:crm.export&limit=1',
      (it) => `t/${it.id}`,
      (page) => page.keyboard.press('.'),
    ),
    executions: still('executions'),
    execution: { find: ordered },
    gantt: first('executions?state=succeeded&limit=1', (it) => `x/${it.id}?view=gantt`),
    steps: first('executions?limit=1', (it) => `x/${it.id}?view=list`),
    workflows: still('workflows'),
    workflow: still('workflows/shop/order'),
    errors: still('errors?state='),
    error: first('errors?limit=1', (it) => `e/${it.fingerprint}`),
    analytics: still('analytics?range=24h'),
    upcoming: still('upcoming?range=7d'),
    'upcoming-30d': still('upcoming?range=30d'),
    schedules: still('schedules'),
    guards: still('guards'),
    rules: still('guards/rules'),
    accounts: still('guards/accounts'),
    workers: still('workers'),
    playground: still('playground'),
    'playground-own': still(
      `playground?policy=${encodeURIComponent('exp(30s, x2, max 1h, 3 retries, jitter full)')}&within=24h`,
      (page) =>
        page
          .getByText(/would have come back/)
          .first()
          .scrollIntoViewIfNeeded(),
    ),
    admin: still('admin'),
    stuck: still('admin/stuck'),
    policies: still('admin/policies'),
    keys: still('admin/keys'),
    operations: still('admin/operations'),
    operation: first('operations?limit=1', (it) => `admin/operations/${it.id}`),
    audit: still('admin/audit'),
    alerts: still('admin/alerts'),
    'alert-new': still('admin/alerts', press('New alert…')),
    subscriptions: still('admin/subscriptions'),
  };
  // Done with a keyboard and with columns that a phone has no room for.
  const onlyWide = {
    columns: still('tasks?q=', open('Columns')),
    bulk: still('tasks?q=state:retrying', async (page) => {
      await page.getByRole('checkbox', { name: 'Choose all rows of this page' }).check();
      await page.locator('.bulk').getByRole('button', { name: 'Pause', exact: true }).click();
    }),
    palette: still('', (page) => page.keyboard.press('Control+k')),
    keyboard: still('tasks?q=', (page) => page.keyboard.press('?')),
  };
  return isPhone ? all : { ...all, ...onlyWide };
}

async function ordered() {
  const { execution_id } = await api.post('executions', { workflow: 'shop/order' });
  await new Promise((done) => setTimeout(done, 1500));
  return `x/${execution_id}`;
}
