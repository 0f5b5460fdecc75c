import { rmSync } from 'node:fs';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';
import type { Plugin } from 'vite';

/** `dist` itself stays, so that the server's build can watch it; what an earlier build left in it goes. */
const fresh: Plugin = {
  name: 'fresh',
  apply: 'build',
  buildStart: () => rmSync('dist/assets', { recursive: true, force: true }),
};

/** The server says how deep an address is; while developing there is only one root. */
const root: Plugin = {
  name: 'root',
  apply: 'serve',
  transformIndexHtml: (html) => html.replace('<base href="./" />', '<base href="/" />'),
};

const server = process.env.COMEBACK_SERVER ?? 'http://127.0.0.1:7330';

export default defineConfig({
  base: './',
  plugins: [svelte(), fresh, root],
  build: { emptyOutDir: false, modulePreload: { polyfill: false }, target: 'es2022', assetsInlineLimit: 0 },
  server: { proxy: { '/api': server, '/readyz': server } },
  test: { include: ['src/**/*.test.ts'] },
});
