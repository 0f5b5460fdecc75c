/** The key and role of this tab, and whether the server answers. The key lives as long as the tab and is in no address. */

import type { Me, Role } from '../api/types';

const KEY = 'comeback.key';
const NAMESPACE = 'comeback.namespace';

function stored(name: string): string {
  try {
    return sessionStorage.getItem(name) ?? '';
  } catch {
    return '';
  }
}

function store(name: string, value: string): void {
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // Then it is kept until the page is loaded again.
  }
}

class Session {
  key = $state(stored(KEY));
  namespace = $state(stored(NAMESPACE));
  me = $state.raw<Me | null>(null);
  /** The server has asked for a key, or does not know this one. */
  needsKey = $state(false);
  reachable = $state(true);
  /** When the server was last heard, on our own clock. */
  heardAt = $state(performance.now());

  enter(key: string, namespace: string): void {
    this.key = key.trim();
    this.namespace = namespace.trim();
    store(KEY, this.key);
    store(NAMESPACE, this.namespace);
    this.needsKey = false;
  }

  forget(): void {
    this.enter('', '');
    this.me = null;
  }

  heard(): void {
    this.heardAt = performance.now();
    this.reachable = true;
  }

  refused(): void {
    this.needsKey = true;
  }

  /** Why the role does not allow an act; `null` when it does. */
  lacks(need: 'submit' | 'operate' | 'administer'): string | null {
    const role = this.me?.role;
    if (!role || MAY[need].includes(role)) return null;
    return `your key is a ${role}'s; this needs ${need === 'administer' ? 'an admin' : 'an operator'}`;
  }
}

const MAY: Record<'submit' | 'operate' | 'administer', Role[]> = {
  submit: ['submitter', 'operator', 'admin'],
  operate: ['operator', 'admin'],
  administer: ['admin'],
};

export const session = new Session();
