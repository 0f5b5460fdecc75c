/** HTTP client of the API, the only caller of `fetch`. Errors are `Problem`s. */

import { session } from '../shell/session.svelte';

export interface Fault {
  path: string;
  message: string;
}

/** RFC 9457, as the server writes it. */
export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail?: string;
  instance?: string;
  errors?: Fault[];
  position?: number;
}

export class Problem extends Error {
  constructor(readonly body: ProblemBody) {
    super(body.detail ?? body.title);
  }

  get status(): number {
    return this.body.status;
  }
}

export type Query = Record<string, string | number | null | undefined>;

export interface Ask {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
}

/** An address of the API, relative to wherever the dashboard is served from. */
export function address(path: string, query: Query = {}): string {
  const url = new URL(`api/v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, String(value));
  }
  return url.href;
}

export function headers(): Record<string, string> {
  const all: Record<string, string> = {};
  if (session.key) all.authorization = `Bearer ${session.key}`;
  if (session.namespace) all['comeback-namespace'] = session.namespace;
  return all;
}

/** A successful write of this page. */
export interface Done {
  method: string;
  path: string;
  body?: unknown;
}

const watchers = new Set<(done: Done) => void>();

/** Calls `watch` after each successful write; returns the function that ends this. */
export function onDone(watch: (done: Done) => void): () => void {
  watchers.add(watch);
  return () => void watchers.delete(watch);
}

/** POST requests that change nothing. */
const READS = ['policies/simulate', 'policies/backtest', 'alerts/backtest'];

/** An act that was sent and not answered yet, or whose answer was lost. */
interface Intent {
  key: string;
  /** `null` when the answer was lost. */
  answer: Promise<unknown> | null;
  lostAt: number;
}

/** By method, path and body. */
const intents = new Map<string, Intent>();
/** An act whose answer was lost is the same act when it is repeated within this time. */
const REPEAT_MS = 60_000;

/**
 * Sends a request. An act is sent once while it is in flight: a second click gets the answer of the first. If its answer is lost, the
 * next try carries the same idempotency key, so the server does not repeat it.
 */
export function ask<T>(method: string, path: string, options: Ask = {}): Promise<T> {
  if (method === 'GET' || READS.includes(path)) return send<T>(method, path, options);
  const name = JSON.stringify([method, path, options.query, options.body, session.namespace]);
  const before = intents.get(name);
  if (before?.answer) return before.answer as Promise<T>;
  const key =
    before && Date.now() - before.lostAt < REPEAT_MS
      ? before.key
      : (crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`);
  const answer = send<T>(method, path, options, key).then(
    (body) => {
      intents.delete(name);
      return body;
    },
    (error: unknown) => {
      const isRefusal = error instanceof Problem && error.status >= 400 && error.status < 500;
      if (isRefusal) intents.delete(name);
      else intents.set(name, { key, answer: null, lostAt: Date.now() });
      throw error;
    },
  );
  intents.set(name, { key, answer, lostAt: 0 });
  return answer;
}

async function send<T>(method: string, path: string, { query, body, signal }: Ask, key?: string): Promise<T> {
  const sent = headers();
  if (body !== undefined) sent['content-type'] = 'application/json';
  if (key && method === 'POST') sent['idempotency-key'] = key;
  let answer: Response;
  try {
    answer = await fetch(address(path, query), {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    session.reachable = false;
    throw new Problem({
      type: 'unreachable',
      title: 'The server does not answer',
      status: 0,
      detail: 'Is it still running? The page keeps trying.',
    });
  }
  session.heard();
  if (method !== 'GET' && answer.ok) watchers.forEach((watch) => watch({ method, path, body }));
  if (answer.status === 204) return undefined as T;
  const text = await answer.text();
  if (answer.ok) return parse<T>(text);
  const problem = new Problem(problemOf(answer.status, text));
  if (problem.status === 401) session.refused();
  throw problem;
}

function problemOf(status: number, text: string): ProblemBody {
  try {
    const body = JSON.parse(text) as ProblemBody;
    if (body && typeof body.title === 'string') return { ...body, status };
  } catch {
    // Something between here and the server has answered.
  }
  return { type: 'unknown', title: `The answer was ${status}`, status, detail: text.slice(0, 300) };
}

function parse<T>(text: string): T {
  return JSON.parse(text) as T;
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) => ask<T>('GET', path, { query, signal });
export const post = <T>(path: string, body: unknown = {}) => ask<T>('POST', path, { body });
export const put = <T>(path: string, body: unknown) => ask<T>('PUT', path, { body });
export const patch = <T>(path: string, body: unknown) => ask<T>('PATCH', path, { body });
export const remove = (path: string) => ask<void>('DELETE', path);

/** A name as a part of an address. */
export const part = (name: string) => encodeURIComponent(name);
/** A path of names: the slashes between them stay. */
export const parts = (path: string) => path.split('/').map(part).join('/');
