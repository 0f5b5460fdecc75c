import { expect, it } from 'vitest';
import { rateHint, rateWords } from './rates';

it('says a rate only with how many it is of', () => {
  expect(rateWords({ rate: 0.84, n: 512, low: 0.8, high: 0.87 })).toBe('84 % of 512');
  expect(rateWords({ rate: 0.004, n: 1_500, low: 0.001, high: 0.01 })).toBe('<1 % of 1,500');
  expect(rateWords({ rate: 0, n: 61, low: 0, high: 0.06 })).toBe('0 % of 61');
  expect(rateWords({ rate: 0.5, n: 4, low: 0.15, high: 0.85 })).toBe('2 of 4 so far');
  expect(rateWords({ rate: null, n: 0, low: null, high: null })).toBe('none yet');
});

it('tells how sure it is', () => {
  expect(rateHint({ rate: 0.84, n: 512, low: 0.8, high: 0.87 })).toBe(
    'with 95 % confidence between 80 % and 87 % (n=512)',
  );
  expect(rateHint({ rate: 1, n: 3, low: 0.44, high: 1 })).toContain('not enough history (n=3)');
});
