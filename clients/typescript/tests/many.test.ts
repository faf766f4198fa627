/** Many recalls at once on one client. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { RecallClient } from '../src/index.js';
import { user } from '../src/index.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;
let memory: RecallClient;
before(async () => {
  sidecar = await startSidecar();
  memory = sidecar.client();
});
after(() => sidecar.stop());

test('a thousand recalls at once each get their own answer', async () => {
  const messages = Array.from({ length: 50 }, (_, at) =>
    user(`The code of door ${at} is ${at * 7919}`, { id: `door${at}` }),
  );
  await memory.index('doors', 't', messages);
  const asked = Array.from({ length: 1000 }, (_, at) => at % 50);
  const found = await Promise.all(
    asked.map((door) =>
      memory.recall('doors', `The code of door ${door} is ${door * 7919}`, {
        topK: 1,
        messageRange: 0,
        timeoutMs: 60_000,
        ranking: { mode: 'dense' },
      }),
    ),
  );
  const answers = found.map(({ hits, degraded }) => degraded ?? hits[0]?.message.id);
  assert.deepEqual(
    answers,
    asked.map((door) => `door${door}`),
  );
});
