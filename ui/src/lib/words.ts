/** Small texts that several screens need. */

import type { Failure, Task, TaskLine } from '../api/types';

/** The last eight hex digits, which the command line accepts too. */
export function short(id: string): string {
  return id.replaceAll('-', '').slice(-8);
}

export function errorText(error: Partial<Failure> | null | undefined): string {
  if (!error) return '';
  const message = error.message ?? '';
  const head = error.type && !message.startsWith(error.type) ? `${error.type}: ` : '';
  if (message) return `${head}${message}`;
  if (error.status) return `HTTP ${error.status}`;
  return error.type ?? error.code ?? error.trigger?.replaceAll('_', ' ') ?? '';
}

/** `2 of 6`: which attempt it is at, and how many there may be. */
export function attemptWords(task: Pick<TaskLine, 'attempt_number' | 'max_retries'>): string {
  return task.max_retries === null ? `${task.attempt_number}` : `${task.attempt_number} of ${task.max_retries + 1}`;
}

export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
}

/** `a, b` as `['a', 'b']`. */
export const splitList = (text: string) =>
  text
    .split(',')
    .map((it) => it.trim())
    .filter(Boolean);

export function pretty(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2);
}

/** Texts of a policy are long lists of JSON; this is what a person would say. */
export function policyWords(policy: Task['retry']): string {
  if (!policy || typeof policy !== 'object') return 'never retried';
  const it = policy as Record<string, unknown>;
  const span = (ms: unknown) => (typeof ms === 'number' ? brief(ms) : null);
  const parts: string[] = [];
  if (Array.isArray(it.schedule)) {
    parts.push(
      (it.schedule as { delay_ms?: number }[])
        .map((entry) => span(entry.delay_ms))
        .filter(Boolean)
        .join(', '),
    );
  } else {
    const first = span(it.initial_delay_ms) ?? span(it.delay_ms);
    if (first) parts.push(first);
    if (typeof it.multiplier === 'number' && it.multiplier !== 1) parts.push(`x${it.multiplier}`);
    const most = span(it.max_delay_ms);
    if (most) parts.push(`max ${most}`);
  }
  if (typeof it.max_retries === 'number') parts.push(count(it.max_retries, 'retry', 'retries'));
  if (typeof it.jitter === 'string' && it.jitter !== 'none') parts.push(`jitter ${it.jitter}`);
  return `${String(it.strategy ?? 'retry')}(${parts.join(', ')})`;
}

function brief(ms: number): string {
  for (const [unit, size] of [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['m', 60_000],
    ['s', 1_000],
  ] as const) {
    if (ms >= size && ms % size === 0) return `${ms / size}${unit}`;
  }
  return `${ms}ms`;
}

/** A policy as somebody wrote it, whatever the form. */
export function policyText(policy: unknown): string {
  if (typeof policy === 'string') return policy;
  if (typeof policy === 'number') return count(policy, 'execution');
  if (policy === true) return 'retried as usual';
  if (policy === false || policy === null || policy === undefined) return 'never retried';
  const words = policyWords(policy as Task['retry']);
  return words.includes('()') ? JSON.stringify(policy) : words;
}
