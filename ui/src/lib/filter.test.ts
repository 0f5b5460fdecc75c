import { describe, expect, it } from 'vitest';
import { quote, suggest, terms, withField } from './filter';

describe('terms', () => {
  it('are split at spaces outside quotes', () => {
    const found = terms('state:retrying,dead -kind:report.* "connection refused" name:"a b" 503');
    expect(found.map((it) => [it.negated, it.field, it.value])).toEqual([
      [false, 'state', 'retrying,dead'],
      [true, 'kind', 'report.*'],
      [false, null, '"connection refused"'],
      [false, 'name', '"a b"'],
      [false, null, '503'],
    ]);
  });

  it('keep what is not finished', () => {
    expect(terms('name:"a b').map((it) => it.value)).toEqual(['"a b']);
    expect(terms('  ')).toEqual([]);
  });
});

it('puts a field in, and out again', () => {
  expect(withField('queue:mail state:dead', 'state', 'held')).toBe('state:held queue:mail');
  expect(withField('queue:mail state:dead', 'state', null)).toBe('queue:mail');
  expect(withField('-state:dead', 'state', 'held')).toBe('state:held -state:dead');
});

it('quotes what needs it', () => {
  expect(quote('payments.charge')).toBe('payments.charge');
  expect(quote('a "b"')).toBe('"a \\"b\\""');
  expect(quote('')).toBe('""');
});

describe('suggestions', () => {
  const texts = (filter: string) => suggest(filter, filter.length).map((it) => it.text);

  it('are fields first', () => {
    expect(texts('st')).toEqual(['state:']);
    expect(texts('queue:mail -ki')).toEqual(['-kind:']);
    expect(texts('queue:mail ').length).toBe(8);
  });

  it('are values after a colon, also after a comma', () => {
    expect(texts('state:re')).toEqual(['state:retrying', 'state:recovered']);
    expect(texts('state:retrying,de')).toEqual(['state:retrying,dead']);
    expect(suggest('state:de queue:a', 8)[0]?.filter).toBe('state:dead  queue:a');
    expect(texts('kind:')).toEqual([]);
  });
});
