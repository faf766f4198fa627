/** Turns that are indexed one after the other, on a stream that they share. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import type { IndexResult } from '../src/index.js';
import { DeadlineExceededError, InvalidArgumentError, RecallClient, user } from '../src/index.js';
import { collected } from './support/collected.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';
import { SilentSidecar } from './support/silent-sidecar.js';

let sidecar: Sidecar;

before(async () => {
  sidecar = await startSidecar();
});
after(async () => {
  await sidecar.stop();
});

const durable = { wait: 'durable' } as const;

function ids(result: IndexResult): string[] {
  return result.outcomes.map(({ messageId }) => messageId);
}

async function stored(resource: string): Promise<string[]> {
  const messages = await collected(sidecar.client().listMessages(resource));
  return messages.map(({ id }) => id);
}

test('each turn has its own answer, one after the other and many at once', async () => {
  const memory = sidecar.client();
  const resource = randomUUID();
  for (let turn = 0; turn < 5; turn += 1) {
    const result = await memory.index(resource, 't', [user('said', { id: `${turn}` })], durable);
    assert.deepEqual(ids(result), [`${turn}`]);
  }
  const numbers = Array.from({ length: 50 }, (_, number) => `at once ${number}`);
  const results = await Promise.all(
    numbers.map((id) => memory.index(resource, 't', [user('said', { id })], durable)),
  );
  assert.deepEqual(
    results.map(ids),
    numbers.map((id) => [id]),
  );
  assert.equal((await stored(resource)).length, 55);
});

test('a turn that is refused as a whole throws, and the next one is taken', async () => {
  const memory = sidecar.client();
  const resource = randomUUID();
  const metadata = { big: 'x'.repeat(70_000) };
  await assert.rejects(
    memory.index(resource, 't', [user('said', { id: 'm1' })], { ...durable, metadata }),
    InvalidArgumentError,
  );
  await memory.index(resource, 't', [user('said', { id: 'm2' })], durable);
  assert.deepEqual(await stored(resource), ['m2']);
});

test('a sidecar that was killed between two turns is told both', async () => {
  const memory = sidecar.client({ connectTimeoutMs: 30_000, timeoutMs: 60_000 });
  const resource = randomUUID();
  await memory.index(resource, 't', [user('said', { id: 'm1' })], durable);
  await sidecar.kill();
  const second = memory.index(resource, 't', [user('said', { id: 'm2' })], durable);
  await sidecar.start();
  assert.deepEqual(ids(await second), ['m2']);
  assert.deepEqual(await stored(resource), ['m1', 'm2']);
});

test('who waits no longer leaves nobody behind a call that never ends', async () => {
  const silent = await SilentSidecar.start();
  const memory = new RecallClient({ address: silent.address });
  const options = { ...durable, timeoutMs: 200 };
  for (let turn = 0; turn < 2; turn += 1) {
    await assert.rejects(memory.index('ada', 't', [user('x')], options), DeadlineExceededError);
    const arrived = await silent.next();
    assert.equal(arrived.name, 'indexStream');
    await arrived.cancelled;
  }
  await memory.close();
  silent.stop();
});

test('a turn shares the stream however much time it has', async () => {
  const silent = await SilentSidecar.start();
  const memory = new RecallClient({ address: silent.address });
  const leaving = new AbortController();
  const options = { ...durable, timeoutMs: 600_000, signal: leaving.signal };
  const waiting = assert.rejects(memory.index('ada', 't', [user('x')], options));
  assert.equal((await silent.next()).name, 'indexStream');
  leaving.abort();
  await waiting;
  await memory.close();
  silent.stop();
});

test('a script ends after its last turn, without closing anything', async () => {
  const script = `
    import { RecallClient, user } from ${JSON.stringify(new URL('../src/index.js', import.meta.url).href)};
    const memory = new RecallClient({ address: ${JSON.stringify(sidecar.address)} });
    await memory.index('ada', 't', [user('said', { id: 'm1' })], { wait: 'durable' });
    console.log('indexed');
  `;
  const args = ['--input-type=module', '--eval', script];
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 30_000 });
  assert.equal(stdout, 'indexed\n');
});
