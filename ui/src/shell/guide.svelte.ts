/** Progress of the demo's guide, kept in this browser for each start of the demo. */

import { get, onDone, part } from '../api/client';
import type { Instance, Page, Task, Worker } from '../api/types';
import { flipped, hasFailed, isRetry, NOTHING, read, startOf, ticked, type Kept, type Step } from '../lib/guide';
import { clock } from './clock.svelte';
import { live } from './live.svelte';
import { router } from './router.svelte';

const PREFIX = 'comeback.guide.';

class Guide {
  /** When the demo was started; nothing where there is none, or nobody has looked yet. */
  start = $state<string | null>(null);
  kept = $state.raw<Kept>(NOTHING);

  constructor() {
    // A link may be opened in another tab.
    addEventListener('storage', ({ key, newValue }) => {
      if (this.start && key === PREFIX + this.start) this.kept = read(newValue);
    });
    // Retries are asked for on many screens; here they all come by. Those of others do not, as they would in the stream.
    onDone((done) => isRetry(done) && this.tick('retry'));
    $effect.root(() => {
      // The overview asks who the server is anyway; other screens only where the clock says that it may be a demo.
      $effect(() => {
        if (this.start === null && clock.rate > 1.5 && router.page !== '') void this.look();
      });
      $effect(() => {
        const id = router.page === 't' ? router.rest[0] : undefined;
        if (id && this.start !== null && !this.has('why')) return this.reads(id);
      });
    });
  }

  has(step: Step): boolean {
    return this.kept.done.includes(step);
  }

  tick(step: Step): void {
    this.write(ticked(this.kept, step));
  }

  hide(): void {
    this.write({ ...this.kept, hidden: true });
  }

  /** The bank did as it was told, at this time of the server. */
  flipped(down: boolean, at: string): void {
    this.write(flipped(this.kept, down, at));
  }

  meet(instances: Instance[], workers: Worker[]): void {
    const start = startOf(instances, workers, this.start);
    if (start === this.start) return;
    this.start = start;
    if (start === null) return;
    try {
      for (const key of Object.keys(localStorage))
        if (key.startsWith(PREFIX) && key !== PREFIX + start) localStorage.removeItem(key);
      this.kept = read(localStorage.getItem(PREFIX + start));
    } catch {
      this.kept = NOTHING;
    }
  }

  private async look(): Promise<void> {
    try {
      const [instances, workers] = await Promise.all([
        get<Page<Instance>>('admin/instances'),
        get<Page<Worker>>('admin/workers'),
      ]);
      this.meet(instances.items, workers.items);
    } catch {
      // The screen says what is wrong.
    }
  }

  private write(kept: Kept): void {
    if (this.start === null || kept === this.kept) return;
    this.kept = kept;
    try {
      localStorage.setItem(PREFIX + this.start, JSON.stringify(kept));
    } catch {
      // It holds until the page is loaded again.
    }
  }

  /** Somebody has a task before them: has it failed, or does it now? */
  private reads(id: string): () => void {
    const stop = new AbortController();
    get<Task>(`tasks/${part(id)}`, {}, stop.signal)
      .then((task) => hasFailed(task) && this.tick('why'))
      .catch(() => undefined);
    const unlisten = live.listen((events) => {
      if (events.some((event) => event.task_id === id && event.type === 'attempt.failed')) this.tick('why');
    });
    return () => {
      stop.abort();
      unlisten();
    };
  }
}

export const guide = new Guide();
