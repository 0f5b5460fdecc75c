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
  /** However much happens, not more often than this. */
  pace?: number;
  /** The old answer is shown until the next one is there, also when the question changes. */
  keep?: boolean;
}

/** `question` says what to ask for; when what it reads changes, the old answer is dropped. */
export function resource<Q, T>(
  question: () => Q,
  ask: (question: Q, signal: AbortSignal) => Promise<T>,
  { on, every, keep, pace = 1_000 }: Freshness<Q> = {},
): Resource<T> {
  let value = $state.raw<T | undefined>();
  let problem = $state.raw<Problem | undefined>();
  let loading = $state(true);
  let current: Q;
  /** Answers to earlier questions are not taken. */
  let number = 0;
  let stop: AbortController | undefined;
  let askedAt = 0;
  let waits: ReturnType<typeof setTimeout> | undefined;

  async function reload(): Promise<void> {
    const own = ++number;
    stop?.abort();
    stop = new AbortController();
    askedAt = performance.now();
    clearTimeout(waits);
    waits = undefined;
    try {
      const answer = await ask(current, stop.signal);
      if (own !== number) return;
      value = answer;
      problem = undefined;
    } catch (error) {
      if (own !== number) return;
      problem =
        error instanceof Problem
          ? error
          : new Problem({ type: 'bug', title: 'This page has a bug', status: 0, detail: String(error) });
    }
    stop = undefined;
    loading = false;
  }

  /** Not before the answer to the last question is there, and not sooner than the pace. */
  function soon(): void {
    if (waits) return;
    const wait = stop ? 200 : Math.max(0, askedAt + pace - performance.now());
    waits = setTimeout(() => {
      waits = undefined;
      if (stop) soon();
      else void reload();
    }, wait);
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
      if (on && (events.length === 0 || events.some(concerns))) soon();
    });
    const timer = every ? setInterval(() => live.mode !== 'paused' && soon(), every) : undefined;
    return () => {
      unlisten();
      clearInterval(timer);
      clearTimeout(waits);
      waits = undefined;
      stop?.abort();
      stop = undefined;
      number += 1;
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
