/** Groups of failures with the same error. */

import { get } from '../api/client';
import type { Page, TaskLine } from '../api/types';
import { badgeOf, isFailed, type Badge } from './states';
import { instant, localised, relative, type Zone } from './time';
import { errorText } from './words';

export interface Group {
  key: string;
  fingerprint: string | null;
  kind: string;
  error: string;
  badge: Badge;
  tasks: TaskLine[];
  retrying: number;
  held: number;
  /** Failed and dead ones. */
  dead: number;
  /** Runs that were spent on it so far. */
  runs: number;
  /** The next retry of any of them that is not held. */
  next: string | null;
  /** Reason why they are held. */
  heldBy: string | null;
  since: string;
}

export function groups(tasks: TaskLine[]): Group[] {
  const found = new Map<string, Group>();
  for (const task of tasks) {
    const badge = badgeOf(task);
    const key = `${task.kind} ${task.fingerprint ?? errorText(task.last_error)}`;
    const group = found.get(key) ?? begin(key, task, badge);
    found.set(key, group);
    group.tasks.push(task);
    group.runs += task.total_attempts;
    if (isFailed(badge)) group.dead += 1;
    else if (badge === 'held' || task.blocked) {
      group.held += 1;
      group.heldBy ??= task.blocked ?? null;
    } else {
      group.retrying += 1;
      if (task.next_retry_at && (!group.next || task.next_retry_at < group.next)) group.next = task.next_retry_at;
    }
    if (task.submitted_at < group.since) group.since = task.submitted_at;
  }
  const all = [...found.values()];
  for (const group of all) group.badge = group.held ? 'held' : group.retrying ? 'retrying' : group.badge;
  return all.sort((a, b) => b.tasks.length - a.tasks.length || (a.key < b.key ? -1 : 1));
}

function begin(key: string, task: TaskLine, badge: Badge): Group {
  const error = errorText(task.last_error) || task.reason?.replaceAll('_', ' ') || 'no error was given';
  return {
    key,
    fingerprint: task.fingerprint,
    kind: task.kind,
    error,
    badge,
    tasks: [],
    retrying: 0,
    held: 0,
    dead: 0,
    runs: 0,
    next: null,
    heldBy: null,
    since: task.submitted_at,
  };
}

/** When a group comes back, as a sentence: what is not held first. */
export function nextSentence(group: Group, now: number, zone: Zone): string {
  const next = instant(group.next);
  if (next !== null) return next <= now ? 'A retry is due now.' : `Next retry ${relative(next, now)}.`;
  if (group.held) return group.heldBy ? `Held: ${localised(group.heldBy, now, zone)}.` : 'They are held.';
  return group.dead === group.tasks.length
    ? 'None of them will be retried by itself.'
    : 'They run as soon as a worker takes them.';
}

/** How tasks with one error ended. */
export interface Ended {
  recovered: number;
  dead: number;
  /** There are more than were counted. */
  more: boolean;
}

/** Counts how other tasks with the same error ended, which tells whether retrying helps. */
export async function endedOf(fingerprint: string | null, signal: AbortSignal): Promise<Ended | null> {
  if (!fingerprint) return null;
  const ended = (state: string) =>
    get<Page<TaskLine>>('tasks', { q: `fingerprint:${fingerprint} state:${state}`, limit: 100 }, signal);
  const [recovered, dead] = await Promise.all([ended('recovered'), ended('failed,dead')]);
  return {
    recovered: recovered.items.length,
    dead: dead.items.length,
    more: recovered.next_cursor !== null || dead.next_cursor !== null,
  };
}

/** Few cases prove nothing, and are said to. */
const ENOUGH = 20;

export function helps({ recovered, dead, more }: Ended): string {
  const n = recovered + dead;
  if (n === 0) return 'none ended';
  if (recovered === 0 && n >= ENOUGH) return `never: 0 of ${n}`;
  if (n < ENOUGH) return `${recovered} of ${n} so far`;
  return `${Math.round((100 * recovered) / n)} % of ${n}${more ? '+' : ''}`;
}

/** The same as a sentence. */
export function helpsSentence(ended: Ended): string {
  const n = ended.recovered + ended.dead;
  if (n === 0) return 'No task with this error has ended yet';
  if (n < ENOUGH) return `${ended.recovered} of ${n} tasks with this error came back; too few to say more`;
  return `${Math.round((100 * ended.recovered) / n)} % of tasks with this error came back (n=${n}${ended.more ? '+' : ''})`;
}
