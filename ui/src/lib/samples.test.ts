import { expect, it } from 'vitest';
import { readPolicy } from './samples';

it('reads JSON as JSON and everything else as text', () => {
  expect(readPolicy(' {"max_retries": 3} ')).toEqual({ max_retries: 3 });
  expect(readPolicy('true')).toBe(true);
  expect(readPolicy('5')).toBe(5);
  expect(readPolicy('exp(1s, x2, 5 retries)')).toBe('exp(1s, x2, 5 retries)');
  expect(() => readPolicy('{')).toThrow();
});
