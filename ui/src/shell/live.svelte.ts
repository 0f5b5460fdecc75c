/** One stream of events per tab. Screens listen to it, and ask again for what has changed. */

import { address, headers } from '../api/client';
import { Reader } from '../api/stream';
import type { FeedEvent } from '../api/types';
import { session } from './session.svelte';

type Listener = (events: FeedEvent[]) => void;

/** Events are handed on together, so that a burst is one refresh. */
const GATHER_MS = 400;
const POLL_MS = 5_000;

class Live {
  /** `streaming` as it should be, `polling` while the stream is away, `paused` by a person or because nobody looks. */
  mode = $state<'connecting' | 'streaming' | 'polling' | 'paused'>('connecting');
  private wanted = true;
  private listeners = new Set<Listener>();
  private gathered: FeedEvent[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stop: AbortController | undefined;
  private last = 'latest';

  start(): void {
    document.addEventListener('visibilitychange', () => this.turn());
    setInterval(() => {
      if (this.mode === 'polling') this.tell([]);
    }, POLL_MS);
    this.turn();
  }

  toggle(): void {
    this.wanted = !this.wanted;
    this.turn();
  }

  /** Somebody else may be asking now. */
  restart(): void {
    this.last = 'latest';
    this.stop?.abort();
    this.stop = undefined;
    this.turn();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private turn(): void {
    if (this.wanted && !document.hidden) {
      if (!this.stop) void this.follow();
      return;
    }
    this.stop?.abort();
    this.stop = undefined;
    this.mode = 'paused';
  }

  private async follow(): Promise<void> {
    const stop = new AbortController();
    this.stop = stop;
    const wasPaused = this.mode === 'paused';
    this.mode = 'connecting';
    // Missed events are asked for once.
    if (wasPaused) this.tell([]);
    while (!stop.signal.aborted) {
      try {
        await this.read(stop.signal);
      } catch {
        // Tried again below.
      }
      if (stop.signal.aborted) return;
      this.mode = 'polling';
      await new Promise((done) => setTimeout(done, 2_000));
    }
  }

  private async read(signal: AbortSignal): Promise<void> {
    const answer = await fetch(address('events/stream', { after: this.last }), {
      headers: headers(),
      signal,
      cache: 'no-store',
    });
    if (!answer.ok || !answer.body) {
      if (answer.status === 401) session.refused();
      throw new Error(`the stream answered ${answer.status}`);
    }
    this.mode = 'streaming';
    session.heard();
    const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const reader = new Reader();
    for (;;) {
      const { done, value } = await pieces.read();
      if (done) return;
      session.heard();
      for (const message of reader.feed(value)) {
        if (message.id) this.last = message.id;
        this.gathered.push(JSON.parse(message.data) as FeedEvent);
        this.timer ??= setTimeout(() => this.hand(), GATHER_MS);
      }
    }
  }

  private hand(): void {
    this.timer = undefined;
    const events = this.gathered;
    this.gathered = [];
    this.tell(events);
  }

  /** No events at all means: look yourself. */
  private tell(events: FeedEvent[]): void {
    for (const listener of this.listeners) listener(events);
  }
}

export const live = new Live();
