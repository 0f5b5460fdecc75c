import { expect, it } from 'vitest';
import { allPages, csv, ndjson } from './export';

it('writes what a spreadsheet reads, and nothing that it would run', () => {
  const rows = [
    { id: 'a', n: -1, error: 'x, "y"\nz', labels: { tenant: 'acme' } },
    { id: '=HYPERLINK("evil")', n: 2, error: null, at: '@now' },
  ];
  expect(csv(rows)).toBe(
    'id,n,error,labels,at\r\na,-1,"x, ""y""\nz","{""tenant"":""acme""}",\r\n"\'=HYPERLINK(""evil"")",2,,,\'@now\r\n',
  );
  expect(
    ndjson(rows)
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line)),
  ).toEqual(rows);
});

it('goes through all pages, and says when it stopped', async () => {
  const pages = (cursor: string | null) =>
    Promise.resolve({
      items: [Number(cursor), Number(cursor) + 1],
      next_cursor: cursor === '8' ? null : String(Number(cursor) + 2),
    });
  expect(await allPages(pages, 100)).toEqual({ items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], more: false });
  expect(await allPages(pages, 3)).toEqual({ items: [0, 1, 2], more: true });
});
