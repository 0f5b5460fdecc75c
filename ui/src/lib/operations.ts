/** Bulk operations in words. */

import type { Excluded, Operation } from '../api/types';
import { badgeOf, badgeStyle } from './states';

const REASONS: Record<string, string> = {
  no_credits: 'whose account has no credits for it',
  deadline_passed: 'whose deadline has passed',
  not_found: 'that are not there',
  key_taken: 'whose dedupe key another open task holds',
  conflict: 'that somebody else changed all the time',
  damaged: 'whose record contradicts itself',
  started: 'that have run since',
  changed: 'that something else has happened to since',
  definitive: 'for which it is for good',
};

export function excludedWords({ reason, state }: Pick<Excluded, 'reason' | 'state'>): string {
  if (reason === 'wrong_state') return state ? badgeStyle(badgeOf({ state })).word : 'in no state for it';
  return REASONS[reason] ?? reason.replaceAll('_', ' ');
}

export const OPERATION_BADGES: Record<Operation['state'], { word: string; glyph: string; colour: string }> = {
  running: { word: 'running', glyph: '▶', colour: 'running' },
  done: { word: 'done', glyph: '✓', colour: 'succeeded' },
  aborted: { word: 'aborted', glyph: '–', colour: 'canceled' },
  stopped: { word: 'stopped', glyph: '✕', colour: 'dead' },
  undoing: { word: 'undoing', glyph: '↻', colour: 'retrying' },
  undone: { word: 'undone', glyph: '◎', colour: 'held' },
  dry_run: { word: 'tried out', glyph: '○', colour: 'queued' },
};

/** Why it cannot be aborted or taken back; nothing when it can. */
export function turnObstacle(verb: 'abort' | 'undo', { state, action, done }: Pick<Operation, 'state' | 'action' | 'done'>): string | null {
  if (verb === 'abort') return state === 'running' ? null : 'it does not run';
  if (action === 'cancel') return 'a cancel is for good';
  if (state === 'undoing' || state === 'undone') return 'it is taken back already';
  return done > 0 ? null : 'nothing was done yet';
}
