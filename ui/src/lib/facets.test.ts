import { expect, it } from 'vitest';
import { facets } from './facets';

it('ranks what tasks with one error have, the most frequent first', () => {
  const tasks = ['acme', 'acme', 'b co'].map((tenant, i) => ({ queue: i ? 'mail' : 'default', labels: { tenant } }));
  expect(facets([...tasks, { queue: 'mail', labels: null }])).toEqual([
    {
      name: 'queue',
      values: [
        { value: 'mail', n: 3, filter: 'queue:mail' },
        { value: 'default', n: 1, filter: 'queue:default' },
      ],
      more: 0,
    },
    {
      name: 'label.tenant',
      values: [
        { value: 'acme', n: 2, filter: 'label.tenant:acme' },
        { value: 'b co', n: 1, filter: 'label.tenant:"b co"' },
      ],
      more: 0,
    },
  ]);
});

it('lists the first five, says how many more there are, and needs no task at all', () => {
  const [queue] = facets(Array.from({ length: 7 }, (_, i) => ({ queue: `q${i}` })));
  expect([queue?.values.length, queue?.more]).toEqual([5, 2]);
  expect(facets([])).toEqual([]);
});
