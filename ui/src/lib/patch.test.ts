import { describe, expect, it } from 'vitest';
import { differences, patchOf } from './patch';

/** As the server does it. */
function apply(target: unknown, patch: unknown): unknown {
  if (typeof patch !== 'object' || patch === null || Array.isArray(patch)) return patch;
  const result: Record<string, unknown> =
    typeof target === 'object' && target !== null && !Array.isArray(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name];
    else result[name] = apply(result[name], value);
  }
  return result;
}

const PAIRS: [unknown, unknown][] = [
  [{ card: { number: '1', name: 'a' }, coupon: 'x' }, { card: { number: '4242', name: 'a' } }],
  [{ a: 1 }, { a: { b: { c: [1, 2] } } }],
  [{ a: { b: 1 } }, { a: [1] }],
  [{ kept: null, gone: 1 }, { kept: null }],
  [{ list: [1, null] }, { list: [1, null, 2] }],
  [null, { a: 1 }],
  [[1, 2], [1]],
  ['text', { a: 'b' }],
  [{ a: 1 }, {}],
];

describe('a patch', () => {
  it('makes the one payload of the other', () => {
    for (const [before, after] of PAIRS) {
      const found = patchOf(before, after);
      expect('patch' in found && apply(before, found.patch), JSON.stringify([before, after])).toEqual(after);
    }
  });

  it('says what it cannot say', () => {
    expect(patchOf({ a: 1 }, { a: null })).toEqual({ unsayable: 'a' });
    expect(patchOf({ a: 1 }, { b: { c: null } })).toEqual({ unsayable: 'b.c' });
    expect(patchOf({ a: 1 }, null)).toEqual({ unsayable: 'payload' });
  });
});

describe('differences', () => {
  it('are named field by field, whatever the order of the fields', () => {
    expect(differences({ a: 1, b: { c: 2, d: 3 } }, { b: { d: 3, c: 5 }, e: 6 })).toEqual([
      { path: 'a', before: 1, after: undefined },
      { path: 'b.c', before: 2, after: 5 },
      { path: 'e', before: undefined, after: 6 },
    ]);
    expect(differences({ a: [1], b: 2 }, { b: 2, a: [1] })).toEqual([]);
    expect(differences(null, 3)).toEqual([{ path: 'payload', before: null, after: 3 }]);
  });
});
