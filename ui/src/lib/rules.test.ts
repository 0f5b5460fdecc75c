import { expect, it } from 'vitest';
import type { Rule } from '../api/types';
import { limitWords, ruleBody, withLimit } from './rules';

const rule = (of: Partial<Rule>): Rule => ({
  name: 'r',
  match: { queue: 'mail', kind: null, labels: {} },
  per: ['tenant'],
  max_running: null,
  capacity: null,
  fair: false,
  used: [],
  ...of,
});
const rest = { match: { queue: 'mail', labels: {} }, per: ['tenant'] };

it('writes all of a rule back, `fair` too', () => {
  expect(ruleBody(rule({ fair: true, max_running: 3 }))).toEqual({ ...rest, fair: true, max_running: 3 });
  expect(ruleBody(rule({ capacity: 1000 }))).toEqual({ ...rest, fair: false, capacity: 1000 });
});

it('gives a rule that is only fair no limit, least of all 0', () => {
  expect(ruleBody(rule({ fair: true }))).toEqual({ ...rest, fair: true });
  expect(withLimit(rule({ fair: true }), null)).toEqual({ ...rest, fair: true });
  expect(withLimit(rule({ fair: true }), 4)).toEqual({ ...rest, fair: true, max_running: 4 });
});

it('changes the limit that a rule has', () => {
  expect(withLimit(rule({ capacity: 10 }), 20)).toEqual({ ...rest, fair: false, capacity: 20 });
  expect(withLimit(rule({ fair: true, max_running: 3 }), 0)).toEqual({ ...rest, fair: true, max_running: 0 });
});

it('says a limit in words', () => {
  expect([rule({ max_running: 3 }), rule({ capacity: 9, fair: true }), rule({ fair: true })].map(limitWords)).toEqual([
    '3 at once',
    'weight 9, fair',
    'no limit, fair',
  ]);
});
