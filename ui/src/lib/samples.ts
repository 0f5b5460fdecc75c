/** Policies and failures to begin with in the playground: one per dialect, and a few of the native one. */

export const DIALECTS = ['native', 'workflow', 'task', 'job', 'run', 'step'] as const;
export type Dialect = (typeof DIALECTS)[number];

const json = (value: unknown) => JSON.stringify(value, null, 2);

export const SAMPLES: Record<Dialect, string> = {
  native: 'exp(60s, x2, max 1h, 8 retries, jitter full)',
  workflow: json({
    retry_strategy: 'exponential_backoff',
    max_attempts: 5,
    initial_delay_seconds: 60,
    multiplier: 2,
    max_delay_seconds: 3600,
  }),
  task: json({ max_retries: 3, initial_delay_secs: 10, backoff_multiplier: 2, max_delay_secs: 120 }),
  job: json({ jobType: 'SCREENSHOT', maxRetries: 5, backoffStrategy: 'EXPONENTIAL' }),
  run: json({ max_attempts: 8, initial_backoff_secs: 60, max_backoff_secs: 3600, backoff_multiplier: 2 }),
  step: json({ max_attempts: 5, initial_delay: 1, backoff_multiplier: 2 }),
};

export const PRESETS = [
  { title: 'API call', policy: 'exp(1s, x2, max 1m, 5 retries, jitter full)' },
  { title: 'Rate-limited API', policy: 'fixed(30s, 10 retries)' },
  { title: 'Long wait', policy: 'schedule(7d, 14d)' },
];

export const FAULTS = [
  { title: 'every attempt fails (503)', failures: [{ status: 503, message: 'Service Unavailable' }] },
  {
    title: '429 with Retry-After 2 m, then 503',
    failures: [
      { status: 429, message: 'Too Many Requests', retry_after: 120 },
      { status: 503, message: 'Service Unavailable' },
    ],
  },
  {
    title: 'each attempt takes 30 s, then times out',
    failures: [{ after: '30s', type: 'Timeout', message: 'timed out' }],
  },
  { title: 'a final error', failures: [{ class: 'final', type: 'ValidationError', message: 'vat_id is missing' }] },
];

/** JSON where it is JSON, else the text form. */
export function readPolicy(text: string): unknown {
  const trimmed = text.trim();
  if (/^[[{"]|^(true|false|\d+)$/.test(trimmed)) return JSON.parse(trimmed);
  return trimmed;
}
