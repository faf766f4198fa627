import eslint from '@eslint/js';
import tseslint from 'typescript-eslint';

/** Files that import nothing of these folders of src. */
function closed(files, folders) {
  const pattern = {
    regex: `^\\.{1,2}/(.*/)?(${folders})/`,
    message: 'Imports go from src/mastra and src/ai to src/adapters to src, and no other way.',
  };
  return { files: [files], rules: { 'no-restricted-imports': ['error', { patterns: [pattern] }] } };
}

/** Turns off what asks for types: for files whose packages may not be installed. */
export const withoutTypes = tseslint.configs.disableTypeChecked;

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
  // The rooms of src: the client knows no adapter, and no adapter the other. What both need lies in
  // src/adapters.
  closed('src/*.ts', 'mastra|ai|adapters'),
  closed('src/adapters/**', 'mastra|ai'),
  closed('src/mastra/**', 'ai'),
  closed('src/ai/**', 'mastra'),
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
