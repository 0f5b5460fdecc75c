/** How many steps lead to each task at most. Circles cannot be submitted; should there be one, it is not followed for ever. */
export function depths(ids: string[], edges: { from: string; to: string }[]): Map<string, number> {
  const found = new Map(ids.map((id) => [id, 0]));
  const after = new Map<string, string[]>();
  const needs = new Map(ids.map((id) => [id, 0]));
  for (const { from, to } of edges) {
    after.set(from, [...(after.get(from) ?? []), to]);
    needs.set(to, (needs.get(to) ?? 0) + 1);
  }
  const ready = ids.filter((id) => !needs.get(id));
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    for (const next of after.get(id) ?? []) {
      found.set(next, Math.max(found.get(next) ?? 0, (found.get(id) ?? 0) + 1));
      const left = (needs.get(next) ?? 0) - 1;
      needs.set(next, left);
      if (left === 0) ready.push(next);
    }
  }
  return found;
}
