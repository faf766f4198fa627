import eslint from '@eslint/js';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['dist/', 'build/', 'node22/', 'src/v1/*_pb.ts', 'eslint.config.js'] },
  eslint.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      'max-lines': ['error', 500],
      'max-lines-per-function': ['error', { max: 70 }],
      'max-params': ['error', 6],
      'no-console': 'error',
    },
  },
  {
    // node:test's own functions return promises that it awaits itself; a suite is one function.
    files: ['tests/**', 'conformance/**'],
    rules: {
      '@typescript-eslint/no-floating-promises': [
        'error',
        {
          allowForKnownSafeCalls: [
            {
              from: 'package',
              name: [
                'test',
                'it',
                'describe',
                'suite',
                'before',
                'after',
                'beforeEach',
                'afterEach',
              ],
              package: 'node:test',
            },
          ],
        },
      ],
      'max-lines-per-function': 'off',
    },
  },
);
