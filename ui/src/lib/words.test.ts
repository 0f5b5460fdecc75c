import { describe, expect, it } from 'vitest';
import { cli, curl } from './copy';
import { counted, badgeOf, disabledReason, TABS } from './states';
import { attemptWords, errorText, policyWords, short } from './words';

it('shortens ids as the command line does', () => {
  expect(short('01a1e1fe-080e-7000-8004-278e172832fa')).toBe('172832fa');
});

it('says errors by their message', () => {
  expect(errorText({ type: 'ValidationError', message: 'vat_id is missing' })).toBe(
    'ValidationError: vat_id is missing',
  );
  expect(errorText({ status: 503 })).toBe('HTTP 503');
  expect(errorText({ trigger: 'lease_expired' })).toBe('lease expired');
  expect(errorText(null)).toBe('');
});

it('counts attempts from one', () => {
  expect(attemptWords({ attempt_number: 3, max_retries: 5 })).toBe('3 of 6');
  expect(attemptWords({ attempt_number: 1, max_retries: null })).toBe('1');
});

it('says a policy as it is written in the text form', () => {
  expect(
    policyWords({
      strategy: 'schedule',
      max_retries: 2,
      schedule: [{ delay_ms: 604_800_000 }, { delay_ms: 1_209_600_000 }],
      jitter: 'none',
    } as never),
  ).toBe('schedule(7d, 14d, 2 retries)');
  expect(
    policyWords({
      strategy: 'exponential',
      initial_delay_ms: 60_000,
      multiplier: 2,
      max_delay_ms: 3_600_000,
      max_retries: 5,
      jitter: 'full',
    } as never),
  ).toBe('exponential(1m, x2, max 1h, 5 retries, jitter full)');
  expect(policyWords(false as never)).toBe('never retried');
});

describe('states', () => {
  it('are shown by what a person must know', () => {
    expect(badgeOf({ state: 'succeeded', total_attempts: 1 })).toBe('succeeded');
    expect(badgeOf({ state: 'succeeded', total_attempts: 2 })).toBe('recovered');
    expect(badgeOf({ state: 'retry_pending', held_until: '2026-11-16T00:00:00Z' })).toBe('held');
    expect(badgeOf({ state: 'failed' })).toBe('failed');
    expect(badgeOf({ state: 'dead' })).toBe('dead');
    expect(badgeOf({ state: 'canceled' })).toBe('canceled');
  });

  it('allow what the server allows', () => {
    expect(disabledReason('retry', 'retry_pending')).toBeNull();
    expect(disabledReason('retry', 'succeeded')).toBe('it has succeeded');
    expect(disabledReason('retry', 'canceled')).toMatch('submit it anew');
    expect(disabledReason('cancel', 'dead')).toBe('it has ended');
    expect(disabledReason('resume', 'paused')).toBeNull();
  });

  it('are counted as the filters of the tabs find them', () => {
    const stand = {
      total: 40,
      by_state: { pending: 3, waiting: 1, retry_pending: 9, paused: 2, failed: 4, dead: 5, succeeded: 16 },
      held: { paused: 2, retry_pending: 6 },
    };
    const numbers = Object.fromEntries(TABS.map(({ title, filter }) => [title, counted(filter, stand)]));
    expect(numbers).toEqual({
      'Open failures': 20,
      All: 40,
      Queued: 4,
      Running: 0,
      Retrying: 3,
      Held: 8,
      'Failed or dead': 9,
      Recovered: null,
      Done: 16,
      Canceled: 0,
    });
    expect(counted('kind:pay', stand)).toBeNull();
  });
});

it('copies commands that a shell reads as they are meant', () => {
  expect(cli('task', 'list', 'state:retrying queue:a')).toBe("comeback task list 'state:retrying queue:a'");
  expect(curl('POST', 'http://h/x', { note: "it's" })).toContain(`-d '{"note":"it'\\''s"}'`);
});
