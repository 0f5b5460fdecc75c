// A real server, a real browser, and a worker that fails on request.
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { chromium } from 'playwright-core';

const here = import.meta.dirname;
export const binary = process.env.COMEBACK_BINARY
  ? resolve(process.env.COMEBACK_BINARY)
  : join(here, '../../target/debug/comeback');

const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-dev-shm-usage',
];

export async function openBrowser() {
  const places = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
  const executablePath = places.find((place) => place && existsSync(place));
  if (!executablePath) throw new Error('no Chromium is here: scripts/setup installs it, or CHROMIUM says where it is');
  return chromium.launch({ executablePath, args: FLAGS });
}

/** Starts the binary and waits until it says where it listens. */
export async function startServer(args, folder) {
  const child = spawn(binary, args, {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, NO_COLOR: '1' },
  });
  let said = '';
  const url = await new Promise((done, fail) => {
    const hear = (piece) => {
      said += piece;
      const found = /Dashboard\s+(http:\S+?)\/?\s/.exec(said);
      if (found) done(found[1]);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('exit', (code) => fail(new Error(`the server ended with ${code}:\n${said}`)));
    child.on('error', fail);
  });
  return {
    url,
    async stop() {
      const ended = new Promise((done) => child.once('exit', done));
      child.kill('SIGTERM');
      await ended;
    },
  };
}

/** An API client. */
export function clientOf(url, key) {
  async function call(method, path, body) {
    const headers = {
      ...(key ? { authorization: `Bearer ${key}` } : {}),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    };
    const answer = await fetch(`${url}/api/v1/${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    const read = text ? JSON.parse(text) : null;
    if (!answer.ok) throw Object.assign(new Error(`${method} ${path}: ${text}`), { status: answer.status });
    return read;
  }
  const client = {
    call,
    get: (path) => call('GET', path),
    post: (path, body = {}) => call('POST', path, body),
    put: (path, body) => call('PUT', path, body),
    async submit(task) {
      const { tasks } = await call('POST', 'tasks', task);
      return tasks.map(({ id }) => id);
    },
    /** Leases one task of a kind and says how it ended. */
    async work(kind, report, worker = 'tester') {
      const { leases } = await call('POST', 'leases', { worker, kinds: [kind], limit: 1, wait: '10s' });
      if (!leases[0]) throw new Error(`nothing to lease of ${kind}`);
      const { reports } = await call('POST', 'leases/report', { reports: [{ lease: leases[0].lease, ...report }] });
      if (reports[0].problem) throw new Error(JSON.stringify(reports[0].problem));
      return leases[0].task.id;
    },
    fail: (kind, error, worker) => client.work(kind, { outcome: 'failed', error }, worker),
    succeed: (kind, result = null) => client.work(kind, { outcome: 'succeeded', result }),
  };
  return client;
}

/** A server on a file of its own; `close` leaves nothing behind. */
export async function openServer(...extra) {
  const folder = await mkdtemp(join(tmpdir(), 'comeback-ui-'));
  const server = await startServer(
    ['serve', '--listen', '127.0.0.1:0', '--db', join(folder, 'test.db'), ...extra],
    folder,
  );
  return {
    url: server.url,
    api: clientOf(server.url),
    async close() {
      await server.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** The same with a browser. */
export async function openStage(...extra) {
  const server = await openServer(...extra);
  const browser = await openBrowser();
  return {
    ...server,
    browser,
    async close() {
      await browser.close();
      await server.close();
    },
  };
}

/** A page that remembers what went wrong on it and what it asked of others. */
export async function openPage(stage, options = {}) {
  const context = await stage.browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  const trouble = [];
  page.on('pageerror', (error) => trouble.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of (400|401|403|404)/.test(message.text())) trouble.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(stage.url)) trouble.push(`asked elsewhere: ${request.url()}`);
  });
  page.on('dialog', (dialog) => {
    trouble.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return { page, trouble, go: (path) => page.goto(`${stage.url}/${path}`), close: () => context.close() };
}

/** Something of everything: what fails, what comes back, what waits, what is scheduled. */
export async function fill(api) {
  // Never due while the tests look at it.
  const exp = 'exp(10m, x2, max 1h, 5 retries, jitter equal)';
  const unavailable = { status: 503, message: '503 Service Unavailable' };
  const ids = {};
  [ids.retrying] = await api.submit({
    kind: 'payments.charge',
    payload: { order: 1182 },
    labels: { tenant: 'acme' },
    retry: exp,
  });
  await api.fail('payments.charge', unavailable, 'worker-1');
  [ids.final] = await api.submit({ kind: 'invoice.render', retry: exp });
  await api.fail('invoice.render', { class: 'final', type: 'ValidationError', message: 'vat_id is missing' });
  [ids.fine] = await api.submit({ kind: 'email.send', retry: exp });
  await api.succeed('email.send', { sent: true });
  [ids.long] = await api.submit({ kind: 'kyc.recheck', retry: 'schedule(7d, 14d)' });
  await api.fail('kyc.recheck', unavailable);
  [ids.recovered] = await api.submit({ kind: 'report.export', retry: 'immediate(3 retries)' });
  await api.fail('report.export', { type: 'Timeout', message: 'timed out after 30 s' });
  await api.succeed('report.export', { rows: 1204 });
  [ids.queued] = await api.submit({ kind: 'nobody.wants', delay: '2h' });

  const order = await api.post('tasks', {
    execution: { name: 'order-fulfilment' },
    tasks: [
      { key: 'reserve', kind: 'order.reserve' },
      { key: 'charge', kind: 'order.charge', needs: ['reserve'], retry: exp },
      { key: 'ship', kind: 'order.ship', needs: ['charge'] },
      { key: 'refund', kind: 'order.refund', needs: [{ task: 'charge', when: 'failure' }] },
    ],
  });
  ids.execution = order.execution_id;
  await api.succeed('order.reserve');
  await api.fail('order.charge', unavailable);

  const steps = { extract: { kind: 'etl.extract', retry: exp }, load: { kind: 'etl.load', needs: ['extract'] } };
  await api.put('workflows/etl%2Fnightly', { name: 'nightly', input: { file: 'a.csv' }, steps });
  await api.put('workflows/etl%2Fnightly', {
    name: 'nightly',
    input: { file: 'b.csv' },
    steps: { ...steps, publish: { kind: 'etl.publish', needs: ['load'] } },
  });
  await api.post('schedules', {
    name: 'nightly',
    cron: '0 2 * * *',
    time_zone: 'Europe/Berlin',
    workflow: 'etl/nightly',
  });
  await api.put('rules/payments', { match: { queue: 'payments' }, max_running: 5 });
  await api.put('policies/payments.charge', { policy: exp });
  return ids;
}
