import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['dist/', 'screenshots/', 'src/api/schema.d.ts'] },
  js.configs.recommended,
  ts.configs.recommended,
  svelte.configs.recommended,
  // Formatting is Prettier's.
  svelte.configs.prettier,
  { files: ['**/*.svelte', '**/*.svelte.ts'], languageOptions: { parserOptions: { parser: ts.parser } } },
  {
    rules: {
      // svelte-check and tsc know the names better.
      'no-undef': 'off',
      '@typescript-eslint/no-unused-vars': [
        'error',
        { argsIgnorePattern: '^_', varsIgnorePattern: '^_', ignoreRestSiblings: true },
      ],
      eqeqeq: 'error',
      'no-console': ['error', { allow: ['error'] }],
      'svelte/no-at-html-tags': 'error',
      // svelte-check fails on unused ones, and does not take a reason after the colon for more of them.
      'svelte/no-unused-svelte-ignore': 'off',
      // Sets and maps here are replaced, not changed.
      'svelte/prefer-svelte-reactivity': 'off',
      // `{' '}` keeps a space between two elements.
      'svelte/no-useless-mustaches': 'off',
    },
  },
  { files: ['e2e/**'], rules: { 'no-console': 'off' } },
);
