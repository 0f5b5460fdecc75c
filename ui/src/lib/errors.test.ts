import { expect, it } from 'vitest';
import { nameOf, reverseDeed } from './errors';

it('calls a group by its status, type and message, and says nothing twice', () => {
  expect(nameOf({ status: 503, type: null, title: '# Service Unavailable' })).toBe('503 Service Unavailable');
  expect(nameOf({ status: null, type: 'Timeout', title: '# seconds were not enough' })).toBe(
    'Timeout # seconds were not enough',
  );
});

it('knows what puts a group back as it was', () => {
  const open = { state: 'open' as const, reclassified: null };
  expect(reverseDeed(open, { action: 'resolve' })).toEqual({ action: 'open' });
  expect(reverseDeed(open, { action: 'ignore', for: '24h' })).toEqual({ action: 'open' });
  expect(reverseDeed({ ...open, state: 'resolved' }, { action: 'open' })).toEqual({ action: 'resolve' });
  expect(reverseDeed(open, { action: 'classify', class: 'final' })).toEqual({ action: 'classify', class: 'policy' });
  expect(reverseDeed({ ...open, reclassified: 'retryable' }, { action: 'classify', class: 'final' })).toEqual({
    action: 'classify',
    class: 'retryable',
  });
  expect(reverseDeed(open, { action: 'note' })).toBeNull();
});
