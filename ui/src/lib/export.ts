/** Lists as files: what the screen shows, and the pages behind it. */

import type { Page } from '../api/types';

/** Somebody who opens it in a spreadsheet must not run what a stranger wrote: such texts begin with a quote there. */
const FORMULA = /^[=+\-@\t\r]/;

function cell(value: unknown): string {
  if (value === null || value === undefined) return '';
  let text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  if (typeof value === 'string' && FORMULA.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A line of names, then a line for each; columns in the order in which they were first seen. */
export function csv(rows: object[]): string {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const lines = rows.map((row) => names.map((name) => cell((row as Record<string, unknown>)[name])).join(','));
  return [names.map(cell).join(','), ...lines, ''].join('\r\n');
}

export const ndjson = (rows: object[]) => rows.map((row) => `${JSON.stringify(row)}\n`).join('');

/** All pages, one after the other, but not without end. */
export async function allPages<T>(
  ask: (cursor: string | null) => Promise<Page<T>>,
  most: number,
): Promise<{ items: T[]; more: boolean }> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<T> = await ask(cursor);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < most);
  return { items: items.slice(0, most), more: cursor !== null || items.length > most };
}

export function save(name: string, kind: string, content: string | Blob): void {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
