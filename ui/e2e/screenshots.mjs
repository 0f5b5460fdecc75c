// Pictures of every screen: light, dark and phone, of the demo with a little more in it.
//   node e2e/screenshots.mjs [FOLDER]      six of them also go to docs/images with --docs
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { clientOf, openBrowser, startServer } from './stage.mjs';

const here = import.meta.dirname;
const out = process.argv.find((it, i) => i > 1 && !it.startsWith('--')) ?? join(here, '../screenshots');
const CHOSEN = { 'overview-light': 'overview', 'task-light': 'task', 'task-long-dark': 'task-dark', 'tasks-dark': 'tasks-dark', 'execution-light': 'execution', 'playground-light': 'playground' };
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
    const page = await browser.newPage(options);
    for (const [name, find] of Object.entries(screens())) {
      await page.goto(`${server.url}/${await find()}`);
      await page.locator('main h1').first().waitFor();
      await page.waitForTimeout(900);
      await page.screenshot({ path: join(out, `${name}-${way}.png`) });
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

/** What the demo has none of: a workflow, a schedule, a rule, a policy, and a task that has been failing for a while. */
async function more() {
  const exp = 'exp(60s, x2, max 1h, 5 retries, jitter full)';
  const steps = {
    reserve: { kind: 'order.reserve' },
    fraud: { kind: 'order.reserve', needs: ['reserve'] },
    charge: { kind: 'payments.charge', needs: ['reserve'], retry: 'exp(6m, x2, 5 retries)' },
    ship: { kind: 'order.ship', needs: ['charge', 'fraud'] },
    notify: { kind: 'order.ship', needs: ['ship'] },
  };
  await api.put('workflows/shop%2Forder', { name: 'order', input: { order: 1181 }, steps: { ...steps, notify: { kind: 'order.ship', needs: ['charge'] } } });
  await api.put('workflows/shop%2Forder', { name: 'order', input: { order: 1182 }, steps });
  await api.post('schedules', { name: 'nightly', cron: '0 2 * * *', time_zone: 'Europe/Berlin', workflow: 'shop/order' });
  await api.post('schedules', { name: 'sweep', every: '15m', task: { kind: 'order.reserve' } });
  await api.put('rules/payments', { match: { kind: 'payments.charge' }, max_running: 5 });
  await api.put('policies/payments.charge', { policy: exp });
  await api.submit({ kind: 'crm.sync', name: 'Sync customer 8841', labels: { tenant: 'acme' }, payload: { customer: 8841, fields: ['email', 'plan'] }, retry: 'exp(4m, x2, max 6h, 7 retries)' });
  await api.fail('crm.sync', { type: 'ConnectionRefused', message: 'crm.example refused the connection', stack: 'ConnectionRefused: crm.example refused the connection\n  at sync (crm.js:41)\n  at run (worker.js:12)' }, 'worker-2');
  // It goes on failing while the pictures wait.
  const refused = { type: 'ConnectionRefused', message: 'crm.example refused the connection' };
  void (async () => {
    for (const error of [{ status: 503, message: 'crm.example answered 503' }, refused, refused, refused, refused]) {
      for (;;) {
        const { leases } = await api.post('leases', { worker: 'worker-1', kinds: ['crm.sync'], limit: 1, wait: '20s' });
        if (!leases[0]) continue;
        await api.post('leases/report', { reports: [{ lease: leases[0].lease, outcome: 'failed', error }] });
        break;
      }
    }
  })().catch(() => undefined);
}

function screens() {
  const first = (path, to) => async () => to((await api.get(path)).items[0]);
  const still = (path) => () => path;
  return {
    overview: still(''),
    tasks: still('tasks?q='),
    failures: still('tasks'),
    task: first('tasks?q=kind:crm.sync&limit=1', (it) => `t/${it.id}`),
    'task-long': first('tasks?q=kind:kyc.recheck&limit=1', (it) => `t/${it.id}`),
    'task-dead': first('tasks?q=state:failed&limit=1', (it) => `t/${it.id}`),
    executions: still('executions'),
    execution: async () => {
      const { execution_id } = await api.post('executions', { workflow: 'shop/order' });
      await new Promise((done) => setTimeout(done, 1500));
      return `x/${execution_id}`;
    },
    gantt: first('executions?state=succeeded&limit=1', (it) => `x/${it.id}?view=gantt`),
    workflows: still('workflows'),
    workflow: still('workflows/shop/order'),
    upcoming: still('upcoming?range=7d'),
    schedules: still('schedules'),
    rules: still('rules'),
    workers: still('workers'),
    playground: still('playground'),
    admin: still('admin'),
    keys: still('admin/keys'),
  };
}
