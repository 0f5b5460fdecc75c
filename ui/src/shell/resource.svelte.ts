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

export interface Freshness<Q> {
  /** Which events make an answer old: those whose type begins so, or those that it says yes to. */
  on?: string[] | ((event: FeedEvent, question: Q) => boolean);
  /** Asked again after so many milliseconds anyway. */
  every?: number;
  /** The old answer is shown until the next one is there, also when the question changes. */
  keep?: boolean;
}

/** `question` says what to ask for; when what it reads changes, the old answer is dropped. */
export function resource<Q, T>(question: () => Q, ask: (question: Q, signal: AbortSignal) => Promise<T>, { on, every, keep }: Freshness<Q> = {}): Resource<T> {
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

  function concerns(event: FeedEvent): boolean {
    if (typeof on === 'function') return on(event, current);
    return on?.some((prefix) => event.type.startsWith(prefix)) ?? false;
  }

  $effect(() => {
    current = question();
    void session.key;
    untrack(() => {
      if (!keep) value = undefined;
      problem = undefined;
      loading = value === undefined;
      void reload();
    });
    const unlisten = live.listen((events) => {
      if (loading || !on) return;
      if (events.length === 0 || events.some((event) => concerns(event))) void reload();
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
