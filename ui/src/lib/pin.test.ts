import { describe, expect, it } from 'vitest';
import { pinned } from './pin';

const noon = Date.parse('2026-11-16T12:00:00Z');

describe('a filter that is shared', () => {
  it('says when, not how long from now', () => {
    expect(pinned('due:<24h state:retrying', noon)).toBe('due:<2026-11-17T12:00:00.000Z state:retrying');
    expect(pinned('-due:>=1h30m', noon)).toBe('-due:>=2026-11-16T13:30:00.000Z');
  });

  it('knows that ages and the like look back', () => {
    expect(pinned('age:>1h updated:<10m', noon)).toBe(
      'submitted:<2026-11-16T11:00:00.000Z updated:>2026-11-16T11:50:00.000Z',
    );
  });

  it('leaves everything else alone', () => {
    for (const filter of ['kind:a.* "due:<1h"', 'due:<2026-11-17T12:00:00Z', 'attempt:>=3', ''])
      expect(pinned(filter, noon)).toBe(filter);
  });
});
