/** Acts on tasks, the toasts about them, and undo. */

import { part, post, Problem } from '../api/client';
import type { Task } from '../api/types';
import { toasts } from '../shell/toasts.svelte';
import type { Act } from './states';
import { readTime, type Zone } from './time';
import { count, short } from './words';

export interface Details {
  note?: string;
  keep_counters?: boolean;
  delay?: string;
  at?: string;
  payload_patch?: unknown;
}

const DONE: Record<Act, string> = {
  retry: 'retried',
  cancel: 'canceled',
  pause: 'paused',
  resume: 'resumed',
  snooze: 'snoozed',
  reschedule: 'rescheduled',
};

export function bodyOf(details: Details): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(details).filter(([, value]) => value !== undefined && value !== '' && value !== false),
  );
}

/** Reads typed text as an instant or a delay; the server explains what is neither. */
export function moment(text: string, zone: Zone): Pick<Details, 'at' | 'delay'> {
  const at = readTime(text, zone);
  return at === null ? { delay: text.trim().replace(/^in\s+/, '') } : { at: new Date(at).toISOString() };
}

/** The act that undoes another; `null` if none does: a canceled task stays canceled. */
export function reverse(
  verb: Act,
  before: Pick<Task, 'state' | 'next_retry_at' | 'start_at'> | undefined,
  details: Details = {},
): { verb: Act; details: Details } | null {
  if (verb === 'pause') return { verb: 'resume', details: {} };
  if (verb === 'resume') return { verb: 'pause', details: {} };
  const at = before?.next_retry_at ?? before?.start_at;
  // An attempt that was brought forward goes back to its time, as long as it has not begun.
  const isMove =
    verb === 'snooze' ||
    verb === 'reschedule' ||
    (verb === 'retry' && before?.state === 'retry_pending' && !!details.keep_counters && !details.payload_patch);
  return isMove && at ? { verb: 'reschedule', details: { at } } : null;
}

/** `before` is the task as it was, so that the act can be undone; `changed` is called after undo. */
export async function act(
  verb: Act,
  id: string,
  details: Details = {},
  before?: Task,
  changed?: () => void,
): Promise<Task> {
  const answer = await post<{ task: Task; message?: string }>(`tasks/${part(id)}/${verb}`, bodyOf(details));
  const back = reverse(verb, before, details);
  const undo = back
    ? () =>
        void act(back.verb, id, { ...back.details, note: `undo: ${verb}` }).then(changed, (error: unknown) =>
          toasts.refuse(error),
        )
    : undefined;
  toasts.say(
    `${answer.task.name ?? answer.task.kind} ${short(id)} ${DONE[verb]}`,
    'good',
    { title: 'Open', to: `t/${id}` },
    undo,
  );
  return answer.task;
}

/** Acts on tasks one by one; the toast counts refusals and has the first reason. */
export async function actOnAll(verb: Act, ids: string[], changed?: () => void): Promise<void> {
  const done: string[] = [];
  let refusal = '';
  for (const id of ids) {
    try {
      await post(`tasks/${part(id)}/${verb}`, {});
      done.push(id);
    } catch (error) {
      refusal ||= error instanceof Problem ? error.message : String(error);
    }
  }
  const rest = ids.length - done.length;
  const back = done.length > 0 ? reverse(verb, undefined) : null;
  const undo = back ? () => void actOnAll(back.verb, done).then(changed) : undefined;
  toasts.say(
    `${verb}: ${count(done.length, 'task')} done${rest ? `, ${rest} refused: ${refusal}` : ''}`,
    rest ? 'bad' : 'good',
    undefined,
    undo,
  );
}
