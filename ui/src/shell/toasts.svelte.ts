/** Short messages about acts. */

import { Problem } from '../api/client';

export interface Toast {
  id: number;
  text: string;
  kind: 'good' | 'bad';
  link?: { title: string; to: string };
  /** Undoes the act. */
  undo?: () => void;
}

class Toasts {
  all = $state.raw<Toast[]>([]);
  private next = 1;

  say(text: string, kind: Toast['kind'] = 'good', link?: Toast['link'], undo?: Toast['undo']): void {
    const toast = { id: this.next++, text, kind, link, undo };
    this.all = [...this.all.slice(-3), toast];
    setTimeout(() => this.drop(toast.id), kind === 'bad' || undo ? 12_000 : 5_000);
  }

  /** Shows a refusal in the server's words. */
  refuse(error: unknown): void {
    if (!(error instanceof Problem)) throw error;
    this.say(`${error.body.title}: ${error.message}`, 'bad');
  }

  drop(id: number): void {
    this.all = this.all.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();
