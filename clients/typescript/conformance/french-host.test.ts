/** Dates in prompts on a host that speaks French and lives elsewhere: S12 once more, in a process so. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const CASES = fileURLToPath(new URL('mastra.test.js', import.meta.url));

test('S12 holds where the host is French', async () => {
  const env: NodeJS.ProcessEnv = { ...process.env, LANG: 'fr_FR.UTF-8', LC_ALL: 'fr_FR.UTF-8' };
  // Else it would take itself for a part of this run, and write nothing to read.
  delete env['NODE_TEST_CONTEXT'];
  const options = { env, timeout: 120_000 };
  const locale = 'Intl.DateTimeFormat().resolvedOptions().locale';
  const { stdout: spoken } = await run(process.execPath, ['-p', locale], options);
  assert.equal(spoken.trim(), 'fr-FR');
  const one = ['--test-reporter=tap', '--test-name-pattern=S12, ', CASES];
  const { stdout } = await run(process.execPath, one, options);
  assert.match(stdout, /^ *ok \d+ - S12, ours: [^#]*$/m);
  assert.match(stdout, /^# fail 0$/m);
});
