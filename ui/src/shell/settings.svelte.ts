/** Theme, time zone and density, kept in the browser. */

import type { Zone } from '../lib/time';

export type Theme = 'system' | 'light' | 'dark';

function read<T extends string>(name: string, among: readonly T[]): T {
  try {
    const found = localStorage.getItem(`comeback.${name}`) as T | null;
    if (found && among.includes(found)) return found;
  } catch {
    // Without storage the first one stands.
  }
  return among[0] as T;
}

function write(name: string, value: string): void {
  try {
    localStorage.setItem(`comeback.${name}`, value);
  } catch {
    // It holds until the page is loaded again.
  }
}

const THEMES: readonly Theme[] = ['system', 'light', 'dark'];
const ZONES: readonly Zone[] = ['local', 'utc'];
export type Density = 'compact' | 'comfortable' | 'dense';
const DENSITIES: readonly Density[] = ['compact', 'comfortable', 'dense'];

class Settings {
  theme = $state<Theme>(read('theme', THEMES));
  zone = $state<Zone>(read('zone', ZONES));
  density = $state<Density>(read('density', DENSITIES));

  constructor() {
    document.documentElement.dataset.density = this.density;
  }

  nextTheme(): void {
    this.theme = THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length] as Theme;
    write('theme', this.theme);
    if (this.theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
  }

  nextDensity(): void {
    this.density = DENSITIES[(DENSITIES.indexOf(this.density) + 1) % DENSITIES.length] as Density;
    write('density', this.density);
    document.documentElement.dataset.density = this.density;
  }

  nextZone(): void {
    this.zone = this.zone === 'utc' ? 'local' : 'utc';
    write('zone', this.zone);
  }
}

export const settings = new Settings();
