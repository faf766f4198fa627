/** Calls under way that their callers end. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { CallOptions } from '../src/index.js';
import { RecallClient, user } from '../src/index.js';
import { collected } from './support/collected.js';
import { SilentSidecar } from './support/silent-sidecar.js';

let sidecar: SilentSidecar;
let memory: RecallClient;

before(async () => {
  sidecar = await SilentSidecar.start();
  memory = new RecallClient({ address: sidecar.address, timeoutMs: 600_000 });
});
after(async () => {
  await memory.close();
  sidecar.stop();
});

const batches = [{ resourceId: 'ada', threadId: 't', messages: [user('hello')] }];
const calls: Record<string, (options: CallOptions) => Promise<unknown>> = {
  index: (options) => memory.index('ada', 't', [user('hello')], options),
  indexStream: (options) => collected(memory.indexStream(batches, options)),
  'indexStream, of turns': (options) =>
    memory.index('ada', 't', [user('hello')], { wait: 'durable', timeoutMs: 20_000, ...options }),
  listMessages: (options) => collected(memory.listMessages('ada', options)),
  queryVectors: (options) => memory.vectors.query('ada', 'names', { values: [1, 0], ...options }),
  verify: (options) => collected(memory.admin.verify(options)),
};

for (const [name, call] of Object.entries(calls)) {
  test(
    `${name}: rejects with the signal's reason, and ends on the wire`,
    {
      timeout: 10_000,
    },
    async () => {
      const stop = new AbortController();
      const reason = new Error('enough');
      const ended = assert.rejects(call({ signal: stop.signal }), (error) => error === reason);
      const arrived = await sidecar.next();
      assert.equal(arrived.name, name.split(',')[0]);
      stop.abort(reason);
      await ended;
      await arrived.cancelled;
    },
  );
}
