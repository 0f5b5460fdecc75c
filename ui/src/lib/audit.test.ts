import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { PAGES } from '../shell/pages';
import { changesOf, subjectName, subjectPage } from './audit';

it('leads to a page of what each act was done to', () => {
  const schema = readFileSync('src/api/schema.d.ts', 'utf8');
  const line = /act: ("[^;]*");/.exec(schema.slice(schema.indexOf('ActLine: {')))?.[1] ?? '';
  const acts = [...line.matchAll(/"([^"]+)"/g)].map((it) => it[1]);
  expect(acts).toContain('task.retry');
  for (const act of acts) {
    const page = subjectPage({ act: act as never, subject: 'a/b' });
    if (/^(clock|secret)\./.test(act ?? '')) expect(page).toBeNull();
    else expect(PAGES, act).toContain(page?.split('/')[0]);
  }
});

it('shortens ids and leaves names', () => {
  expect(subjectName('01a1df6f-0287-7000-8004-c3db98790bca')).toBe('98790bca');
  expect(subjectName('etl/nightly')).toBe('etl/nightly');
});

it('says what an act changed', () => {
  expect(changesOf({ before: null, after: null })).toEqual([]);
  expect(changesOf({ before: { state: 'dead' }, after: { state: 'pending' } })).toEqual([
    { path: 'state', before: 'dead', after: 'pending' },
  ]);
  expect(changesOf({ before: null, after: { max_running: 5 } })).toEqual([
    { path: 'max_running', before: undefined, after: 5 },
  ]);
});
