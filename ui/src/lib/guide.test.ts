import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import {
  about,
  BANK,
  bankWords,
  flipped,
  hasFailed,
  isBack,
  isOver,
  isRetry,
  KINDS,
  NOTHING,
  oneToOpen,
  ownCommand,
  ownTasks,
  read,
  startOf,
  STEPS,
  ticked,
  WAVE,
} from './guide';

const AT = '2026-11-20T09:00:00.000Z';

it('knows every kind of the demo', () => {
  const source = readFileSync('../crates/cli/src/commands/demo/workload.rs', 'utf8');
  const handled = [...source.matchAll(/\.handle\("([^"]+)"/g)].map((it) => it[1]);
  expect(handled.toSorted()).toEqual(KINDS.toSorted());
});

it('is there for the demo and for no other server', () => {
  const demo = { id: 'demo', self: true, started_at: AT };
  const worker = { instance: 'demo', kinds: ['payments.charge', BANK] };
  expect(startOf([demo], [worker], null)).toBe(AT);
  // Called so by whoever started it, or left over in the data of a demo.
  expect(startOf([demo], [], null)).toBeNull();
  expect(startOf([demo], [{ instance: 'demo', kinds: ['payments.charge'] }], null)).toBeNull();
  expect(
    startOf(
      [
        { ...demo, self: false },
        { ...demo, id: 'server-1' },
      ],
      [worker],
      AT,
    ),
  ).toBeNull();
  // Its worker was not seen for a moment.
  expect(startOf([demo], [], AT)).toBe(AT);
  expect(startOf([{ ...demo, started_at: '2026-11-20T10:00:00.000Z' }], [], AT)).toBeNull();
});

it('keeps what it can read', () => {
  const kept = { done: ['why' as const, 'bank' as const], hidden: true, down: true, backAt: AT };
  expect(read(JSON.stringify(kept))).toEqual(kept);
  expect(read(null)).toEqual(NOTHING);
  expect(read('{"done": ["nothing", "own"], "hidden": 1, "backAt": 7}')).toEqual({ ...NOTHING, done: ['own'] });
  for (const text of ['{', 'null', '7', '[]']) expect(read(text)).toEqual(NOTHING);
});

it('ticks each step once, in whatever order', () => {
  const own = ticked(NOTHING, 'own');
  expect(ticked(own, 'own')).toBe(own);
  expect(ticked(own, 'why').done).toEqual(['why', 'own']);
  expect(isOver(own)).toBe(false);
  expect(isOver(STEPS.reduce(ticked, NOTHING))).toBe(true);
});

it('ticks the bank when it was down and is back', () => {
  expect(flipped(NOTHING, false, AT)).toEqual({ ...NOTHING, backAt: AT });
  const down = flipped(NOTHING, true, AT);
  expect([down.done, down.down, down.backAt]).toEqual([[], true, null]);
  const back = flipped(down, false, AT);
  expect([back.done, back.down, back.backAt]).toEqual([['bank'], false, AT]);
  // Once more: the step stays done, and there is another wave to wait for.
  expect(flipped(back, true, AT)).toEqual({ ...back, down: true, backAt: null });
  expect([NOTHING, down, back].map(bankWords)).toEqual(['Take the bank down', 'Bring it back', 'Take the bank down']);
});

it('sees that a task has failed, also when it has come back', () => {
  expect(hasFailed({ state: 'succeeded', last_error: { message: '503' } as never })).toBe(true);
  expect(hasFailed({ state: 'dead', last_error: null })).toBe(true);
  expect(hasFailed({ state: 'running', last_error: null })).toBe(false);
});

it('tells a retry by hand from what else is done', () => {
  const done = (path: string, body?: unknown, method = 'POST') => isRetry({ method, path, body });
  expect(done('tasks/01a1/retry', {})).toBe(true);
  expect(done('executions/01a1/retry')).toBe(true);
  expect(done('tasks/01a1/cancel', {})).toBe(false);
  expect(done('tasks/01a1/retry', {}, 'PUT')).toBe(false);
  expect(done('tasks/bulk', { action: 'retry', filter: 'state:dead' })).toBe(true);
  expect(done('tasks/bulk', { action: 'retry', filter: 'state:dead', dry_run: true })).toBe(false);
  expect(done('tasks/bulk', { action: 'pause' })).toBe(false);
});

it('opens the one that waits longest', () => {
  const task = (id: string, state: 'retry_pending' | 'failed', next: string | null, held: string | null = null) => ({
    id,
    state,
    next_retry_at: next,
    held_until: held,
  });
  const failed = task('a', 'failed', null);
  expect(oneToOpen([])).toBeNull();
  expect(oneToOpen([failed])).toBe('a');
  expect(
    oneToOpen([
      failed,
      task('b', 'retry_pending', '2026-11-20T09:01:00.000Z'),
      task('c', 'retry_pending', '2026-11-27T09:00:00.000Z'),
      task('d', 'retry_pending', '2026-12-24T09:00:00.000Z', AT),
    ]),
  ).toBe('c');
});

it('waits for all that were there when the bank came back', () => {
  expect(isBack({ waiting: 3, back: 2 })).toBe(false);
  expect(isBack({ waiting: 0, back: 0 })).toBe(false);
  expect(isBack({ waiting: 0, back: 1 })).toBe(true);
  expect(WAVE.waiting(AT)).toBe(`kind:payments.charge state:open -state:paused submitted:<=${AT}`);
  expect(WAVE.back(AT)).toBe(`kind:payments.charge state:recovered updated:>=${AT}`);
});

it('says how many are still to come', () => {
  const back = flipped(flipped(NOTHING, true, AT), false, AT);
  const words = (waiting: number, come: number) => about('wave', back, { waiting, back: come });
  expect(words(17, 0)).toBe('17 still wait');
  expect(words(1, 16)).toBe('1 still waits, 16 came back');
  expect(words(500, 0)).toBe('500 or more still wait');
  expect(words(0, 0)).not.toMatch(/\d/);
  expect(about('wave', NOTHING)).not.toBe(about('wave', { ...NOTHING, down: true }));
});

it('says of every step that it is done, in words', () => {
  const over = STEPS.reduce(ticked, NOTHING);
  for (const step of STEPS) {
    expect(about(step, over)).toMatch(/^Done/);
    expect(about(step, NOTHING)).not.toMatch(/^Done/);
  }
});

it('shows a command for the server that it is shown by', () => {
  const plain = `comeback run --retry 'exp(1s, x2, 5 retries)' -- sh -c 'test $COMEBACK_ATTEMPT -ge 3'`;
  expect(ownCommand('http://127.0.0.1:7330/')).toBe(plain);
  expect(ownCommand('http://localhost:7330')).toBe(plain);
  expect(ownCommand('http://127.0.0.1:7455/')).toBe(plain.replace('run', 'run --server http://127.0.0.1:7455'));
  expect(ownTasks(AT)).toMatch(/^-kind:payments\.charge,\S+,demo\.bank submitted:>=2026/);
});
