/** What a person can do to tasks, and what is said about it afterwards. */

import { part, post, Problem } from '../api/client';
import type { Task } from '../api/types';
import { toasts } from '../shell/toasts.svelte';
import type { Act } from './states';
import { count, short } from './words';

export interface Details {
  note?: string;
  keep_counters?: boolean;
  delay?: string;
  at?: string;
}

const DONE: Record<Act, string> = {
  retry: 'is tried again',
  cancel: 'is cancelled',
  pause: 'is paused',
  resume: 'goes on',
  snooze: 'was put off',
  reschedule: 'has a new time',
};

export function bodyOf(details: Details): Record<string, unknown> {
  return Object.fromEntries(Object.entries(details).filter(([, value]) => value !== undefined && value !== '' && value !== false));
}

export async function act(verb: Act, id: string, details: Details = {}): Promise<Task> {
  const answer = await post<{ task: Task; message?: string }>(`tasks/${part(id)}/${verb}`, bodyOf(details));
  toasts.say(`${answer.task.name ?? answer.task.kind} ${short(id)} ${DONE[verb]}`, 'good', { title: 'Open', to: `t/${id}` });
  return answer.task;
}

/** One after the other; what is refused is counted and the first reason said. */
export async function actOnAll(verb: Act, ids: string[]): Promise<void> {
  let done = 0;
  let refusal = '';
  for (const id of ids) {
    try {
      await post(`tasks/${part(id)}/${verb}`, {});
      done += 1;
    } catch (error) {
      refusal ||= error instanceof Problem ? error.message : String(error);
    }
  }
  const rest = ids.length - done;
  toasts.say(`${verb}: ${count(done, 'task')} done${rest ? `, ${rest} refused: ${refusal}` : ''}`, rest ? 'bad' : 'good');
}
