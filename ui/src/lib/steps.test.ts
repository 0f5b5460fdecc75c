import { expect, it } from 'vitest';
import { stepsOf } from './steps';

it('tells how each step is retried and who says so', () => {
  const workflow = {
    steps: [
      { name: 'extract', kind: 'etl.extract', retry: 'exp(10s, x2, 5 retries)', needs: [], origins: { retry: 'step' } },
      {
        name: 'load',
        kind: 'etl.load',
        retry: 3,
        needs: [{ step: 'extract', when: 'success' }],
        origins: { retry: 'defaults' },
      },
      { name: 'charge', kind: 'payments.charge', needs: [] },
      { name: 'mail', kind: 'email.send', needs: [{ step: 'charge', when: 'failure' }], if: 'input.mail' },
    ],
  };
  const steps = stepsOf(
    workflow,
    new Map<string, unknown>([['payments.charge', { strategy: 'fixed', delay_ms: 60_000, max_retries: 2 }]]),
  );
  expect(steps.map(({ retry, from }) => `${retry} / ${from}`)).toEqual([
    'exp(10s, x2, 5 retries) / the step itself',
    '3 executions / the defaults of the workflow',
    'fixed(1m, 2 retries) / the policy of payments.charge',
    'never retried / nobody says otherwise',
  ]);
  expect(steps[3]?.needs).toEqual([{ step: 'charge', when: 'failure' }]);
  expect(steps[3]?.condition).toBe('input.mail');
  expect(stepsOf(null)).toEqual([]);
});
