/** The filter grammar, as far as a text box needs it: terms, suggestions, and putting a term in or out. The server decides. */

export const FIELDS = [
  'state',
  'kind',
  'queue',
  'name',
  'key',
  'execution',
  'dependency',
  'account',
  'class',
  'fingerprint',
  'worker',
  'external_id',
  'verdict',
  'priority',
  'attempt',
  'lost',
  'due',
  'age',
  'submitted',
  'updated',
  'label.',
];

const VALUES: Record<string, string[]> = {
  state: [
    'retrying',
    'queued',
    'running',
    'held',
    'failed',
    'dead',
    'recovered',
    'succeeded',
    'canceled',
    'skipped',
    'open',
    'terminal',
  ],
  class: ['retryable', 'final', 'rate_limited'],
  due: ['<1h', '<5m', '<24h'],
  age: ['>1h', '>1d', '<10m'],
  attempt: ['>=2', '>=3', '>=5'],
  updated: ['<10m', '<1h'],
  submitted: ['<1h', '<1d'],
};

export interface Term {
  text: string;
  start: number;
  negated: boolean;
  /** Before the colon; nothing for a bare word. */
  field: string | null;
  value: string;
}

/** Terms as they are written; a quote that is never closed reaches to the end. */
export function terms(filter: string): Term[] {
  const found: Term[] = [];
  let at = 0;
  while (at < filter.length) {
    if (/\s/.test(filter.charAt(at))) {
      at += 1;
      continue;
    }
    const start = at;
    let quoted = false;
    let colon = -1;
    for (; at < filter.length; at += 1) {
      const c = filter.charAt(at);
      if (c === '\\' && quoted) at += 1;
      else if (c === '"') quoted = !quoted;
      else if (c === ':' && !quoted && colon < 0) colon = at;
      else if (!quoted && /\s/.test(c)) break;
    }
    const text = filter.slice(start, at);
    const negated = text.startsWith('-');
    const from = start + (negated ? 1 : 0);
    found.push({
      text,
      start,
      negated,
      field: colon > from ? filter.slice(from, colon).toLowerCase() : null,
      value: filter.slice(colon > from ? colon + 1 : from, at),
    });
  }
  return found;
}

/** A value as the grammar wants it: with quotes where it needs them. */
export function quote(value: string): string {
  return /[\s",:*]/.test(value) || value === '' ? `"${value.replace(/(["\\])/g, '\\$1')}"` : value;
}

/** The same filter with one field set anew, or without it. */
export function withField(filter: string, field: string, value: string | null): string {
  const rest = terms(filter).filter((term) => term.field !== field || term.negated);
  const all = rest.map((term) => term.text);
  if (value !== null) all.unshift(`${field}:${value}`);
  return all.join(' ');
}

export interface Suggestion {
  /** The whole filter with the suggestion. */
  filter: string;
  /** The text that is shown. */
  text: string;
}

/** At most eight suggestions at the caret. */
export function suggest(filter: string, caret: number): Suggestion[] {
  const term = terms(filter).find((it) => it.start <= caret && caret <= it.start + it.text.length);
  const written = term ? term.text.slice(0, caret - term.start) : '';
  const sign = written.startsWith('-') ? '-' : '';
  const bare = written.slice(sign.length);
  const put = (text: string, end: string): Suggestion => {
    const before = filter.slice(0, term ? term.start : caret);
    const after = filter.slice(term ? term.start + term.text.length : caret);
    return { filter: `${before}${sign}${text}${end}${after}`, text: `${sign}${text}` };
  };
  const colon = bare.indexOf(':');
  if (colon < 0) {
    const fields = FIELDS.filter((field) => field.startsWith(bare.toLowerCase()) && field !== bare);
    return fields.slice(0, 8).map((field) => put(field.endsWith('.') ? field : `${field}:`, ''));
  }
  const field = bare.slice(0, colon).toLowerCase();
  const given = bare.slice(colon + 1).split(',');
  const last = given.pop() ?? '';
  const values = (VALUES[field] ?? []).filter(
    (value) => value.startsWith(last) && value !== last && !given.includes(value),
  );
  return values.slice(0, 8).map((value) => put(`${field}:${[...given, value].join(',')}`, ' '));
}
