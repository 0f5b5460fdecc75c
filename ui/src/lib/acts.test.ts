import { expect, it } from 'vitest';
import { bodyOf, moment, reverse } from './acts';

it('knows what takes an act back, and what nothing does', () => {
  const before = { state: 'retry_pending' as const, next_retry_at: '2026-11-20T09:00:00.000Z', start_at: null };
  expect(reverse('pause', before)?.verb).toBe('resume');
  expect(reverse('resume', before)?.verb).toBe('pause');
  expect(reverse('reschedule', before)).toEqual({ verb: 'reschedule', details: { at: before.next_retry_at } });
  expect(reverse('snooze', { ...before, next_retry_at: null })).toBeNull();
  expect(reverse('cancel', before)).toBeNull();
  expect(reverse('retry', before, { keep_counters: true })?.details).toEqual({ at: before.next_retry_at });
  expect(reverse('retry', before)).toBeNull();
  expect(reverse('retry', { ...before, state: 'dead' }, { keep_counters: true })).toBeNull();
});

it('sends what was said and leaves out what was not', () => {
  expect(bodyOf({ note: '', keep_counters: false, delay: '3h' })).toEqual({ delay: '3h' });
});

it('reads a while from now and an instant', () => {
  expect(moment(' in 3h ', 'utc')).toEqual({ delay: '3h' });
  expect(moment('2026-11-20T09:00', 'utc')).toEqual({ at: '2026-11-20T09:00:00.000Z' });
  expect(moment('2026-11-20T09:00:00+02:00', 'local')).toEqual({ at: '2026-11-20T07:00:00.000Z' });
  expect(moment('2026-99-20', 'utc')).toEqual({ delay: '2026-99-20' });
});
