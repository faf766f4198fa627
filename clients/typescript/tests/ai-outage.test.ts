/** The middleware while its sidecar is away, and afterwards: what was said waits, and is sent. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import type { RecallMiddleware } from '../src/ai/options.js';
import type { PromptMessage } from '../src/ai/prompt.js';
import { InvalidArgumentError, RecallResult, UnavailableError } from '../src/index.js';
import { asks, FACT, generated, QUESTION, quiet, says } from './support/ai-calls.js';
import { collected } from './support/collected.js';
import { FakeMemory } from './support/fake-memory.js';
import { startSidecar } from './support/sidecar.js';

/** A client whose sidecar is away until `back` is called. */
class AwayMemory extends FakeMemory {
  readonly down = new UnavailableError('no sidecar', { reason: 'UNREACHABLE', retryable: true });
  readonly #indexed = this.outcome;

  constructor() {
    super();
    this.leave();
  }

  leave(error: Error = this.down): void {
    this.outcome = () => {
      throw error;
    };
  }

  back(): void {
    this.outcome = this.#indexed;
    this.indexes.length = 0;
  }

  /** Texts of the calls to index, one after the other. */
  get sent(): (string | undefined)[][] {
    return this.indexes.map(({ messages }) => messages.map(({ text }) => text));
  }
}

async function turn(
  middleware: RecallMiddleware,
  question: string,
  answer: string,
  ...steps: PromptMessage[]
): Promise<void> {
  const prompt = [says('user', question), ...steps];
  const params = await middleware.transformParams({ params: { prompt } });
  await middleware.wrapGenerate({ doGenerate: generated(answer), params });
}

describe('what could not be indexed', () => {
  test('waits, and goes before what the next call recalls and says, once', async () => {
    const memory = new AwayMemory();
    const { middleware, failures } = quiet(memory);
    const from = Date.now();
    await turn(middleware, 'one', 'first');
    const to = Date.now();
    await turn(middleware, 'two', 'second');
    assert.equal(middleware.stats.pendingMessages, 4);
    assert.equal(failures.length, 2, 'each turn is told once, not each attempt');
    memory.back();
    const sentBefore: number[] = [];
    memory.answer = () => {
      sentBefore.push(memory.indexes.length);
      return new RecallResult();
    };
    await turn(middleware, 'three', 'third');
    assert.deepEqual(memory.sent, [
      ['one', 'first', 'two', 'second'],
      ['three', 'third'],
    ]);
    assert.deepEqual(sentBefore, [1]);
    for (const { createTime } of memory.indexes[0]?.messages.slice(0, 2) ?? []) {
      const time = createTime?.getTime() ?? 0;
      assert.ok(time >= from && time <= to, 'it has the time it was said at');
    }
    await turn(middleware, 'four', 'fourth');
    assert.equal(memory.sent.length, 3);
    const { messagesIndexed, messagesNotIndexed, messagesDropped, pendingMessages } =
      middleware.stats;
    assert.deepEqual(
      { messagesIndexed, messagesNotIndexed, messagesDropped, pendingMessages },
      { messagesIndexed: 8, messagesNotIndexed: 4, messagesDropped: 0, pendingMessages: 0 },
    );
  });

  test('waits for the other middleware of the same client too', async () => {
    const memory = new AwayMemory();
    await turn(quiet(memory).middleware, 'one', 'first');
    memory.back();
    const next = quiet(memory, { resourceId: 'u2' }).middleware;
    assert.equal(next.stats.pendingMessages, 2);
    await turn(next, 'two', 'second');
    assert.deepEqual(
      memory.indexes.map(({ resourceId }) => resourceId),
      ['u1', 'u2'],
    );
  });

  test('keeps the order of a turn of several steps', async () => {
    const memory = new AwayMemory();
    const { middleware } = quiet(memory);
    await turn(middleware, QUESTION, 'I look.');
    await turn(middleware, QUESTION, 'No chicken.', says('assistant', 'I look.'));
    assert.equal(middleware.stats.pendingMessages, 3);
    memory.back();
    assert.equal(await middleware.flush(), 0);
    assert.deepEqual(memory.sent, [[QUESTION, 'I look.', 'No chicken.']]);
    const times = (memory.indexes[0]?.messages ?? []).map(({ createTime }) => Number(createTime));
    assert.deepEqual(
      times,
      [...times].sort((one, other) => one - other),
    );
  });

  test('pushes out the oldest above retryQueueMessagesMax, which is counted and told', async () => {
    const memory = new AwayMemory();
    const { middleware, lines } = quiet(memory, { retryQueueMessagesMax: 3 });
    await turn(middleware, 'one', 'first');
    await turn(middleware, 'two', 'second');
    assert.equal(middleware.stats.messagesDropped, 1);
    assert.deepEqual(lines.slice(-1), [
      '[SemanticRecall] more messages wait than are kept; the oldest are not remembered',
    ]);
    memory.back();
    assert.equal(await middleware.flush(), 0);
    assert.deepEqual(memory.sent, [['first', 'two', 'second']]);
  });

  test('does not wait where retryQueueMessagesMax is 0, or it can never succeed', async () => {
    const memory = new AwayMemory();
    const none = quiet(memory, { retryQueueMessagesMax: 0 });
    await turn(none.middleware, 'one', 'first');
    assert.equal(none.failures.length, 1);
    const refusing = new AwayMemory();
    refusing.leave(InvalidArgumentError.of('threadId', 'is too long'));
    const refused = quiet(refusing);
    await turn(refused.middleware, 'one', 'first');
    assert.equal(refused.failures.length, 1);
    for (const { middleware } of [none, refused]) {
      const { messagesDropped, messagesNotIndexed, pendingMessages } = middleware.stats;
      assert.deepEqual([messagesDropped, messagesNotIndexed, pendingMessages], [2, 2, 0]);
    }
  });
});

describe('retry', () => {
  test('sends at once, under the same time; the next call does not send it again', async () => {
    const memory = new AwayMemory();
    const { middleware, failures } = quiet(memory);
    await turn(middleware, 'one', 'first');
    await turn(middleware, QUESTION, 'I look.');
    await turn(middleware, QUESTION, 'No chicken.', says('assistant', 'I look.'));
    memory.back();
    for (const { retry } of failures) await retry?.();
    assert.equal(middleware.stats.pendingMessages, 0);
    const [, asked, again] = memory.indexes.map(({ messages }) => messages[0]);
    assert.deepEqual(asked, again, 'the question is the same each time');
    assert.equal(memory.sent.length, 3);
    await turn(middleware, 'two', 'second');
    assert.deepEqual(memory.sent.slice(3), [['two', 'second']]);
  });

  test('that fails lets the messages wait on', async () => {
    const memory = new AwayMemory();
    const { middleware, failures } = quiet(memory);
    await turn(middleware, 'one', 'first');
    await assert.rejects(failures[0]?.retry?.() ?? Promise.resolve(), (e) => e === memory.down);
    assert.equal(middleware.stats.pendingMessages, 2);
  });
});

test('a call waits half of its time at most for what waits, and its turn waits behind', async () => {
  const memory = new AwayMemory();
  const { middleware, failures } = quiet(memory, { timeoutMs: 40 });
  await turn(middleware, 'one', 'first');
  memory.back();
  let release = (): void => undefined;
  memory.held = new Promise((resolve) => {
    release = resolve;
  });
  await turn(middleware, 'two', 'second');
  const timeoutMs = memory.recalls.at(-1)?.options?.timeoutMs ?? 40;
  assert.ok(timeoutMs < 40, `${timeoutMs}`);
  assert.equal(middleware.stats.pendingMessages, 4);
  const last = failures.at(-1)?.error;
  assert.ok(last instanceof UnavailableError && last.reason === 'WAITING');
  release();
  assert.equal(await middleware.flush(), 0);
  assert.deepEqual(memory.sent, [
    ['one', 'first'],
    ['two', 'second'],
  ]);
});

test('flush says how much waits still, and what it failed with', async () => {
  const memory = new AwayMemory();
  const { middleware, failures } = quiet(memory);
  await turn(middleware, 'one', 'first');
  failures.length = 0;
  assert.equal(await middleware.flush(), 2);
  assert.deepEqual(failures, [{ operation: 'index', error: memory.down, retry: undefined }]);
  memory.back();
  assert.equal(await middleware.flush(), 0);
  assert.equal(await middleware.flush(), 0);
  assert.equal(memory.indexes.length, 1);
});

test('a real sidecar that comes back is told, and what was said meanwhile is found', async () => {
  const sidecar = await startSidecar();
  try {
    const client = sidecar.client({ connectTimeoutMs: 2_000 });
    const { middleware } = quiet(new FakeMemory(), { client, timeoutMs: 20_000 });
    await sidecar.kill();
    await turn(middleware, FACT, 'Noted.');
    assert.equal(middleware.stats.pendingMessages, 2);
    await sidecar.start();
    const { prompt } = await middleware.transformParams({ params: asks() });
    assert.ok(JSON.stringify(prompt).includes(FACT));
    const texts = (await collected(client.listMessages('u1'))).map(({ text }) => text);
    assert.deepEqual(texts, [FACT, 'Noted.']);
    assert.equal(middleware.stats.pendingMessages, 0);
  } finally {
    await sidecar.stop();
  }
});
