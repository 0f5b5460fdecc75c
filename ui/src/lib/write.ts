/** Writes of a screen that are answered by a toast. */

import { put } from '../api/client';
import { toasts } from '../shell/toasts.svelte';

/** Puts `body` to `path`, says `done` and then calls `reload`. A refusal is a toast too. */
export async function write(
  path: string,
  body: unknown,
  done: string,
  reload: () => Promise<void>,
  undo?: () => void,
): Promise<void> {
  try {
    await put(path, body);
    toasts.say(done, 'good', undefined, undo);
  } catch (error) {
    toasts.refuse(error);
  }
  await reload();
}
