/** A client must not keep a process alive that has nothing else to do. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { ControlledSidecar } from './support/controlled-sidecar.js';

const CLIENT = new URL('../src/index.js', import.meta.url).href;

async function runToItsEnd(script: string): Promise<string> {
  const args = ['--input-type=module', '--eval', script];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { timeout: 30_000 });
  assert.equal(stderr, '');
  return stdout;
}

test('a script ends after its last recall, without closing anything', async () => {
  const sidecar = await ControlledSidecar.start();
  const stdout = await runToItsEnd(`
    import { RecallClient } from ${JSON.stringify(CLIENT)};
    const memory = new RecallClient({ address: ${JSON.stringify(sidecar.address)} });
    const found = await memory.recall('ada', 'still here');
    console.log(found.contextText);
  `);
  assert.equal(stdout, 'still here\n');
  assert.equal(sidecar.streamedRecalls, 1);
  sidecar.stop();
});

test('a script ends after recalls that came when the stream of earlier ones had ended', async () => {
  const sidecar = await ControlledSidecar.start();
  // Node is about to end when nothing keeps it alive: then the stream has ended.
  const stdout = await runToItsEnd(`
    import { RecallClient } from ${JSON.stringify(CLIENT)};
    const memory = new RecallClient({ address: ${JSON.stringify(sidecar.address)} });
    let times = 0;
    async function recall() {
      times += 1;
      const found = await memory.recall('ada', 'time ' + times);
      console.log(found.contextText);
    }
    process.on('beforeExit', () => {
      if (times < 3) void recall();
    });
    await recall();
  `);
  assert.equal(stdout, 'time 1\ntime 2\ntime 3\n');
  assert.equal(sidecar.streamedRecalls, 3);
  sidecar.stop();
});
