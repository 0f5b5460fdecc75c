/** Payloads that are edited: what differs, and the merge patch (RFC 7396) that makes one of the other. */

import type { WorkflowDiff } from '../api/types';

export type Difference = WorkflowDiff['differences'][number];

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const same = (a: unknown, b: unknown): boolean => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));

/** Fields in one order, so that only what they hold is compared. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, sorted(value[name])]),
  );
}

/** Differences field by field; a list is one value. */
export function differences(before: unknown, after: unknown, path = ''): Difference[] {
  if (same(before, after)) return [];
  if (!isObject(before) || !isObject(after)) return [{ path: path || 'payload', before, after }];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return names.flatMap((name) => {
    const at = path ? `${path}.${name}` : name;
    if (!(name in before)) return [{ path: at, before: undefined, after: after[name] }];
    if (!(name in after)) return [{ path: at, before: before[name], after: undefined }];
    return differences(before[name], after[name], at);
  });
}

/** A patch cannot say that something is to be null: there null takes a field away. */
function unsayable(value: unknown, path: string): string | null {
  if (value === null) return path;
  if (!isObject(value)) return null;
  for (const [name, inner] of Object.entries(value)) {
    const found = unsayable(inner, path ? `${path}.${name}` : name);
    if (found) return found;
  }
  return null;
}

export type Patch = { patch: unknown } | { unsayable: string };

/** The merge patch that turns `before` into `after`. */
export function patchOf(before: unknown, after: unknown, path = ''): Patch {
  if (isObject(before) && isObject(after)) {
    const patch: Record<string, unknown> = {};
    for (const name of Object.keys(before)) if (!(name in after)) patch[name] = null;
    for (const [name, value] of Object.entries(after)) {
      if (name in before && same(before[name], value)) continue;
      const inner = patchOf(before[name], value, path ? `${path}.${name}` : name);
      if ('unsayable' in inner) return inner;
      patch[name] = inner.patch;
    }
    return { patch };
  }
  const found = unsayable(after, path || 'payload');
  return found ? { unsayable: found } : { patch: after };
}
