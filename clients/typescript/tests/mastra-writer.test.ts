/** What a process writes to one sidecar, in which order, and what becomes of what it refuses. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';

import type { CallOptions, IndexOptions, MessageInput } from '../src/index.js';
import {
  IndexResult,
  InvalidArgumentError,
  RecallClient,
  ResourceExhaustedError,
  UnavailableError,
} from '../src/index.js';
import { toIndexable } from '../src/mastra/messages.js';
import { Reporter } from '../src/mastra/reporter.js';
import type { Batch } from '../src/adapters/retry-queue.js';
import { QUEUE_BYTES_MAX, RetryQueue } from '../src/adapters/retry-queue.js';
import { MemoryWriter } from '../src/adapters/writer.js';
import { KeptLog, said } from './support/mastra.js';

/** A client without a sidecar: what `index` is given is kept, and `answer` decides. */
class FakeClient extends RecallClient {
  readonly calls: string[] = [];
  readonly texts: (string | undefined)[] = [];
  readonly options: (CallOptions | undefined)[] = [];
  answer: (ids: string[]) => Promise<void> = () => Promise.resolve();

  override async index(
    resourceId: string,
    threadId: string,
    messages: readonly MessageInput[],
    options?: IndexOptions & CallOptions,
  ): Promise<IndexResult> {
    this.options.push(options);
    this.texts.push(...messages.map(({ text }) => text));
    const ids = messages.map((message) => message.id ?? '');
    this.calls.push(`${resourceId}/${threadId}: ${ids.join(' ')}`);
    await this.answer(ids);
    const outcomes = ids.map((messageId) => ({
      messageId,
      status: messageId.startsWith('bad') ? ('rejected' as const) : ('indexed' as const),
      error: undefined,
    }));
    const info = { embeddingsComputed: 0, embeddingsCached: 0, durableUs: 0, totalUs: 0 };
    return new IndexResult({ outcomes, readToken: '', info });
  }
}

function batch(ids: string, threadId = 't', text = 'x'): Batch {
  const messages = ids.split(' ').map((id) => {
    const indexable = toIndexable(said('user', text, { id }));
    assert.ok(indexable !== undefined);
    return indexable;
  });
  return { resourceId: 'r', threadId, metadata: {}, messages };
}

function writing(): {
  client: FakeClient;
  writer: MemoryWriter;
  log: KeptLog;
  reporter: Reporter;
  write: (batch: Batch) => Promise<boolean>;
  flush: () => Promise<void>;
} {
  const client = new FakeClient();
  const writer = new MemoryWriter(client, 100);
  const log = new KeptLog();
  const reporter = new Reporter(log);
  const options = { wait: 'durable', reporter } as const;
  return {
    client,
    writer,
    log,
    reporter,
    write: (one) => writer.write(one, options),
    flush: () => writer.flush(options),
  };
}

/** From now on calls are not answered until what is returned is called. */
function held(client: FakeClient): () => void {
  let release = () => undefined;
  const released = new Promise<void>((resolve) => {
    release = () => {
      resolve();
      return undefined;
    };
  });
  client.answer = () => released;
  return () => {
    release();
  };
}

const away = () => Promise.reject(new UnavailableError('away', { retryable: true }));
const here = () => Promise.resolve();

describe('the writer', () => {
  test('all of a turn is one call', async () => {
    const { client, write } = writing();
    assert.equal(await write(batch('a b c d e f')), true);
    assert.deepEqual(client.calls, ['r/t: a b c d e f']);
  });

  test('what waits goes first, and the newest of a message is what stays', async () => {
    const { client, writer, write } = writing();
    client.answer = away;
    assert.equal(await write(batch('a b')), false);
    assert.equal(await write(batch('b c')), false);
    assert.equal(writer.pendingMessages, 3);
    client.answer = here;
    client.calls.length = 0;
    assert.equal(await write(batch('d', 'u')), true);
    assert.deepEqual(client.calls, ['r/t: a b c', 'r/u: d']);
    assert.equal(writer.pendingMessages, 0);
  });

  test('a change that comes while the older is sent in vain stays', async () => {
    const { client, writer, reporter, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't', 'old'));
    let fail = (): void => undefined;
    client.answer = () =>
      new Promise((_, reject) => {
        fail = () => {
          reject(new UnavailableError('away', { retryable: true }));
        };
      });
    const flushing = flush();
    const options = { wait: 'durable', reporter, signal: AbortSignal.abort() } as const;
    assert.equal(await writer.write(batch('a', 't', 'new'), options), false);
    fail();
    await flushing;
    client.answer = here;
    await flush();
    assert.equal(writer.pendingMessages, 0);
    assert.equal(client.texts.at(-1), 'new');
  });

  for (const isLate of [false, true]) {
    const when = isLate ? 'after' : 'before';
    test(`a change that is acknowledged ${when} an older call has failed stays`, async () => {
      const { client, writer, write, flush } = writing();
      client.answer = async (ids) => {
        const isOlder = ids.length > 1;
        if (isOlder !== isLate) await nextTurn();
        if (isOlder) await away();
      };
      const older = write(batch('a b', 't', 'old'));
      const newer = write(batch('a', 't', 'new'));
      assert.deepEqual(await Promise.all([older, newer]), [false, true]);
      assert.equal(writer.pendingMessages, 1);
      client.answer = here;
      client.texts.length = client.calls.length = 0;
      await flush();
      assert.deepEqual([client.calls, client.texts], [['r/t: b'], ['old']]);
    });
  }

  test('one that fails each time does not keep the others from being sent', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't'));
    await write(batch('b', 'u'));
    client.answer = (ids) => (ids.includes('a') ? away() : here());
    client.calls.length = 0;
    await flush();
    await flush();
    assert.deepEqual(client.calls, ['r/t: a', 'r/u: b', 'r/t: a']);
    assert.equal(writer.pendingMessages, 1);
  });

  test('one that its turn has aborted waits, and is no error', async () => {
    const { client, writer, write, flush, reporter, log } = writing();
    const aborted = { wait: 'durable', reporter, signal: AbortSignal.abort() } as const;
    client.answer = () => Promise.reject(new DOMException('aborted', 'AbortError'));
    assert.equal(await writer.write(batch('a'), aborted), false);
    // The next one finds it waiting, and leaves at once.
    assert.equal(await writer.write(batch('b'), aborted), false);
    assert.equal(writer.pendingMessages, 2);
    await flush();
    const { indexAborted, indexFailed } = reporter.counts;
    assert.deepEqual([indexAborted, indexFailed], [2, 1], 'the failure is that of what waited');
    client.answer = here;
    assert.equal(await write(batch('c')), true);
    assert.equal(writer.pendingMessages, 0);
    assert.equal(log.lines.filter(({ level }) => level === 'debug').length, 2);
    assert.equal(log.lines.length, 3);
  });

  test('while it is away, one call a turn tries', async () => {
    const { client, write } = writing();
    client.answer = away;
    await write(batch('a'));
    await write(batch('b'));
    assert.deepEqual(client.calls, ['r/t: a', 'r/t: a']);
  });

  test('a full queue, a lost deadline, an abort: it waits', async () => {
    for (const error of [
      new ResourceExhaustedError('full', { retryable: true }),
      new DOMException('aborted', 'AbortError'),
    ]) {
      const { client, writer, write, log } = writing();
      client.answer = () => Promise.reject(error);
      assert.equal(await write(batch('a')), false);
      assert.equal(writer.pendingMessages, 1);
      assert.equal(log.lines.length, 1);
    }
  });

  test('a request that can never succeed is given up, and told', async () => {
    const { client, writer, write, reporter, log } = writing();
    client.answer = () => Promise.reject(InvalidArgumentError.of('thread_id', 'is too long'));
    assert.equal(await write(batch('a b')), true);
    assert.equal(writer.pendingMessages, 0);
    assert.equal(reporter.counts.messagesDropped, 2);
    assert.equal(reporter.counts.indexFailed, 1);
    assert.equal(log.lines.length, 1);
  });

  test('a refused message is told by its id, the others are indexed', async () => {
    const { write, reporter, log } = writing();
    await write(batch('a bad b'));
    assert.equal(reporter.counts.messagesIndexed, 2);
    assert.equal(reporter.counts.messagesRejected, 1);
    assert.match(JSON.stringify(log.lines), /"messageId":"bad"/);
  });

  test('what is discarded while waiting messages are sent is not sent any more', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't'));
    await write(batch('b', 'u'));
    client.calls.length = 0;
    let release = (): void => undefined;
    client.answer = () =>
      new Promise((resolve) => {
        release = resolve;
      });
    const flushing = flush();
    const discarding = writer.discard('r', { threadId: 'u' });
    release();
    client.answer = here;
    await discarding;
    await flushing;
    assert.deepEqual(client.calls, ['r/t: a']);
    assert.equal(writer.pendingMessages, 0);
  });

  test('discarding waits for the call under way, and for what it puts back', async () => {
    const { client, writer, write } = writing();
    let fail = (): void => undefined;
    client.answer = () =>
      new Promise((_, reject) => {
        fail = () => {
          reject(new UnavailableError('away', { retryable: true }));
        };
      });
    const turn = write(batch('a'));
    const discarding = writer.discard('r', { ids: ['a'] });
    fail();
    await Promise.all([turn, discarding]);
    assert.equal(writer.pendingMessages, 0);
  });

  test('what the sidecar refuses to forget waits on, and is sent in its place', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't'));
    await write(batch('b', 'u'));
    const refusal = new UnavailableError('away', { retryable: true });
    const refused = writer.forget('r', { threadId: 't' }, () => Promise.reject(refusal));
    await assert.rejects(refused, (error) => error === refusal);
    assert.equal(writer.pendingMessages, 2);
    client.answer = here;
    client.calls.length = 0;
    await flush();
    assert.deepEqual(client.calls, ['r/t: a', 'r/u: b']);
  });

  test('while something is forgotten, it is not sent, and what others say is', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a b', 't'));
    client.answer = here;
    client.calls.length = 0;
    let answer = (): void => undefined;
    const asked = new Promise<void>((resolve) => {
      answer = resolve;
    });
    const forgotten = writer.forget('r', { ids: ['a'] }, () => asked);
    await flush();
    assert.deepEqual(client.calls, ['r/t: b']);
    assert.equal(await write(batch('c', 'u')), true);
    assert.equal(writer.pendingMessages, 1);
    answer();
    await forgotten;
    await flush();
    assert.deepEqual(client.calls, ['r/t: b', 'r/u: c']);
    assert.equal(writer.pendingMessages, 0);
  });

  test('what is held and was changed meanwhile is not sent after its change', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't', 'old'));
    client.answer = here;
    client.calls.length = 0;
    const refused = writer.forget('r', { ids: ['a'] }, async () => {
      assert.equal(await write(batch('a', 't', 'new')), true);
      throw new UnavailableError('away', { retryable: true });
    });
    await assert.rejects(refused, UnavailableError);
    await flush();
    assert.deepEqual(client.calls, ['r/t: a']);
  });

  test('what arrives behind waiting messages and is forgotten then waits as well', async () => {
    const { client, writer, write, flush } = writing();
    client.answer = away;
    await write(batch('a', 't'));
    const release = held(client);
    client.calls.length = 0;
    const arriving = write(batch('b', 'u'));
    const refused = writer.forget('r', { threadId: 'u' }, () =>
      Promise.reject(new UnavailableError('away', { retryable: true })),
    );
    release();
    await assert.rejects(refused, UnavailableError);
    await arriving;
    client.answer = here;
    await flush();
    assert.deepEqual(client.calls, ['r/t: a', 'r/u: b']);
  });

  test('1,000 messages or 4 MiB are one request', async () => {
    const { client, write } = writing();
    await write(batch(Array.from({ length: 1_001 }, (_, index) => `m${index}`).join(' ')));
    assert.deepEqual(
      client.calls.map((call) => call.split(' ').length - 1),
      [1_000, 1],
    );
    client.calls.length = 0;
    // Text and payload of each count some 900 kB.
    await write(batch('a b c d e f', 't', 'x'.repeat(225_000)));
    assert.deepEqual(client.calls, ['r/t: a b c d', 'r/t: e f']);
  });
});

describe('the writer, while what waits is sent', () => {
  test('who waits for it leaves with his own time and signal; it goes on', async () => {
    const { client, writer, reporter, write } = writing();
    client.answer = away;
    await write(batch('a'));
    const release = held(client);
    const options = { wait: 'durable', reporter } as const;
    await writer.flush({ ...options, timeoutMs: 1 });
    await writer.flush({ ...options, signal: AbortSignal.abort() });
    const leaving = new AbortController();
    const left = writer.flush({ ...options, signal: leaving.signal });
    leaving.abort();
    await left;
    assert.equal(writer.pendingMessages, 1);
    release();
    await writer.flush(options);
    assert.equal(writer.pendingMessages, 0);
    assert.deepEqual(client.calls, ['r/t: a', 'r/t: a']);
  });

  test('whose turn began it neither shortens nor ends it', async () => {
    const { client, writer, reporter, write } = writing();
    client.answer = away;
    await write(batch('a'));
    const release = held(client);
    const { signal } = new AbortController();
    const turn = writer.flush({ wait: 'durable', reporter, timeoutMs: 1, signal });
    const others = writer.flush({ wait: 'durable', reporter });
    await turn;
    release();
    await others;
    assert.equal(writer.pendingMessages, 0);
    assert.equal(client.options.at(-1)?.signal, undefined);
    assert.equal(client.options.at(-1)?.timeoutMs, 10_000);
  });

  test('a turn waits half of its time, and what it said waits behind the others', async () => {
    const { client, writer, reporter, write } = writing();
    client.answer = away;
    await write(batch('a'));
    const release = held(client);
    const options = { wait: 'durable', reporter, timeoutMs: 100 } as const;
    assert.equal(await writer.write(batch('b', 'u'), options), false);
    assert.equal(writer.pendingMessages, 2);
    release();
    await writer.flush({ wait: 'durable', reporter });
    assert.deepEqual(client.calls, ['r/t: a', 'r/t: a', 'r/u: b']);
  });

  test('what a turn says has the rest of its time', async () => {
    const { client, writer, reporter } = writing();
    const options = { wait: 'durable', reporter, timeoutMs: 3_000 } as const;
    assert.equal(await writer.write(batch('a'), options), true);
    const timeoutMs = client.options[0]?.timeoutMs ?? Infinity;
    assert.ok(timeoutMs > 0 && timeoutMs <= 3_000);
  });

  test('a turn that comes after it is not sent when it was deleted meanwhile', async () => {
    const { client, writer, write } = writing();
    client.answer = away;
    await write(batch('a'));
    const release = held(client);
    const written = Promise.all([write(batch('b c', 'deleted')), write(batch('d e', 'kept'))]);
    const discarded = Promise.all([
      writer.discard('r', { threadId: 'deleted' }),
      writer.discard('r', { ids: ['d'] }),
    ]);
    release();
    await Promise.all([written, discarded]);
    assert.deepEqual(client.calls, ['r/t: a', 'r/t: a', 'r/kept: e']);
  });
});

describe('the queue', () => {
  test('gives all of a thread at once, whatever lies between; metadata count by value', () => {
    const queue = new RetryQueue(10);
    queue.add({ ...batch('a'), metadata: { year: 1, of: { x: 1, y: 2 } } });
    queue.add(batch('b', 'u'));
    queue.add({ ...batch('c'), metadata: { of: { y: 2, x: 1 }, year: 1 } });
    queue.add({ ...batch('d'), metadata: { year: 2 } });
    assert.deepEqual(
      queue.oldest()?.messages.map((message) => message.input.id),
      ['a', 'c'],
    );
  });

  test('holds so many messages, and pushes out the oldest', () => {
    const queue = new RetryQueue(2);
    assert.equal(queue.add(batch('a b c')), 1);
    assert.deepEqual(
      queue.oldest()?.messages.map((message) => message.input.id),
      ['b', 'c'],
    );
  });

  test('holds 16 MiB', () => {
    const queue = new RetryQueue(100_000);
    const large = batch('a', 't', 'x'.repeat(200_000));
    const bytes = large.messages[0]?.bytes ?? 0;
    const fits = Math.floor(QUEUE_BYTES_MAX / bytes);
    let pushedOut = 0;
    for (let index = 0; index <= fits; index += 1) {
      pushedOut += queue.add(batch(`m${index}`, 't', 'x'.repeat(200_000)));
    }
    assert.ok(fits > 10);
    assert.equal(pushedOut, 1);
    assert.equal(queue.size, fits);
  });

  test('what was said again while it waits was said when it was said first', () => {
    const queue = new RetryQueue(10);
    for (const saidAt of [new Date(1_000), new Date(2_000)]) {
      const { messages, ...others } = batch('a');
      queue.add({ ...others, messages: messages.map((one) => ({ ...one, saidAt })) });
    }
    assert.equal(queue.size, 1);
    assert.deepEqual(queue.timeOf('r', 'a'), new Date(1_000));
  });

  test('ids of two resources are two messages', () => {
    const queue = new RetryQueue(10);
    queue.add(batch('a'));
    queue.add({ ...batch('a'), resourceId: 's' });
    assert.equal(queue.size, 2);
    queue.discard('s', { ids: ['a'] });
    assert.equal(queue.oldest()?.resourceId, 'r');
  });
});
