/** A client must not keep a process alive that has nothing else to do. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { ControlledSidecar } from './support/controlled-sidecar.js';

const CLIENT = new URL('../src/index.js', import.meta.url).href;

test('a script ends after its last recall, without closing anything', async () => {
  const sidecar = await ControlledSidecar.start();
  const script = `
    import { RecallClient } from ${JSON.stringify(CLIENT)};
    const memory = new RecallClient({ address: ${JSON.stringify(sidecar.address)} });
    const found = await memory.recall('ada', 'still here');
    console.log(found.contextText);
  `;
  const args = ['--input-type=module', '--eval', script];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { timeout: 30_000 });
  assert.deepEqual([stdout, stderr], ['still here\n', '']);
  assert.equal(sidecar.streamedRecalls, 1);
  sidecar.stop();
});
