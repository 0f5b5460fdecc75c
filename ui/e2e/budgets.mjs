// Size and speed of the dashboard, measured with a real server in a real Chromium. Prints a table.
//   node e2e/budgets.mjs              TASKS=1000000 for the whole store; COMEBACK_BINARY names another binary, DATABASE another database,
//                                     FILLED=1 says that the tasks are in it already
// Fails only at five times a target: machines differ, budgets do not.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TARGETS, watchDemo, weigh } from './measure.mjs';
import { binary, clientOf, openBrowser, openPage, startServer } from './stage.mjs';

const TASKS = Number(process.env.TASKS ?? 1_000_000);
const ATTEMPTS = 10_000;
const STEPS = 2_000;
const rows = [];

function note(what, value, target, unit) {
  rows.push({ what, value, target, unit, ok: value <= target });
  console.error(`${what}: ${show(value)} ${unit} (target ${show(target)} ${unit})`);
}
const show = (n) => (n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString('en') : n.toFixed(1));

const KINDS = ['email.send', 'payments.charge', 'report.export', 'crm.sync'];
const QUEUES = Array.from({ length: 7 }, (_, i) => `q${i}`);

/** A tenth of them is over, of which one in twenty failed; the others wait for a time within the next weeks. */
async function fill(api) {
  const began = performance.now();
  const ready = TASKS / 10;
  for (let done = 0; done < TASKS;) {
    const n = Math.min(10_000, TASKS - done);
    const delay = (i) => (done + i < ready ? undefined : `${1 + ((done + i) % 700)}h`);
    const tasks = Array.from({ length: n }, (_, i) => ({
      kind: KINDS[i % KINDS.length],
      queue: QUEUES[i % QUEUES.length],
      delay: delay(i),
      labels: { tenant: `t${i % 100}` },
    }));
    await api.post('tasks', { tasks });
    done += n;
    if (done % 100_000 === 0)
      console.error(`  ${done.toLocaleString('en')} tasks after ${Math.round((performance.now() - began) / 1000)} s`);
  }
  await Promise.all([0, 1, 2, 3].map((n) => workOff(api, `w${n}`)));
  console.error(`  worked off after ${Math.round((performance.now() - began) / 1000)} s`);
}

async function workOff(api, worker) {
  for (;;) {
    const { leases } = await api.post('leases', { worker, queues: QUEUES, limit: 500 });
    if (leases.length === 0) return;
    const report = ({ lease }, i) =>
      i % 20 ? { lease, outcome: 'succeeded' } : { lease, outcome: 'failed', error: { message: `refused ${i % 7}` } };
    await api.post('leases/report', { reports: leases.map(report) });
  }
}

/** A task that has failed ten thousand times, by a worker that does nothing else. */
async function wearOut(api) {
  // No policy allows so many; whenever it is given up, somebody tries again.
  const [id] = await api.submit({ kind: 'worn.out', retry: { strategy: 'immediate', max_retries: 999 } });
  for (let i = 0; i < ATTEMPTS; i += 1) {
    if (i > 0 && i % 1_000 === 0) await api.post(`tasks/${id}/retry`);
    await api.fail('worn.out', { status: 503, message: `503 Service Unavailable (${i % 17})` });
  }
  return id;
}

async function wide(api) {
  const layers = 20;
  const each = STEPS / layers;
  const tasks = Array.from({ length: STEPS }, (_, i) => {
    const needs = i < each ? [] : [`s${i - each}`, ...(i % 5 ? [] : [`s${i - each - (i % each ? 1 : 0)}`])];
    return { key: `s${i}`, kind: 'wide.step', needs: [...new Set(needs)] };
  });
  return (await api.post('tasks', { execution: { name: 'wide' }, tasks })).execution_id;
}

const p95 = (times) => times.toSorted((a, b) => a - b)[Math.ceil(times.length * 0.95) - 1];

/** Milliseconds until something is there, on a page of its own: nothing is warm but the server. */
async function opens(stage, path, selector) {
  const tab = await openPage(stage);
  const began = performance.now();
  await tab.go(path);
  await tab.page.locator(selector).first().waitFor({ timeout: 120_000 });
  const took = performance.now() - began;
  const trouble = tab.trouble;
  await tab.close();
  return { took, trouble };
}

async function full(browser) {
  const folder = await mkdtemp(join(tmpdir(), 'comeback-budgets-'));
  const server = await startServer(
    ['serve', '--listen', '127.0.0.1:0', '--db', process.env.DATABASE ?? join(folder, 'full.db')],
    folder,
  );
  const api = clientOf(server.url);
  const stage = { url: server.url, api, browser };
  const trouble = [];
  const measure = async (what, path, selector, target) => {
    const found = [];
    for (let i = 0; i < 3; i += 1) {
      const { took, trouble: seen } = await opens(stage, path, selector);
      found.push(took);
      trouble.push(...seen);
    }
    note(what, found.toSorted((a, b) => a - b)[1], target, 'ms');
  };
  try {
    const execution = await wide(api);
    const worn = await wearOut(api);
    if (!process.env.FILLED) await fill(api);
    const count = (await api.get('stats')).total.toLocaleString('en');
    await measure(`Overview interactive, ${count} tasks`, '', '.figures a', 1_000);
    const lists = [
      '',
      'state:queued',
      'kind:email.send',
      'kind:crm.* queue:q3',
      'kind:wide.step',
      'due:<24h sort=due',
      'sort=due',
      'label.tenant:t7',
      'state:succeeded',
      'state:failed kind:crm.sync',
      'state:retrying,held,failed,dead',
      'state:retrying,held,failed,dead sort=due',
      'state:retrying,held,failed,dead sort=updated',
      'state:claimed,running sort=updated',
    ];
    for (const list of lists) {
      const [q, sort] = list.split(/ ?sort=/);
      const times = [];
      for (let i = 0; i < 20; i += 1) {
        const began = performance.now();
        await api.get(`tasks?limit=50&q=${encodeURIComponent(q)}${sort ? `&sort=${sort}` : ''}`);
        times.push(performance.now() - began);
      }
      note(`list p95, ${list || 'no filter'}`, p95(times), 150, 'ms');
    }
    await measure(
      `a task with ${ATTEMPTS.toLocaleString('en')} attempts opens`,
      `t/${worn}`,
      'svg[aria-label^=Timeline]',
      1_000,
    );
    await measure(`an execution with ${STEPS.toLocaleString('en')} tasks opens`, `x/${execution}`, '.box', 1_000);
    await measure(
      `an execution with ${STEPS.toLocaleString('en')} tasks is listed`,
      `x/${execution}?view=list`,
      'tbody tr',
      1_000,
    );
    note('requests to elsewhere, errors', trouble.length, 0, '');
    if (trouble.length) console.error(trouble.slice(0, 5).join('\n'));
  } finally {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  }
}

console.error(`with ${binary}`);
const browser = await openBrowser();
try {
  note('all of it, compressed', Object.values(await weigh()).reduce((sum, size) => sum + size, 0) / 1024, 250, 'KB');
  if (!process.env.ONLY_FULL) {
    const took = await watchDemo(browser);
    for (const [what, target] of Object.entries(TARGETS)) note(`demo: ${what}`, took[what], target, 's');
  }
  if (TASKS > 0) await full(browser);
} finally {
  await browser.close();
}
const wideOf = (of) => Math.max(...rows.map((row) => of(row).length));
const [a, b, c] = [
  wideOf((row) => row.what),
  wideOf((row) => `${show(row.value)} ${row.unit}`),
  wideOf((row) => `${show(row.target)} ${row.unit}`),
];
for (const row of rows)
  console.log(
    `${row.what.padEnd(a)}  ${`${show(row.value)} ${row.unit}`.padStart(b)}  target ${`${show(row.target)} ${row.unit}`.padStart(c)}  ${row.ok ? 'kept' : 'MISSED'}`,
  );
if (rows.some((row) => row.value > row.target * 5)) process.exitCode = 1;
