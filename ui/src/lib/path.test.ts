import { describe, expect, it } from 'vitest';
import { criticalPath, type Timed } from './path';

const at = (second: number) => new Date(second * 1000).toISOString();
const ran = (id: string, from: number, to: number | null, next?: number): Timed => ({
  id,
  started_at: at(from),
  ended_at: to === null ? null : at(to),
  next_retry_at: next === undefined ? null : at(next),
});
const waits = (id: string): Timed => ({ id, started_at: null, ended_at: null });
const edge = (text: string) => ({ from: text.charAt(0), to: text.charAt(1) });

describe('the critical path', () => {
  it('goes back from what ended last through what each waited for longest', () => {
    const tasks = [ran('a', 0, 2), ran('b', 2, 9), ran('c', 2, 4), ran('d', 9, 10)];
    expect(criticalPath(tasks, ['ab', 'ac', 'bd', 'cd'].map(edge), 0, 60_000)).toEqual([
      { id: 'a', ms: 2_000 },
      { id: 'b', ms: 7_000 },
      { id: 'd', ms: 1_000 },
    ]);
  });

  it('leads to what is being retried, as long as that holds everything up', () => {
    const tasks = [ran('a', 0, 2), ran('b', 2, null, 90), ran('c', 2, 30), waits('d')];
    expect(criticalPath(tasks, ['ab', 'ac', 'bd', 'cd'].map(edge), 0, 60_000)).toEqual([
      { id: 'a', ms: 2_000 },
      { id: 'b', ms: 58_000 },
    ]);
  });

  it('tells of what is over the same whatever the clock says', () => {
    expect(criticalPath([ran('a', 0, 2), ran('b', 2, 9)], [edge('ab')], 0, 1)).toEqual([
      { id: 'a', ms: 2_000 },
      { id: 'b', ms: 7_000 },
    ]);
  });

  it('is empty before anything has begun, and ends where a circle would begin', () => {
    expect(criticalPath([waits('a')], [], null, 0)).toEqual([]);
    expect(
      criticalPath([ran('a', 0, 1), ran('b', 1, 2)], ['ab', 'ba'].map(edge), 0, 5_000).map(({ id }) => id),
    ).toEqual(['a', 'b']);
  });
});
