import { expect, it } from 'vitest';
import { rateOf } from './rate';

it.each([
  [600, 600, 1],
  [640, 600, 1],
  [36_300, 600, 60],
  [35_500, 600, 60],
  [41_000, 620, 60],
  [47_400, 600, 60],
  [237_000, 3_000, 79],
  [1_205, 600, 2],
  [0, 600, 1],
  [600, 0, 1],
])('%i there in %i here is x%i', (there, here, rate) => expect(rateOf(there, here)).toBe(rate));
