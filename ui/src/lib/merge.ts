/** A newer answer to the same question, without moving what is being read. */
export function merge<T extends { id: string }>(rows: T[], answer: T[]): { rows: T[]; fresh: T[]; gone: Set<string> } {
  const newer = new Map(answer.map((row) => [row.id, row]));
  const known = new Set(rows.map((row) => row.id));
  return {
    rows: rows.map((row) => newer.get(row.id) ?? row),
    fresh: answer.filter((row) => !known.has(row.id)),
    gone: new Set(rows.filter((row) => !newer.has(row.id)).map((row) => row.id)),
  };
}
