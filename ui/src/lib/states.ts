/** How states are shown: word, glyph and colour, and the acts that a state allows. Colours are variables of `styles.css`. */

import type { ExecutionState, State, Stats } from '../api/types';

export type Badge =
  'queued' | 'running' | 'retrying' | 'succeeded' | 'recovered' | 'failed' | 'dead' | 'held' | 'canceled' | 'skipped';

export interface BadgeStyle {
  badge: Badge;
  word: string;
  glyph: string;
  /** Name of the colour: `--<colour>` fills, `--<colour>-text` writes. */
  colour: string;
}

const BADGES: Record<Badge, Omit<BadgeStyle, 'badge'>> = {
  queued: { word: 'queued', glyph: '○', colour: 'queued' },
  running: { word: 'running', glyph: '▶', colour: 'running' },
  retrying: { word: 'retrying', glyph: '↻', colour: 'retrying' },
  succeeded: { word: 'succeeded', glyph: '✓', colour: 'succeeded' },
  recovered: { word: 'recovered', glyph: '◎', colour: 'succeeded' },
  failed: { word: 'failed', glyph: '✕', colour: 'dead' },
  dead: { word: 'dead', glyph: '✕', colour: 'dead' },
  held: { word: 'held', glyph: '⊘', colour: 'held' },
  canceled: { word: 'canceled', glyph: '–', colour: 'canceled' },
  skipped: { word: 'skipped', glyph: '–', colour: 'canceled' },
};

export function badgeStyle(badge: Badge): BadgeStyle {
  return { badge, ...BADGES[badge] };
}

/** The fields of a task that decide its badge. */
export interface BadgeInput {
  state: State;
  held_until?: string | null;
  total_attempts?: number;
  attempt?: number;
}

export function badgeOf(task: BadgeInput): Badge {
  switch (task.state) {
    case 'waiting':
    case 'pending':
      return task.held_until ? 'held' : 'queued';
    case 'claimed':
    case 'running':
      return 'running';
    case 'retry_pending':
      return task.held_until ? 'held' : 'retrying';
    case 'paused':
      return 'held';
    case 'succeeded':
      return (task.total_attempts ?? (task.attempt ?? 0) + 1) > 1 ? 'recovered' : 'succeeded';
    case 'failed':
      return 'failed';
    case 'dead':
      return 'dead';
    case 'skipped':
      return 'skipped';
    case 'canceled':
      return 'canceled';
  }
}

export function executionBadge(execution: { state: ExecutionState; counts?: Record<string, number> }): Badge {
  switch (execution.state) {
    case 'pending':
      return 'queued';
    case 'running':
      return execution.counts?.retry_pending ? 'retrying' : 'running';
    case 'paused':
      return 'held';
    case 'succeeded':
      return 'succeeded';
    case 'failed':
      return 'failed';
    case 'canceled':
      return 'canceled';
  }
}

/** Badges of tasks that ended without success: `failed` by an error that is final, `dead` when no retry was left. */
export const isFailed = (badge: Badge) => badge === 'failed' || badge === 'dead';

export const OUTCOMES: Record<string, Badge> = {
  succeeded: 'succeeded',
  failed: 'failed',
  lost: 'failed',
  throttled: 'retrying',
  snoozed: 'held',
  released: 'queued',
  canceled: 'canceled',
};

export type Act = 'retry' | 'cancel' | 'pause' | 'resume' | 'snooze' | 'reschedule';

/** Why an act is not possible in a state; `null` when it is. */
export function disabledReason(act: Act, state: State): string | null {
  const isOver = ['succeeded', 'failed', 'dead', 'canceled', 'skipped'].includes(state);
  switch (act) {
    case 'retry':
      if (state === 'retry_pending' || state === 'failed' || state === 'dead') return null;
      if (state === 'canceled') return 'it was canceled; submit it anew';
      return state === 'succeeded' ? 'it has succeeded' : `it is ${state}: there is nothing to retry`;
    case 'cancel':
      return isOver ? 'it has ended' : null;
    case 'pause':
      if (isOver) return 'it has ended';
      return state === 'paused' ? 'it is paused already' : null;
    case 'resume':
      return state === 'paused' ? null : 'it is not paused';
    case 'snooze':
    case 'reschedule':
      return state === 'retry_pending' || state === 'waiting' || state === 'pending' ? null : 'nothing is scheduled';
  }
}

/** The tabs above the list of tasks, with their filters. */
export const TABS: { title: string; filter: string }[] = [
  { title: 'Open failures', filter: 'state:retrying,held,failed,dead' },
  { title: 'All', filter: '' },
  { title: 'Queued', filter: 'state:queued' },
  { title: 'Running', filter: 'state:claimed,running' },
  { title: 'Retrying', filter: 'state:retrying' },
  { title: 'Held', filter: 'state:held' },
  { title: 'Failed or dead', filter: 'state:failed,dead' },
  { title: 'Recovered', filter: 'state:recovered' },
  { title: 'Done', filter: 'state:succeeded' },
  { title: 'Canceled', filter: 'state:canceled,skipped' },
];

/** How many rows a filter by states alone has; nothing where the counts do not say it. */
export function counted(filter: string, stand: Pick<Stats, 'by_state' | 'held' | 'total'>): number | null {
  if (filter === '') return stand.total;
  const words = /^state:([a-z_,]+)$/.exec(filter)?.[1]?.split(',');
  if (!words || words.includes('recovered')) return null;
  const by: Record<string, number | undefined> = stand.by_state;
  const one = (word: string) => {
    if (word === 'queued') return (by.waiting ?? 0) + (by.pending ?? 0);
    if (word === 'retrying') return (by.retry_pending ?? 0) - (stand.held.retry_pending ?? 0);
    if (word === 'held') return Object.values(stand.held).reduce((sum, n) => sum + n, 0);
    return by[word] ?? 0;
  };
  return words.reduce((sum, word) => sum + one(word), 0);
}
