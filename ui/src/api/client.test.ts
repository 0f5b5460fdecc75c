import { beforeEach, expect, it, vi } from 'vitest';
import { post, Problem, put } from './client';

interface Sent {
  method: string;
  key: string | undefined;
  answer: (status: number) => void;
  lose: () => void;
}
let sent: Sent[];

beforeEach(() => {
  sent = [];
  vi.stubGlobal('document', { baseURI: 'http://localhost/' });
  vi.stubGlobal(
    'fetch',
    (_: string, { method, headers }: { method: string; headers: Record<string, string> }) =>
      new Promise((done, fail) => {
        const answer = (status: number) => done(new Response(status < 300 ? '{}' : '{"title":"no"}', { status }));
        sent.push({ method, key: headers['idempotency-key'], answer, lose: () => fail(new TypeError('lost')) });
      }),
  );
});

it('sends an act once while it is in flight', async () => {
  const clicks = [post('schedules/nightly/trigger'), post('schedules/nightly/trigger')];
  sent[0]?.answer(200);
  await Promise.all(clicks);
  expect(sent).toHaveLength(1);
  const writes = [put('accounts/acme', { add: 50 }), put('accounts/acme', { add: 50 })];
  sent[1]?.answer(200);
  await Promise.all(writes);
  expect(sent).toHaveLength(2);
});

it('repeats an act with the same key when its answer was lost, and with another once it was answered', async () => {
  const first = post('schedules/nightly/trigger');
  sent[0]?.lose();
  await expect(first).rejects.toBeInstanceOf(Problem);
  const second = post('schedules/nightly/trigger');
  sent[1]?.answer(200);
  await second;
  const third = post('schedules/nightly/trigger');
  sent[2]?.answer(409);
  await expect(third).rejects.toBeInstanceOf(Problem);
  const keys = sent.map(({ key }) => key);
  expect(keys[0]).toBeTruthy();
  expect(keys[1]).toBe(keys[0]);
  expect(keys[2]).not.toBe(keys[0]);
});

it('takes another body for another act', async () => {
  const both = [post('tasks/bulk', { action: 'retry' }), post('tasks/bulk', { action: 'pause' })];
  sent.forEach(({ answer }) => answer(200));
  await Promise.all(both);
  expect(new Set(sent.map(({ key }) => key)).size).toBe(2);
});
