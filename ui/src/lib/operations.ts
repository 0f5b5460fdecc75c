/** Bulk operations in words. */

import type { Excluded, Operation } from '../api/types';
import { badgeOf, badgeStyle } from './states';

const REASONS: Record<string, string> = {
  no_credits: 'whose account has no credits for it',
  deadline_passed: 'whose deadline has passed',
  not_found: 'that do not exist',
  key_taken: 'whose dedupe key another open task holds',
  conflict: 'that changed concurrently',
  damaged: 'whose record is inconsistent',
  started: 'that have run since',
  changed: 'that have changed since',
  definitive: 'that cannot be undone',
};

export function excludedWords({ reason, state }: Pick<Excluded, 'reason' | 'state'>): string {
  if (reason === 'wrong_state') return state ? badgeStyle(badgeOf({ state })).word : 'in another state';
  return REASONS[reason] ?? reason.replaceAll('_', ' ');
}

export const OPERATION_BADGES: Record<Operation['state'], { word: string; glyph: string; colour: string }> = {
  running: { word: 'running', glyph: '▶', colour: 'running' },
  done: { word: 'done', glyph: '✓', colour: 'succeeded' },
  aborted: { word: 'aborted', glyph: '–', colour: 'canceled' },
  stopped: { word: 'stopped', glyph: '✕', colour: 'dead' },
  undoing: { word: 'undoing', glyph: '↻', colour: 'retrying' },
  undone: { word: 'undone', glyph: '◎', colour: 'held' },
  dry_run: { word: 'dry run', glyph: '○', colour: 'queued' },
};

/** Why it cannot be aborted or undone; `null` when it can. */
export function operationDisabledReason(
  verb: 'abort' | 'undo',
  { state, action, done }: Pick<Operation, 'state' | 'action' | 'done'>,
): string | null {
  if (verb === 'abort') return state === 'running' ? null : 'it is not running';
  if (action === 'cancel') return 'a cancel cannot be undone';
  if (state === 'undoing' || state === 'undone') return 'it is already undone';
  return done > 0 ? null : 'nothing was done yet';
}
