/** Keys: one table that both the keyboard and the help sheet read. */

export interface Shortcut {
  keys: string;
  does: string;
  run: () => void;
}

/** Keys mean nothing while somebody types. */
export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  return !!target?.closest('input:not([type=checkbox]), textarea, select, [contenteditable], dialog');
}

const stack: Shortcut[][] = [];

/** Adds keys for as long as a screen is shown. */
export function shortcuts(list: Shortcut[]): () => void {
  stack.push(list);
  return () => {
    stack.splice(stack.indexOf(list), 1);
  };
}

export const known = (): Shortcut[] => stack.flat();

let prefix = '';
let forget: ReturnType<typeof setTimeout> | undefined;

/** `g t` is two strokes within a second. */
export function press(event: KeyboardEvent): void {
  if (isTyping(event) || event.metaKey || event.ctrlKey || event.altKey) return;
  const pressed = prefix ? `${prefix} ${event.key}` : event.key;
  clearTimeout(forget);
  const found = known().findLast((it) => it.keys === pressed);
  if (found) {
    prefix = '';
    event.preventDefault();
    found.run();
    return;
  }
  const begins = !prefix && known().some((it) => it.keys.startsWith(`${event.key} `));
  prefix = begins ? event.key : '';
  if (begins) forget = setTimeout(() => (prefix = ''), 1_000);
}
