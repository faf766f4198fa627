/** A sidecar that is away, restarts, is late or full: what becomes of the calls. */
import assert from 'node:assert/strict';
import { once, setMaxListeners } from 'node:events';
import type { Socket } from 'node:net';
import { createServer } from 'node:net';
import { after, afterEach, beforeEach, describe, test } from 'node:test';
import * as grpc from '@grpc/grpc-js';
import type { ClientOptions, Logger } from '../src/index.js';
import {
  DeadlineExceededError,
  FailedPreconditionError,
  RecallClient,
  ResourceExhaustedError,
  UnavailableError,
  user,
} from '../src/index.js';
import { ControlledSidecar } from './support/controlled-sidecar.js';
import { freePort, startSidecar } from './support/sidecar.js';

const SILENT: Logger = { warn: () => undefined };

describe('a sidecar that behaves as told', () => {
  let sidecar: ControlledSidecar;
  let memory: RecallClient;
  const clientOf = (options: ClientOptions = {}) =>
    new RecallClient({ address: sidecar.address, logger: SILENT, ...options });
  beforeEach(async () => {
    sidecar = await ControlledSidecar.start();
    memory = clientOf();
  });
  afterEach(async () => {
    await memory.close();
    sidecar.stop();
  });

  test('recalls that follow each other share a stream', async () => {
    for (const query of ['one', 'two', 'three']) {
      assert.equal((await memory.recall('ada', query)).contextText, query);
    }
    assert.deepEqual([sidecar.streams.length, sidecar.streamedRecalls], [1, 3]);
    assert.deepEqual(sidecar.singleCalls, []);
  });

  test('one that waits for what was indexed goes by itself', async () => {
    await memory.recall('ada', 'one', { readToken: 'token' });
    assert.deepEqual([sidecar.singleCalls, sidecar.streamedRecalls], [['recall'], 0]);
  });

  test('a stream that nobody waits for is ended', async () => {
    await memory.recall('ada', 'one');
    await sidecar.streamEnded(0);
    assert.equal((await memory.recall('ada', 'two')).contextText, 'two');
    assert.equal(sidecar.streams.length, 2);
  });

  test('behind 64 slow recalls of a stream nobody waits', async () => {
    const { recalled } = sidecar;
    sidecar.recalled = (request) => (request.query === 'slow' ? undefined : recalled(request));
    const aborted = new AbortController();
    setMaxListeners(64, aborted.signal);
    const slow = Array.from({ length: 64 }, () =>
      memory.recall('ada', 'slow', { signal: aborted.signal }),
    );
    assert.equal((await memory.recall('ada', 'quick')).contextText, 'quick');
    assert.deepEqual([sidecar.streamedRecalls, sidecar.singleCalls], [64, ['recall']]);
    aborted.abort(new Error('enough'));
    const ends = await Promise.allSettled(slow);
    assert.ok(ends.every((end) => end.status === 'rejected' && end.reason instanceof Error));
  });

  test('recalls whose stream breaks are answered all the same', async () => {
    const { recalled } = sidecar;
    sidecar.recalled = () => undefined;
    const asked = ['one', 'two'].map((query) => memory.recall('ada', query));
    while (sidecar.streamedRecalls < 2) await new Promise(setImmediate);
    sidecar.recalled = recalled;
    const [stream] = sidecar.streams;
    assert.ok(stream !== undefined);
    sidecar.endStream(stream);
    const found = await Promise.all(asked);
    assert.deepEqual(
      found.map(({ contextText }) => contextText),
      ['one', 'two'],
    );
    assert.deepEqual(sidecar.singleCalls, ['recall', 'recall']);
    await memory.recall('ada', 'three');
    assert.equal(sidecar.streams.length, 2);
  });

  test('a session ends when those who wait have been answered, not for those who left', async () => {
    const session = memory.recallStream();
    const { recalled } = sidecar;
    sidecar.recalled = () => undefined;
    const stop = new AbortController();
    const left = session.recall('ada', 'one', { signal: stop.signal });
    while (sidecar.streamedRecalls === 0) await new Promise(setImmediate);
    stop.abort(new Error('enough'));
    await assert.rejects(left, { message: 'enough' });
    await session.close();

    sidecar.recalled = recalled;
    const other = memory.recallStream();
    const asked = other.recall('ada', 'two');
    while (sidecar.streams.length < 2) await new Promise(setImmediate);
    await other.close();
    assert.equal((await asked).contextText, 'two');
  });

  test('index waits for a full queue as long as it is told to', async () => {
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, retryAfterMs: 150 });
    sidecar.failures.push({ code: grpc.status.UNAVAILABLE });
    const start = performance.now();
    await memory.index('ada', 't', [user('hello')]);
    assert.ok(performance.now() - start >= 150);
    assert.deepEqual(sidecar.singleCalls, ['index', 'index', 'index']);
  });

  test('index does not wait beyond its time, and says what was wrong', async () => {
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, retryAfterMs: 60_000 });
    await assert.rejects(
      memory.index('ada', 't', [user('hello')], { timeoutMs: 5_000 }),
      (error) => {
        assert.ok(error instanceof ResourceExhaustedError);
        assert.deepEqual(
          [error.reason, error.retryable, error.retryAfterMs, error.message],
          ['TOLD', true, 60_000, 'as the test says'],
        );
        return true;
      },
    );
    assert.equal(sidecar.singleCalls.length, 1);
  });

  test('a call is sent four times at most', async () => {
    for (let at = 0; at < 4; at++) sidecar.failures.push({ code: grpc.status.UNAVAILABLE });
    await assert.rejects(memory.index('ada', 't', [user('hello')]), UnavailableError);
    assert.equal(sidecar.singleCalls.length, 4);
  });

  test('a sidecar that starts is waited for, but not again and again', async () => {
    const starting = { code: grpc.status.UNAVAILABLE, reason: 'STARTING', retryAfterMs: 20 };
    const patient = clientOf({ connectTimeoutMs: 60_000 });
    for (let at = 0; at < 8; at++) sidecar.failures.push(starting);
    await patient.index('ada', 't', [user('hello')]);
    assert.equal(sidecar.singleCalls.length, 9);
    await patient.close();

    sidecar.failures.push(...Array.from({ length: 50 }, () => starting));
    const impatient = clientOf({ connectTimeoutMs: 150 });
    await assert.rejects(impatient.index('ada', 't', [user('a')]), { reason: 'STARTING' });
    const sent = [...sidecar.singleCalls].length;
    assert.ok(sent > 10, String(sent));
    await assert.rejects(impatient.index('ada', 't', [user('a')]), { reason: 'STARTING' });
    assert.equal(sidecar.singleCalls.length, sent + 1);
    await impatient.close();
  });

  test('what must not be sent twice is sent once', async () => {
    sidecar.failures.push({ code: grpc.status.UNAVAILABLE });
    await assert.rejects(memory.transferThread('ada', 't', 'bob'), UnavailableError);
    assert.deepEqual(sidecar.singleCalls, ['transferThread']);
  });

  test('what cannot succeed later is not sent again', async () => {
    sidecar.failures.push({ code: grpc.status.FAILED_PRECONDITION, retryable: false });
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, retryable: false });
    await assert.rejects(memory.index('ada', 't', [user('a')]), FailedPreconditionError);
    await assert.rejects(memory.index('ada', 't', [user('a')]), ResourceExhaustedError);
    assert.equal(sidecar.singleCalls.length, 2);
  });

  test('a recall fails open when the sidecar is full, and says so once in the log', async () => {
    const said: unknown[] = [];
    const open = clientOf({
      logger: { warn: (message, fields) => said.push({ message, fields }) },
    });
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, reason: 'QUEUE_FULL' });
    const found = await open.recall('ada', 'my secret', { readToken: 't' });
    assert.deepEqual(
      [found.degraded, found.messages, found.contextText, found.info],
      ['QUEUE_FULL', [], '', undefined],
    );
    assert.equal(said.length, 1);
    assert.ok(!JSON.stringify(said).includes('secret'));
    sidecar.failures.push({
      code: grpc.status.DATA_LOSS,
      reason: 'PAGE_DAMAGED',
      retryable: false,
    });
    assert.equal((await open.recall('ada', 'x', { readToken: 't' })).degraded, 'DATA_LOSS');
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, retryable: false });
    const tooLarge = open.recall('ada', 'x', { readToken: 't' });
    await assert.rejects(tooLarge, ResourceExhaustedError);
    const closed = clientOf({ failOpen: false });
    sidecar.failures.push({ code: grpc.status.RESOURCE_EXHAUSTED, reason: 'QUEUE_FULL' });
    const failing = closed.recall('ada', 'x', { readToken: 't' });
    await assert.rejects(failing, { reason: 'QUEUE_FULL' });
    await Promise.all([open.close(), closed.close()]);
  });

  for (const readToken of ['', 'token']) {
    const way = readToken === '' ? 'on the stream' : 'by itself';

    test(`a recall ${way} ends with its time, and with its signal`, async () => {
      sidecar.recalled = () => undefined;
      const strict = clientOf({ failOpen: false });
      await assert.rejects(
        strict.recall('ada', 'x', { timeoutMs: 50, readToken }),
        DeadlineExceededError,
      );
      const late = await memory.recall('ada', 'x', { timeoutMs: 50, readToken });
      assert.equal(late.degraded, 'DEADLINE_EXCEEDED');
      const stop = new AbortController();
      const asked = memory.recall('ada', 'x', { signal: stop.signal, readToken });
      const seen = sidecar.streamedRecalls + sidecar.singleCalls.length;
      while (sidecar.streamedRecalls + sidecar.singleCalls.length === seen) {
        await new Promise(setImmediate);
      }
      stop.abort('I changed my mind');
      await assert.rejects(asked, (reason) => reason === 'I changed my mind');
      const before = memory.recall('ada', 'x', { signal: stop.signal, readToken });
      await assert.rejects(before, (reason) => reason === 'I changed my mind');
      await strict.close();
    });

    test(`a recall ${way} rejects when its client is closed`, async () => {
      sidecar.recalled = () => undefined;
      const asked = memory.recall('ada', 'x', { readToken });
      while (sidecar.streamedRecalls + sidecar.singleCalls.length === 0) {
        await new Promise(setImmediate);
      }
      await memory.close();
      await assert.rejects(asked, { name: 'CancelledError', reason: 'CLIENT_CLOSED' });
      await assert.rejects(memory.recall('ada', 'x'), { reason: 'CLIENT_CLOSED' });
    });
  }

  test('the token goes with every call', async () => {
    const trusted = clientOf({ token: 'sesame-open-sesame' });
    await trusted.index('ada', 't', [user('hello')]);
    assert.deepEqual(sidecar.metadata.get('authorization'), ['Bearer sesame-open-sesame']);
    await trusted.recall('ada', 'hello');
    assert.deepEqual(sidecar.metadata.get('authorization'), ['Bearer sesame-open-sesame']);
    await trusted.close();
  });
});

test(
  'nobody at the address: no memories, index throws, soon at once',
  { timeout: 60_000 },
  async () => {
    const address = `127.0.0.1:${await freePort()}`;
    const memory = new RecallClient({ address, connectTimeoutMs: 300, logger: SILENT });
    assert.equal((await memory.recall('ada', 'x')).degraded, 'UNREACHABLE');
    await assert.rejects(memory.index('ada', 't', [user('x')]), (error) => {
      assert.ok(error instanceof UnavailableError);
      assert.ok(error.message.includes(address));
      return error.reason === 'UNREACHABLE' && error.retryable;
    });
    // Waiting each time would take a minute and a half.
    for (let at = 0; at < 300; at++) {
      assert.equal((await memory.recall('ada', 'x')).degraded, 'UNREACHABLE');
    }
    await memory.close();
  },
);

test('a listener that is no sidecar is told apart from nobody', async () => {
  const sockets: Socket[] = [];
  const mute = createServer((socket) => {
    socket.on('error', () => undefined);
    sockets.push(socket);
  }).listen(0, '127.0.0.1');
  await once(mute, 'listening');
  const at = mute.address();
  assert.ok(at !== null && typeof at === 'object');
  const memory = new RecallClient({
    address: `127.0.0.1:${at.port}`,
    connectTimeoutMs: 200,
    failOpen: false,
  });
  await assert.rejects(memory.recall('ada', 'x'), { reason: 'NO_CONNECTION' });
  await memory.close();
  mute.close();
  for (const socket of sockets) socket.destroy();
});

describe('a real sidecar that is killed and started again', () => {
  let stop: () => Promise<void> = () => Promise.resolve();
  after(() => stop());

  test('degraded while it is away, whole when it is back; nothing acknowledged is lost', async () => {
    const sidecar = await startSidecar();
    stop = () => sidecar.stop();
    const memory = sidecar.client({ connectTimeoutMs: 300, logger: SILENT });
    await memory.index('ada', 't', [user('Rex is allergic to chicken', { id: 'm1' })]);
    const session = memory.recallStream();
    const recalled = async () =>
      (await memory.recall('ada', 'Rex', { messageRange: 0 })).messages.map((m) => m.message.id);
    assert.deepEqual(await recalled(), ['m1']);
    assert.equal((await session.recall('ada', 'Rex')).messages.length, 1);

    const underWay = Array.from({ length: 20 }, (_, at) => memory.recall('ada', `Rex ${at}`));
    await sidecar.kill('SIGKILL');
    const ends = await Promise.all(underWay);
    assert.ok(ends.every(({ degraded, hits }) => degraded === 'UNREACHABLE' || hits.length === 1));
    assert.equal((await memory.recall('ada', 'Rex')).degraded, 'UNREACHABLE');
    assert.equal((await session.recall('ada', 'Rex')).degraded, 'UNREACHABLE');
    await assert.rejects(memory.index('ada', 't', [user('lost?')]), UnavailableError);

    await sidecar.start();
    assert.deepEqual(await recalled(), ['m1']);
    assert.equal((await session.recall('ada', 'Rex')).messages.length, 1);
    const again = await memory.index('ada', 't', [user('Rex likes fish', { id: 'm2' })]);
    assert.equal(again.outcomes[0]?.status, 'indexed');
    await session.close();
  });

  test('an index call waits for a sidecar that restarts', async () => {
    const sidecar = await startSidecar({ tcp: true });
    await stop();
    stop = () => sidecar.stop();
    const memory = sidecar.client({ connectTimeoutMs: 30_000, timeoutMs: 60_000 });
    await memory.recall('ada', 'x');
    await sidecar.kill('SIGTERM');
    const indexing = memory.index('ada', 't', [user('Rex likes fish', { id: 'm1' })]);
    await sidecar.start();
    assert.equal((await indexing).outcomes[0]?.status, 'indexed');
  });
});
