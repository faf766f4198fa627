/** A logger that fails makes no call fail. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { MessageInput } from '../src/index.js';
import { user } from '../src/index.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;

before(async () => {
  sidecar = await startSidecar();
});
after(async () => {
  await sidecar.stop();
});

interface FailingLogger {
  lines: number;
  warn(): unknown;
}

/** One that throws, and one whose promise rejects. */
function failing(): FailingLogger[] {
  const full = new Error('the disk is full');
  return [
    {
      lines: 0,
      warn(): unknown {
        this.lines += 1;
        throw full;
      },
    },
    {
      lines: 0,
      warn(): unknown {
        this.lines += 1;
        return Promise.reject(full);
      },
    },
  ];
}

test('what was indexed is indexed, and a recall in an outage is empty', async () => {
  const bad: MessageInput = { ...user('x', { id: 'bad' }), metadata: deep(20) };
  for (const logger of failing()) {
    const memory = sidecar.client({ logger, connectTimeoutMs: 50 });
    const { outcomes } = await memory.index('ada', 't', [user('good', { id: 'good' }), bad]);
    assert.equal(outcomes.find(({ messageId }) => messageId === 'bad')?.status, 'rejected');
    assert.equal(logger.lines, 1);
  }
  await sidecar.kill();
  for (const logger of failing()) {
    const memory = sidecar.client({ logger, connectTimeoutMs: 50 });
    const found = await memory.recall('ada', 'good');
    assert.notEqual(found.degraded, undefined);
    assert.equal(logger.lines, 1);
  }
});

/** Metadata deeper than the sidecar takes (16 levels). */
function deep(levels: number): { a: object } & MessageInput['metadata'] {
  let value = {};
  for (let level = 0; level < levels; level += 1) value = { a: value };
  return { a: value };
}
