import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { RecallClient } from '../src/index.js';
import { assistant, user } from '../src/index.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;
let memory: RecallClient;
before(async () => {
  sidecar = await startSidecar();
  memory = sidecar.client();
});
after(() => sidecar.stop());

test('what was indexed is recalled, with its neighbours', async () => {
  const indexed = await memory.index('ada', 'dogs', [
    user('Rex is allergic to chicken', { id: 'm1', createTime: new Date('2024-05-01T10:00:00Z') }),
    assistant('I will remember that.', { id: 'm2' }),
  ]);
  assert.deepEqual(
    indexed.outcomes.map(({ messageId, status }) => [messageId, status]),
    [
      ['m1', 'indexed'],
      ['m2', 'indexed'],
    ],
  );
  const found = await memory.recall('ada', 'What can Rex not eat?', { topK: 1 });
  assert.deepEqual(
    found.messages.map(({ message, hit }) => [message.id, hit]),
    [
      ['m1', true],
      ['m2', false],
    ],
  );
  assert.equal(found.degraded, undefined);
});
