/** Lists that somebody wants to see again: names for addresses, kept in the browser. */

export interface View {
  name: string;
  /** As the address says it: `q=…&sort=…`. */
  query: string;
}

const KEY = 'comeback.views';

function read(): View[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(found)
      ? found.filter((it): it is View => typeof it?.name === 'string' && typeof it?.query === 'string')
      : [];
  } catch {
    return [];
  }
}

class Views {
  all = $state.raw<View[]>(read());

  private write(views: View[]): void {
    this.all = views;
    try {
      localStorage.setItem(KEY, JSON.stringify(views));
    } catch {
      // They hold until the page is loaded again.
    }
  }

  /** One name, one view: the newer takes the place of the older. */
  save(name: string, query: string): void {
    this.write(
      [...this.all.filter((it) => it.name !== name), { name, query }].sort((a, b) => a.name.localeCompare(b.name)),
    );
  }

  drop(name: string): void {
    this.write(this.all.filter((it) => it.name !== name));
  }
}

export const views = new Views();
