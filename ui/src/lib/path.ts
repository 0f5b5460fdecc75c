/** The chain of tasks that decides how long an execution takes: back from the one that ends last, through whatever each waited for. */

import { instant } from './time';

export interface Timed {
  id: string;
  started_at: string | null;
  ended_at: string | null;
  next_retry_at?: string | null;
}

export interface Stretch {
  id: string;
  /** How much longer everything took because of it. */
  ms: number;
}

export function criticalPath(
  tasks: Timed[],
  edges: { from: string; to: string }[],
  began: number | null,
  now: number,
): Stretch[] {
  const known = new Map(
    tasks.filter((task) => task.started_at !== null || task.next_retry_at).map((task) => [task.id, task]),
  );
  const end = (task: Timed) => instant(task.ended_at) ?? Math.max(now, instant(task.next_retry_at) ?? now);
  const latest = (some: Timed[]) =>
    some.reduce<Timed | undefined>((best, task) => (best && end(best) >= end(task) ? best : task), undefined);
  const before = new Map<string, Timed[]>();
  for (const { from, to } of edges) {
    const task = known.get(from);
    if (!task) continue;
    const some = before.get(to);
    if (some) some.push(task);
    else before.set(to, [task]);
  }
  const chain = new Map<string, Timed>();
  for (let task = latest([...known.values()]); task && !chain.has(task.id); task = latest(before.get(task.id) ?? []))
    chain.set(task.id, task);
  const path = [...chain.values()].reverse();
  /** Steps that have not started have taken no time. */
  const seen = (task: Timed) => instant(task.ended_at) ?? now;
  return path.map((task, i) => {
    const previous = path[i - 1];
    const from = previous ? seen(previous) : (began ?? instant(task.started_at) ?? now);
    return { id: task.id, ms: Math.max(0, seen(task) - from) };
  });
}
