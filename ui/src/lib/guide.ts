/** The guide of the demo: five things to do, how it is seen that they were done, and the words about them. */

import type { Done } from '../api/client';
import type { Instance, Task, TaskLine, Worker } from '../api/types';
import { cli } from './copy';

export type Step = 'why' | 'retry' | 'bank' | 'wave' | 'own';
export const STEPS: readonly Step[] = ['why', 'retry', 'bank', 'wave', 'own'];

/** A task of this kind takes the bank down or brings it back. */
export const BANK = 'demo.bank';
/** Kinds of the demo's own tasks. */
export const KINDS = [
  'payments.charge',
  'email.send',
  'invoice.render',
  'report.export',
  'kyc.recheck',
  'crm.sync',
  'thumbnail.make',
  'order.reserve',
  'order.ship',
  'order.refund',
  BANK,
];

/** Progress of one start of the demo, kept in the browser. */
export interface Kept {
  done: Step[];
  hidden: boolean;
  /** Whether this page took the bank down. */
  down: boolean;
  /** When it was last brought back, on the server's clock. */
  backAt: string | null;
}

export const NOTHING: Kept = { done: [], hidden: false, down: false, backAt: null };

/** Reads the kept progress; unreadable parts are left out. */
export function read(text: string | null): Kept {
  try {
    const { done, hidden, down, backAt } = JSON.parse(text ?? '{}') as Partial<Record<keyof Kept, unknown>>;
    return {
      done: STEPS.filter((step) => Array.isArray(done) && done.includes(step)),
      hidden: hidden === true,
      down: down === true,
      backAt: typeof backAt === 'string' ? backAt : null,
    };
  } catch {
    return NOTHING;
  }
}

export function ticked(kept: Kept, step: Step): Kept {
  return kept.done.includes(step)
    ? kept
    : { ...kept, done: STEPS.filter((it) => it === step || kept.done.includes(it)) };
}

/** Down and then back is one step; whoever only brings it back has not seen it down. */
export function flipped(kept: Kept, down: boolean, at: string): Kept {
  if (down) return { ...kept, down, backAt: null };
  const back = { ...kept, down, backAt: at };
  return kept.down ? ticked(back, 'bank') : back;
}

export const isOver = (kept: Kept) => STEPS.every((step) => kept.done.includes(step));

/**
 * When the demo was started, or nothing where this server is no demo. Any server may be called so, but only the demo has a worker
 * for its bank. A worker that is not seen for a moment makes no difference to what was `known`.
 */
export function startOf(
  instances: Pick<Instance, 'id' | 'self' | 'started_at'>[],
  workers: Pick<Worker, 'instance' | 'kinds'>[],
  known: string | null,
): string | null {
  const own = instances.find((it) => it.self && it.id === 'demo');
  if (!own) return null;
  const hasBank = workers.some((it) => it.instance === own.id && it.kinds.includes(BANK));
  return hasBank || own.started_at === known ? own.started_at : null;
}

export const hasFailed = (task: Pick<Task, 'state' | 'last_error'>) =>
  !!task.last_error || task.state === 'failed' || task.state === 'dead';

/** Whether that was a retry by hand, of one or of many; a trial changes nothing. */
export function isRetry({ method, path, body }: Done): boolean {
  if (method !== 'POST') return false;
  const { action, dry_run } = (body ?? {}) as { action?: unknown; dry_run?: unknown };
  return path === 'tasks/bulk'
    ? action === 'retry' && dry_run !== true
    : /^(tasks|executions)\/[^/]+\/retry$/.test(path);
}

/** One that will still be failing when somebody has come to press a button: of those that wait, the one that waits longest. */
export function oneToOpen(failing: Pick<TaskLine, 'id' | 'state' | 'held_until' | 'next_retry_at'>[]): string | null {
  const due = (task: (typeof failing)[number]) =>
    task.state === 'retry_pending' && !task.held_until ? (task.next_retry_at ?? '') : '';
  return failing.toSorted((a, b) => due(b).localeCompare(due(a)))[0]?.id ?? null;
}

/** The wave: charges from before the bank was back, and those that have come back since. */
export const WAVE = {
  waiting: (backAt: string) => `kind:payments.charge state:open -state:paused submitted:<=${backAt}`,
  back: (backAt: string) => `kind:payments.charge state:recovered updated:>=${backAt}`,
};

/** Rows, as far as they were asked for. */
export const MOST = 500;

export interface Wave {
  waiting: number;
  back: number;
}

export const isBack = ({ waiting, back }: Wave) => waiting === 0 && back > 0;

/** Of this start only: the data may be that of an earlier one. */
export const ownTasks = (start: string) => `-kind:${KINDS.join(',')} submitted:>=${start}`;

const DEFAULTS = ['http://127.0.0.1:7330', 'http://localhost:7330'];

/** A command that fails twice and comes back, for the server at this address. */
export function ownCommand(server: string): string {
  const url = server.replace(/\/+$/, '');
  return cli(
    'run',
    ...(DEFAULTS.includes(url) ? [] : ['--server', url]),
    '--retry',
    'exp(1s, x2, 5 retries)',
    '--',
    'sh',
    '-c',
    'test $COMEBACK_ATTEMPT -ge 3',
  );
}

export const bankWords = ({ down }: Kept) => (down ? 'Bring it back' : 'Take the bank down');

/** The line below a step. */
export function about(step: Step, kept: Kept, wave?: Wave | null): string {
  const isDone = kept.done.includes(step);
  switch (step) {
    case 'why':
      return isDone ? 'Done: you have seen one.' : 'Its page says what went wrong and what comes next.';
    case 'retry':
      return isDone ? 'Done: you did not wait for it.' : 'Press Retry now there, or Retry all… below.';
    case 'bank':
      if (kept.down) return 'It is down: every payment fails.';
      return isDone ? 'Done: it was down and is back.' : 'Then every payment fails, until you bring it back.';
    case 'wave':
      if (isDone) return 'Done: all that could come back did.';
      if (kept.down) return 'It gathers while the bank is down.';
      if (kept.backAt === null) return 'What failed meanwhile, when the bank is back.';
      if (!wave) return 'The bank is back.';
      if (wave.waiting === 0) return 'None waits; the next payment shows it.';
      return `${wave.waiting}${wave.waiting >= MOST ? ' or more' : ''} still ${wave.waiting === 1 ? 'waits' : 'wait'}${wave.back ? `, ${wave.back} came back` : ''}`;
    case 'own':
      return isDone ? 'Done: it is in the list of tasks.' : 'In a terminal; it fails twice and comes back:';
  }
}
