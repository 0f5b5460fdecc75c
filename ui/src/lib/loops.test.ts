import { expect, it } from 'vitest';
import { everyWords, pauseWords, toldAt } from './loops';

it('says how often a loop looks', () => {
  expect(everyWords(1_000)).toBe('1s');
  expect(everyWords(3_600_000)).toBe('1h');
  expect(everyWords(null)).toBe('when asked');
});

it('does not take what loops say for older than it is', () => {
  const now = Date.parse('2026-11-17T12:00:00.000Z');
  expect(toldAt([{ looked_at: null }], now)).toBe(now);
  expect(toldAt([{ looked_at: '2026-11-17T11:59:58.000Z' }, { looked_at: null }], now)).toBe(now);
  expect(toldAt([{ looked_at: '2026-11-17T12:00:03.000Z' }, { looked_at: '2026-11-17T12:00:01.000Z' }], now)).toBe(
    now + 3_000,
  );
  expect(toldAt([], now)).toBe(now);
});

it('says who paused one and why', () => {
  expect(pauseWords({ note: 'the bank is down', by: 'ana' })).toBe('the bank is down (ana)');
  expect(pauseWords({ note: 'the bank is down', by: null })).toBe('the bank is down');
  expect(pauseWords({ note: null, by: null })).toBe('');
});
