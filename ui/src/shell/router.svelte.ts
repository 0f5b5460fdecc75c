/** Where the reader is. Addresses in the code are relative to where the dashboard is served from: `t/01a1…`, `tasks?q=…`. */

import { PAGES } from './pages';

function base(): URL {
  return new URL(document.baseURI);
}

function here(): { parts: string[]; query: URLSearchParams; hash: string } {
  const root = base().pathname;
  const path = location.pathname.startsWith(root) ? location.pathname.slice(root.length) : '';
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  return { parts, query: new URLSearchParams(location.search), hash: location.hash.slice(1) };
}

class Router {
  private place = $state.raw({ parts: [] as string[], query: new URLSearchParams(), hash: '' });

  start(): void {
    this.place = here();
    addEventListener('popstate', () => {
      this.place = here();
    });
    document.addEventListener('click', (event) => this.click(event));
  }

  get page(): string {
    return this.place.parts[0] ?? '';
  }

  /** The path after the page: an id, or the path of a workflow. */
  get rest(): string[] {
    return this.place.parts.slice(1);
  }

  get hash(): string {
    return this.place.hash;
  }

  param(name: string): string | null {
    return this.place.query.get(name);
  }

  go(to: string, replace = false): void {
    const url = new URL(to, base());
    if (replace) history.replaceState(null, '', url);
    else history.pushState(null, '', url);
    const before = this.page;
    this.place = here();
    if (!replace && before !== this.page) scrollTo(0, 0);
  }

  /** Other parameters on the same page. */
  set(params: Record<string, string | null>, replace = false): void {
    const query = new URLSearchParams(this.place.query);
    for (const [name, value] of Object.entries(params)) {
      if (value === null) query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString();
    const path = this.place.parts.map(encodeURIComponent).join('/');
    this.go(text ? `${path || '.'}?${text}` : path || '.', replace);
  }

  /** Links inside the dashboard need no new page. */
  private click(event: MouseEvent): void {
    if (
      event.defaultPrevented ||
      event.button !== 0 ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    const link = (event.target as Element | null)?.closest('a');
    // Links in pictures have no address of their own, only what was written; so all are read that way.
    const written = link?.getAttribute('href');
    if (
      !link ||
      written === null ||
      written === undefined ||
      link.hasAttribute('target') ||
      link.hasAttribute('download')
    )
      return;
    const url = new URL(written, base());
    const root = base().pathname;
    if (url.origin !== location.origin || !url.pathname.startsWith(root)) return;
    const first = url.pathname.slice(root.length).split('/')[0] ?? '';
    if (first !== '' && !PAGES.includes(first)) return;
    event.preventDefault();
    this.go(url.href);
  }
}

export const router = new Router();
