/** Binds policies to kinds and unbinds them, with undo. */

import { get, part, Problem, put, remove } from '../api/client';
import type { BoundPolicy } from '../api/types';
import { toasts } from '../shell/toasts.svelte';

const at = (kind: string) => `policies/${part(kind)}`;

async function bound(kind: string): Promise<BoundPolicy | null> {
  try {
    return await get<BoundPolicy>(at(kind));
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

/** Restores the policy that was bound before. */
const back = (before: BoundPolicy, then: () => void) => () =>
  void put(at(before.kind), { policy: before.policy })
    .then(
      () => toasts.say(`Policy of ${before.kind} restored`),
      (error: unknown) => toasts.refuse(error),
    )
    .then(then);

export async function bindPolicy(kind: string, policy: unknown, then: () => void = () => undefined): Promise<void> {
  const before = await bound(kind);
  await put(at(kind), { policy });
  const undo = before ? back(before, then) : () => void unbindPolicy(kind, then);
  toasts.say(`Policy of ${kind} saved; it applies to new tasks`, 'good', undefined, undo);
  then();
}

export async function unbindPolicy(kind: string, then: () => void = () => undefined): Promise<void> {
  try {
    const before = await bound(kind);
    await remove(at(kind));
    toasts.say(`Policy of ${kind} deleted`, 'good', undefined, before ? back(before, then) : undefined);
  } catch (error) {
    toasts.refuse(error);
  }
  then();
}
