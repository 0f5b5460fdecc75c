import { expect, it } from 'vitest';
import type { TaskLine } from '../api/types';
import { groups, helps, helpsSentence, nextSentence } from './groups';

const task = (over: Partial<TaskLine>): TaskLine =>
  ({
    id: 'x',
    kind: 'pay',
    state: 'retry_pending',
    fingerprint: 'aa',
    total_attempts: 2,
    last_error: { message: '503' },
    next_retry_at: '2026-01-01T00:00:10.000Z',
    submitted_at: '2026-01-01T00:00:00.000Z',
    ...over,
  }) as TaskLine;

it('puts failures that look the same together, the largest first', () => {
  const found = groups([
    task({
      fingerprint: 'bb',
      kind: 'mail',
      state: 'dead',
      last_error: { message: 'no' } as never,
      next_retry_at: null,
    }),
    task({}),
    task({ next_retry_at: '2026-01-01T00:00:05.000Z' }),
    task({ state: 'failed', next_retry_at: null }),
  ]);
  expect(found.map(({ kind, badge, retrying, dead, runs }) => ({ kind, badge, retrying, dead, runs }))).toEqual([
    { kind: 'pay', badge: 'retrying', retrying: 2, dead: 1, runs: 6 },
    { kind: 'mail', badge: 'dead', retrying: 0, dead: 1, runs: 2 },
  ]);
  expect(found[0]?.next).toBe('2026-01-01T00:00:05.000Z');
});

it('says when a group comes back, and what keeps it', () => {
  const now = Date.parse('2026-01-01T00:00:00.000Z');
  const held = { held_until: '2026-01-02T00:00:00.000Z', blocked: 'account acme: it is empty' } as Partial<TaskLine>;
  const say = (...tasks: TaskLine[]) => groups(tasks).map((group) => nextSentence(group, now, 'utc'));
  expect(say(task({}))).toEqual(['Next retry in 10s.']);
  expect(say(task({ next_retry_at: '2025-12-31T23:00:00.000Z' }))).toEqual(['A retry is due now.']);
  expect(say(task(held))).toEqual(['Held: account acme: it is empty.']);
  expect(say(task({ state: 'pending', next_retry_at: null, blocked: 'its execution is paused' }))).toEqual([
    'Held: its execution is paused.',
  ]);
  expect(say(task({ state: 'pending', next_retry_at: null }))).toEqual(['They run as soon as a worker takes them.']);
  expect(say(task(held), task({}))).toEqual(['Next retry in 10s.']);
  expect(say(task({ state: 'dead', next_retry_at: null }))).toEqual(['None of them will be retried by itself.']);
  const [until] = groups([task({ ...held, blocked: 'held by breaker psp until 2026-01-01T00:05:00.000Z' })]);
  expect(until && nextSentence(until, now, 'utc')).toBe('Held: held by breaker psp until 00:05:00.');
});

it('gives a percentage only where there are enough cases', () => {
  expect(helps({ recovered: 0, dead: 0, more: false })).toBe('none ended');
  expect(helps({ recovered: 3, dead: 4, more: false })).toBe('3 of 7 so far');
  expect(helps({ recovered: 84, dead: 16, more: true })).toBe('84 % of 100+');
  expect(helps({ recovered: 0, dead: 61, more: false })).toBe('never: 0 of 61');
  expect(helpsSentence({ recovered: 3, dead: 4, more: false })).toMatch('too few');
  expect(helpsSentence({ recovered: 84, dead: 16, more: true })).toBe(
    '84 % of tasks with this error came back (n=100+)',
  );
});
