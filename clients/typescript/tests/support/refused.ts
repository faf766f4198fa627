/** Options that are refused before anything is asked of a sidecar. */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { InvalidArgumentError } from '../../src/index.js';

/** One test each: options, and the name that the error gives. */
export function refuses(
  make: (options: object) => unknown,
  cases: readonly (readonly [object, string])[],
): void {
  for (const [options, field] of cases) {
    test(`refuses ${JSON.stringify(options)}, naming ${field}`, () => {
      assert.throws(
        () => make(options),
        (error: unknown) => {
          assert.ok(error instanceof InvalidArgumentError, String(error));
          assert.equal(error.fieldViolations[0]?.field, field);
          return true;
        },
      );
    });
  }
}
