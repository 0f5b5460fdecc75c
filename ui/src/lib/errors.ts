/** States of error groups, and triage. */

import type { ErrorGroup } from '../api/types';

export const GROUP_BADGES: Record<ErrorGroup['state'], { word: string; glyph: string; colour: string }> = {
  open: { word: 'open', glyph: '○', colour: 'retrying' },
  regressed: { word: 'regressed', glyph: '↻', colour: 'dead' },
  ignored: { word: 'ignored', glyph: '⊘', colour: 'canceled' },
  resolved: { word: 'resolved', glyph: '✓', colour: 'succeeded' },
};

/** The name of a group. Figures in a message are written as `#`; one that only repeats the status is left out. */
export function nameOf({ status, type, title }: Pick<ErrorGroup, 'status' | 'type' | 'title'>): string {
  return [status, type, status ? title.replace(/^# /, '') : title].filter(Boolean).join(' ');
}

export type Deed =
  | { action: 'open' | 'resolve' | 'note'; note?: string }
  | { action: 'ignore'; for?: string; note?: string }
  | { action: 'classify'; class: 'final' | 'retryable' | 'rate_limited' | 'policy'; note?: string };

/** The triage action that undoes `deed`. */
export function reverseDeed(before: Pick<ErrorGroup, 'state' | 'reclassified'>, deed: Deed): Deed | null {
  switch (deed.action) {
    case 'classify':
      return { action: 'classify', class: before.reclassified ?? 'policy' };
    case 'resolve':
    case 'ignore':
      return before.state === 'open' || before.state === 'regressed'
        ? { action: 'open' }
        : before.state === 'resolved'
          ? { action: 'resolve' }
          : null;
    case 'open':
      return before.state === 'resolved'
        ? { action: 'resolve' }
        : before.state === 'ignored'
          ? { action: 'ignore' }
          : null;
    case 'note':
      return null;
  }
}
