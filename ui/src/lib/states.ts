/** The one place that knows how states are shown: word, glyph, colour. Colours are variables of `styles.css`. */

import type { ExecutionState, State, Stats } from '../api/types';

export type Look =
  | 'queued'
  | 'running'
  | 'retrying'
  | 'succeeded'
  | 'recovered'
  | 'dead'
  | 'held'
  | 'cancelled'
  | 'skipped';

export interface Shown {
  look: Look;
  word: string;
  glyph: string;
  /** Name of the colour: `--<colour>` fills, `--<colour>-text` writes. */
  colour: string;
}

const LOOKS: Record<Look, Omit<Shown, 'look'>> = {
  queued: { word: 'queued', glyph: '○', colour: 'queued' },
  running: { word: 'running', glyph: '▶', colour: 'running' },
  retrying: { word: 'retrying', glyph: '↻', colour: 'retrying' },
  succeeded: { word: 'succeeded', glyph: '✓', colour: 'succeeded' },
  recovered: { word: 'recovered', glyph: '◎', colour: 'succeeded' },
  dead: { word: 'dead', glyph: '✕', colour: 'dead' },
  held: { word: 'held', glyph: '⊘', colour: 'held' },
  cancelled: { word: 'cancelled', glyph: '–', colour: 'cancelled' },
  skipped: { word: 'skipped', glyph: '–', colour: 'cancelled' },
};

export function shown(look: Look): Shown {
  return { look, ...LOOKS[look] };
}

/** What of a task decides how it is shown. */
export interface Standing {
  state: State;
  held_until?: string | null;
  total_attempts?: number;
  attempt?: number;
}

export function lookOf(task: Standing): Look {
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
    case 'dead':
      return 'dead';
    case 'skipped':
      return 'skipped';
    case 'canceled':
      return 'cancelled';
  }
}

export function lookOfExecution(execution: { state: ExecutionState; counts?: Record<string, number> }): Look {
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
      return 'dead';
    case 'canceled':
      return 'cancelled';
  }
}

export const OUTCOMES: Record<string, Look> = {
  succeeded: 'succeeded',
  failed: 'dead',
  lost: 'dead',
  throttled: 'retrying',
  snoozed: 'held',
  released: 'queued',
  canceled: 'cancelled',
};

export type Act = 'retry' | 'cancel' | 'pause' | 'resume' | 'snooze' | 'reschedule';

/** Why an act is not possible in a state; nothing when it is. */
export function obstacle(act: Act, state: State): string | null {
  const isOver = ['succeeded', 'failed', 'dead', 'canceled', 'skipped'].includes(state);
  switch (act) {
    case 'retry':
      if (state === 'retry_pending' || state === 'failed' || state === 'dead') return null;
      if (state === 'canceled') return 'it was cancelled; submit it anew';
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

/** The tabs above the list of tasks: what they are called and ask for. */
export const TABS: { title: string; filter: string }[] = [
  { title: 'Open failures', filter: 'state:retrying,held,failed,dead' },
  { title: 'All', filter: '' },
  { title: 'Queued', filter: 'state:queued' },
  { title: 'Running', filter: 'state:claimed,running' },
  { title: 'Retrying', filter: 'state:retrying' },
  { title: 'Held', filter: 'state:held' },
  { title: 'Dead', filter: 'state:failed,dead' },
  { title: 'Recovered', filter: 'state:recovered' },
  { title: 'Done', filter: 'state:succeeded' },
  { title: 'Cancelled', filter: 'state:canceled,skipped' },
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
