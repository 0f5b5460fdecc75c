/** Something asked of the server that is asked again when it may have changed. What was there stays until the answer comes. */

import { untrack } from 'svelte';
import { Problem } from '../api/client';
import type { FeedEvent } from '../api/types';
import { live } from './live.svelte';
import { session } from './session.svelte';

export interface Resource<T> {
  readonly value: T | undefined;
  readonly problem: Problem | undefined;
  readonly loading: boolean;
  reload(): Promise<void>;
}

/**
 * `question` says what to ask for; when what it reads changes, the old answer is dropped. `relevant` says which events make an
 * answer old; nothing means none of them.
 */
export function resource<Q, T>(
  question: () => Q,
  ask: (question: Q, signal: AbortSignal) => Promise<T>,
  relevant?: (event: FeedEvent, question: Q) => boolean,
  every?: number,
): Resource<T> {
  let value = $state.raw<T | undefined>();
  let problem = $state.raw<Problem | undefined>();
  let loading = $state(true);
  let current: Q;
  let asked = 0;
  let stop: AbortController | undefined;

  async function reload(): Promise<void> {
    const number = ++asked;
    stop?.abort();
    stop = new AbortController();
    try {
      const answer = await ask(current, stop.signal);
      if (number !== asked) return;
      value = answer;
      problem = undefined;
    } catch (error) {
      if (number !== asked || stop.signal.aborted) return;
      problem = error instanceof Problem ? error : new Problem({ type: 'bug', title: 'This page has a fault', status: 0, detail: String(error) });
    }
    loading = false;
  }

  $effect(() => {
    current = question();
    void session.key;
    untrack(() => {
      value = undefined;
      problem = undefined;
      loading = true;
      void reload();
    });
    const unlisten = live.listen((events) => {
      if (loading || !relevant) return;
      if (events.length === 0 || events.some((event) => relevant(event, current))) void reload();
    });
    const timer = every ? setInterval(() => live.mode !== 'paused' && !loading && void reload(), every) : undefined;
    return () => {
      unlisten();
      clearInterval(timer);
      stop?.abort();
      asked += 1;
    };
  });

  return {
    get value() {
      return value;
    },
    get problem() {
      return problem;
    },
    get loading() {
      return loading;
    },
    reload,
  };
}
