/** The backtest of a policy on recorded failures, in words and in rows. */

import type { PolicyBacktest } from '../api/types';
import { terms } from './filter';
import { duration } from './time';
import { count } from './words';

type Arm = PolicyBacktest['recorded'];

const percent = (n: number, of: number) => `${Math.round((100 * n) / of)} %`;
const share = (n: number, of: number) => (of === 0 ? `${n}` : `${n.toLocaleString('en')} (${percent(n, of)})`);

/** `−32 %`: what has changed, where something has. */
export function change(before: number, after: number): string {
  if (before === 0 || before === after) return '';
  const by = Math.round((100 * (after - before)) / before);
  return `${by < 0 ? '−' : '+'}${Math.abs(by)} %`;
}

/** The answer in one sentence: what comes back, and at what price. */
export function verdict(test: PolicyBacktest): string {
  const { recorded, candidate, tasks, unknown } = test;
  const back = `${unknown ? 'at least ' : ''}${candidate.recovered.toLocaleString('en')} of ${count(tasks, 'task')} would have come back`;
  const isSame = candidate.recovered === recorded.recovered && test.lost.count === 0 && test.won.count === 0;
  const was = isSame ? `, as ${tasks === 1 ? 'it' : 'they'} did` : `; ${recorded.recovered.toLocaleString('en')} did`;
  const by = change(recorded.retries, candidate.retries);
  const price = by
    ? `with ${count(candidate.retries, 'retry', 'retries')} in place of ${recorded.retries.toLocaleString('en')} (${by})`
    : `with as many retries (${candidate.retries.toLocaleString('en')})`;
  const wait = candidate.open > recorded.open ? `; ${candidate.open.toLocaleString('en')} would still wait` : '';
  const sentence = `${back}${was}, ${price}${wait}.`;
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

export interface Row {
  title: string;
  was: string;
  is: string;
  /** The change, and whether it is good. */
  change: string;
  good: boolean | null;
}

export function rows(test: PolicyBacktest): Row[] {
  const { recorded: was, candidate: is, tasks, unknown } = test;
  const number = (title: string, of: (arm: Arm) => number): Row => {
    const [before, after] = [of(was), of(is)];
    return {
      title,
      was: before.toLocaleString('en'),
      is: after.toLocaleString('en'),
      change: change(before, after),
      good: before === after ? null : after < before,
    };
  };
  const took = (title: string, of: (arm: Arm) => number | null): Row => {
    const [before, after] = [of(was), of(is)];
    const words = (ms: number | null) => (ms === null ? '–' : duration(ms));
    return {
      title,
      was: words(before),
      is: words(after),
      change: before === null || after === null ? '' : change(before, after),
      good: before === null || after === null || before === after ? null : after < before,
    };
  };
  const all = [
    {
      title: 'Recovered',
      was: `${share(was.recovered, tasks)}${test.by_hand ? `, ${test.by_hand.toLocaleString('en')} by hand` : ''}`,
      is: `${unknown ? 'at least ' : ''}${share(is.recovered, tasks)}`,
      change: unknown ? `up to ${unknown.toLocaleString('en')} more` : '',
      good: was.recovered === is.recovered || unknown ? null : is.recovered > was.recovered,
    },
    number('Given up', (arm) => arm.given_up),
    number('Still waiting', (arm) => arm.open),
    number('Retries', (arm) => arm.retries),
    number('Retries that failed', (arm) => arm.wasted),
    number('Credits', (arm) => arm.cost),
    number('Most retries in a minute', (arm) => arm.peak_per_minute),
    took('Half came back within', (arm) => arm.recovery_p50_ms),
    took('19 of 20 within', (arm) => arm.recovery_p95_ms),
  ];
  return all.filter((row) => !['Credits', 'Still waiting'].includes(row.title) || row.was !== '0' || row.is !== '0');
}

/** The load over time, with the parts in between in which nothing was retried. */
export function load(
  test: Pick<PolicyBacktest, 'since' | 'until' | 'bucket_ms' | 'load'>,
): { at: number; recorded: number; candidate: number }[] {
  const known = new Map(test.load.map((point) => [Date.parse(point.at), point]));
  const first = Math.floor(Date.parse(test.since) / test.bucket_ms) * test.bucket_ms;
  const all = [];
  for (let at = first; at <= Date.parse(test.until); at += test.bucket_ms) {
    const point = known.get(at);
    all.push({ at, recorded: point?.recorded ?? 0, candidate: point?.candidate ?? 0 });
  }
  return all;
}

/** The one kind that a filter is about, where it is about one. */
export function kindOf(filter: string): string | null {
  const kinds = terms(filter).filter((term) => term.field === 'kind' && !term.negated);
  const value = kinds.length === 1 ? kinds[0]?.value.replace(/^"(.*)"$/, '$1') : undefined;
  return value && !/[,*"]/.test(value) ? value : null;
}
