/** The server's time. It may run sixty times as fast as ours, or stand still until it is told to move. */

import { get } from '../api/client';
import { rateOf } from '../lib/rate';

interface Sample {
  here: number;
  there: number;
}

class ServerClock {
  /** Now, on the server; changes by itself. */
  now = $state(Date.now());
  /** How many seconds pass there in one of ours. */
  rate = $state(1);
  isVirtual = $state(false);
  private first: Sample | undefined;
  private anchor: Sample = { here: performance.now(), there: Date.now() };

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.now = this.at(performance.now());
    }, 500);
  }

  private at(here: number): number {
    return this.anchor.there + (here - this.anchor.here) * this.rate;
  }

  /** Compares the clocks, now and again: the further apart the looks, the better is it known how fast the other one runs. */
  async follow(): Promise<void> {
    this.first = undefined;
    await this.refresh();
    for (const wait of [700, 2_500]) {
      await new Promise((done) => setTimeout(done, wait));
      await this.refresh();
    }
  }

  async refresh(): Promise<void> {
    const sample = await this.sample();
    const first = (this.first ??= sample);
    if (!this.isVirtual && sample !== first) this.rate = rateOf(sample.there - first.there, sample.here - first.here);
    this.take(sample);
  }

  private take(sample: Sample): void {
    this.anchor = sample;
    this.now = this.at(performance.now());
  }

  private async sample(): Promise<Sample> {
    const asked = performance.now();
    const answer = await get<{ now: string; clock: string }>('clock');
    this.isVirtual = answer.clock === 'virtual';
    if (this.isVirtual) this.rate = 0;
    return { here: (asked + performance.now()) / 2, there: Date.parse(answer.now) };
  }
}

export const clock = new ServerClock();
