import { expect, it } from 'vitest';
import { excludedWords, operationDisabledReason } from './operations';

it('says why tasks are left out', () => {
  expect(excludedWords({ reason: 'wrong_state', state: 'running' } as never)).toBe('running');
  expect(excludedWords({ reason: 'wrong_state', state: 'retry_pending' } as never)).toBe('retrying');
  expect(excludedWords({ reason: 'no_credits', state: null } as never)).toContain('credits');
  expect(excludedWords({ reason: 'something_new', state: null } as never)).toBe('something new');
});

it('knows when an operation can be aborted and taken back', () => {
  const it = { state: 'running', action: 'retry', done: 5 } as const;
  expect(operationDisabledReason('abort', it)).toBeNull();
  expect(operationDisabledReason('undo', it)).toBeNull();
  expect(operationDisabledReason('undo', { ...it, action: 'cancel' })).toBe('a cancel cannot be undone');
  expect(operationDisabledReason('abort', { ...it, state: 'done' })).toBe('it is not running');
  expect(operationDisabledReason('undo', { ...it, state: 'undone' })).toContain('already');
  expect(operationDisabledReason('undo', { ...it, done: 0 })).toContain('nothing');
});
