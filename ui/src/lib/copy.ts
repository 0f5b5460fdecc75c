/** Acts as commands to copy. A key is never part of them; the shell has its own. */

import { short } from './words';

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

export function cli(...words: string[]): string {
  return ['comeback', ...words.map((word) => (/^[\w./:=,@%+-]+$/.test(word) ? word : quoted(word)))].join(' ');
}

export function curl(method: string, url: string, body?: unknown): string {
  const parts = ['curl -s'];
  if (method !== 'GET') parts.push(`-X ${method}`);
  parts.push('${COMEBACK_KEY:+-H "authorization: Bearer $COMEBACK_KEY"}');
  if (body !== undefined) parts.push('-H content-type:application/json', `-d ${quoted(JSON.stringify(body))}`);
  return [...parts, quoted(url)].join(' ');
}

export const taskCommand = (verb: string, id: string) => cli('task', verb, short(id));

/** Browsers offer the clipboard only on safe origins; elsewhere a selection does. */
export async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = document.createElement('textarea');
    box.value = text;
    box.setAttribute('readonly', '');
    box.className = 'visually-hidden';
    document.body.append(box);
    box.select();
    const done = document.execCommand('copy');
    box.remove();
    return done;
  }
}
