/** Short words about what was just done. */

export interface Toast {
  id: number;
  text: string;
  kind: 'good' | 'bad';
  link?: { title: string; to: string };
}

class Toasts {
  all = $state.raw<Toast[]>([]);
  private next = 1;

  say(text: string, kind: Toast['kind'] = 'good', link?: Toast['link']): void {
    const toast = { id: this.next++, text, kind, link };
    this.all = [...this.all.slice(-3), toast];
    setTimeout(() => this.drop(toast.id), kind === 'bad' ? 12_000 : 5_000);
  }

  drop(id: number): void {
    this.all = this.all.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();
