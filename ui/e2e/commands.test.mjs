// Every command that a screen shows is one that the binary knows.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { binary } from './stage.mjs';

/** The words before the first option or value: `comeback task retry ID --note x` is `task retry`. */
function shown(text) {
  const found = new Set();
  for (const [, words] of text.matchAll(/\bcli\(([^)]*)\)/g)) {
    const names = [...words.matchAll(/(?:^|,)\s*'([a-z-]+)'(?=\s*(?:,|$))/g)].map((it) => it[1]);
    const literal = words.split(',').map((it) => it.trim());
    found.add(names.filter((name, i) => literal[i] === `'${name}'`).join(' '));
  }
  for (const [, words] of text.matchAll(/command[=:][\s"'{`]+comeback ((?:[a-z-]+ ?)+)/g)) found.add(words.trim());
  // A ResourceEditor shows `comeback NOUN list`.
  if (!text.includes('hasCli={false}')) {
    for (const [, noun] of text.matchAll(/<ResourceEditor\s+noun="([a-z]+)"/g)) found.add(`${noun} list`);
  }
  return [...found].filter(Boolean);
}

test('the commands that can be copied are there', () => {
  const folder = join(import.meta.dirname, '../src');
  const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.svelte'));
  const known = new Map();
  const knows = (words) => {
    if (!known.has(words)) known.set(words, spawnSync(binary, [...words.split(' '), '--help'], { encoding: 'utf8' }));
    return known.get(words);
  };
  const missing = [];
  let count = 0;
  for (const name of files) {
    for (const words of shown(readFileSync(join(folder, name), 'utf8'))) {
      // A third word may be a value.
      const command = words.split(' ').slice(0, 2).join(' ');
      const whole = knows(command);
      const first = knows(command.split(' ')[0]);
      const takesValues =
        /\[OPTIONS\] (?:<|\[)(?!COMMAND)/.test(first.stdout ?? '') || !/Commands:/.test(first.stdout ?? '');
      count += 1;
      if (first.status !== 0 || (whole.status !== 0 && !takesValues)) missing.push(`${name}: comeback ${command}`);
    }
  }
  assert.ok(count > 15, `${count} were found`);
  assert.deepEqual(missing, []);
});
