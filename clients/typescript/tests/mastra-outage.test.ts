/** `SemanticRecall` while its sidecar is away, and afterwards. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, beforeEach, describe, test } from 'node:test';
import { InMemoryStore } from '@mastra/core/storage';

import { RecallClient } from '../src/index.js';
import type { SemanticRecallOptions } from '../src/mastra/index.js';
import { SemanticRecall } from '../src/mastra/index.js';
import {
  ask,
  contextOf,
  index,
  KeptLog,
  listOf,
  memoryTexts,
  rememberedIds,
  said,
} from './support/mastra.js';
import { collected } from './support/collected.js';
import { SilentSidecar } from './support/silent-sidecar.js';
import type { Sidecar } from './support/sidecar.js';
import { freePort, startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;
let users = 0;
let here: { resourceId: string; threadId: string };

before(async () => {
  sidecar = await startSidecar();
});
beforeEach(() => {
  users += 1;
  here = { resourceId: `user-${users}`, threadId: 'thread-1' };
});
after(async () => {
  await sidecar.stop();
});

/** A processor with a client, and so a queue, of its own. */
function processor(options: SemanticRecallOptions = {}): { recall: SemanticRecall; log: KeptLog } {
  const log = new KeptLog();
  const client = sidecar.client({ failOpen: false, connectTimeoutMs: 50 });
  return {
    recall: new SemanticRecall({ client, logger: log, timeoutMs: 10_000, ...options }),
    log,
  };
}

/** The beginning of a turn whose signal is aborted, or will be. */
async function askAborted(recall: SemanticRecall, abortSignal: AbortSignal): Promise<void> {
  const list = listOf(here);
  list.add('What can Rex not eat?', 'input');
  const messages = list.get.all.db();
  const requestContext = contextOf(here);
  const args = { messages, messageList: list, requestContext, abortSignal };
  assert.equal(await recall.processInput(args), list);
}

/** A client of an address at which nobody listens. */
async function nobodysClient(): Promise<RecallClient> {
  const address = `127.0.0.1:${await freePort()}`;
  return new RecallClient({ address, failOpen: false, connectTimeoutMs: 50 });
}

test('a turn answers without memories, what was said waits, and all of it comes back', async () => {
  const { recall, log } = processor();
  const before = said('user', 'My dog Rex is allergic to chicken');
  const during = said('user', 'My cat Tom is allergic to fish');
  await index(recall, here, [before]);
  await sidecar.kill();

  const list = await ask(recall, here, 'What can Rex not eat?');
  assert.deepEqual(rememberedIds(list), []);
  assert.deepEqual(memoryTexts(list), []);
  assert.equal(recall.stats.recallsFailed, 1);
  await index(recall, here, [during]);
  assert.equal(recall.pendingMessages, 1);
  assert.equal(recall.stats.indexFailed, 1);
  assert.equal(log.lines.length, 2);
  assert.ok(!JSON.stringify(log.lines).includes('Rex'), 'a log holds no text of messages');
  assert.ok(!JSON.stringify(log.lines).includes('Tom'), 'a log holds no text of messages');

  await sidecar.start();
  const healed = await ask(recall, here, 'What can Tom not eat?');
  assert.equal(recall.pendingMessages, 0);
  assert.deepEqual(rememberedIds(healed), [before.id, during.id]);
  assert.equal(recall.stats.messagesIndexed, 2);
});

test('down at the very first turn: the next one is as if nothing had been', async () => {
  await sidecar.kill();
  const { recall } = processor();
  const fact = said('user', 'My dog Rex is allergic to chicken');
  assert.deepEqual(rememberedIds(await ask(recall, here, 'Hello?')), []);
  await index(recall, here, [fact]);
  await sidecar.start();
  assert.equal(await recall.flush(), 0);
  assert.deepEqual(rememberedIds(await ask(recall, here, 'What can Rex not eat?')), [fact.id]);
});

test('the oldest make room where more waits than is kept, and that is told', async () => {
  const { recall, log } = processor({ retryQueueMessagesMax: 2 });
  await sidecar.kill();
  await index(recall, here, [said('user', 'one'), said('user', 'two'), said('user', 'three')]);
  await sidecar.start();
  assert.equal(recall.pendingMessages, 2);
  assert.equal(recall.stats.messagesDropped, 1);
  assert.equal(log.lines.length, 2);
  assert.equal(await recall.flush(), 0);
  const texts = [];
  for await (const { text } of sidecar.client().listMessages(here.resourceId)) texts.push(text);
  assert.deepEqual(texts, ['two', 'three']);
});

describe('processors that are given an address', () => {
  test('share what waits, so that one for each request loses nothing', async () => {
    const { address } = sidecar;
    const fact = said('user', 'My dog Rex is allergic to chicken');
    await sidecar.kill();
    await using first = new SemanticRecall({ address, logger: new KeptLog() });
    await index(first, here, [fact]);
    await sidecar.start();
    await using second = new SemanticRecall({ address, logger: new KeptLog() });
    assert.equal(second.pendingMessages, 1);
    assert.deepEqual(rememberedIds(await ask(second, here, 'What can Rex not eat?')), [fact.id]);
    assert.equal(first.pendingMessages, 0);
  });

  test('leave behind what waits, and stores from which can be deleted', async () => {
    const { address } = sidecar;
    const storage = await new InMemoryStore().getStore('memory');
    assert.ok(storage !== undefined);
    const fact = said('user', 'My dog Rex is allergic to chicken');
    const later = said('user', 'My cat Tom is allergic to fish');
    for (const message of [fact, later]) {
      await using one = new SemanticRecall({ address, storage, logger: new KeptLog() });
      await index(one, here, [message]);
      await sidecar.kill();
    }
    await sidecar.start();
    await using next = new SemanticRecall({ address, storage, logger: new KeptLog() });
    assert.equal(next.pendingMessages, 1);
    assert.equal(await next.flush(), 0);
    await next.close();
    await storage.deleteThread({ threadId: here.threadId });
    await using client = sidecar.client();
    assert.deepEqual(await collected(client.listMessages(here.resourceId)), []);
  });

  test('share a connection, which the last one gives up', async () => {
    const { address } = sidecar;
    const first = new SemanticRecall({ address, logger: new KeptLog() });
    const second = new SemanticRecall({ address, logger: new KeptLog() });
    await first.close();
    await first.close();
    await ask(second, here, 'What can Rex not eat?');
    assert.equal(second.stats.recallsFailed, 0);
    await second.close();
    await ask(second, here, 'What can Rex not eat?');
    assert.equal(second.stats.recallsFailed, 1);
  });

  test('one that is given a client leaves it open', async () => {
    const client = sidecar.client();
    await new SemanticRecall({ client }).close();
    assert.equal((await client.recall(here.resourceId, 'Rex')).degraded, undefined);
  });
});

describe('without a logger', () => {
  test('a failure is a warning of the process, each kind once a minute', async () => {
    await using client = await nobodysClient();
    const recall = new SemanticRecall({ client });
    const warned = once(process, 'warning');
    await ask(recall, here, 'What can Rex not eat?');
    await ask(recall, here, 'What can Rex not eat?');
    const [warning] = (await warned) as [Error];
    assert.equal(warning.name, 'SemanticRecallWarning');
    assert.match(warning.message, /without memories .*UNAVAILABLE/);
    assert.equal(recall.stats.recallsFailed, 2);
  });

  test("Mastra's is taken once there is one", async () => {
    await using client = await nobodysClient();
    const recall = new SemanticRecall({ client });
    const log = new KeptLog();
    recall.__registerMastra({ getLogger: () => log });
    await ask(recall, here, 'What can Rex not eat?');
    assert.equal(log.lines.length, 1);
  });

  test('one that throws, or rejects, does not reach the agent', async () => {
    const full = new Error('the disk is full');
    const loggers = [
      {
        error: () => {
          throw full;
        },
      },
      { error: () => Promise.reject(full) },
    ];
    for (const logger of loggers) {
      await using client = await nobodysClient();
      const recall = new SemanticRecall({ client, logger });
      await ask(recall, here, 'What can Rex not eat?');
      assert.equal(recall.stats.recallsFailed, 1);
    }
  });
});

test('many threads that wait leave a turn half of its time for the recall', async () => {
  const { recall } = processor({ timeoutMs: 2_000 });
  const fact = said('user', 'My dog Rex is allergic to chicken');
  await index(recall, here, [fact]);
  await sidecar.kill();
  for (let at = 0; at < 60; at += 1) {
    await index(recall, { ...here, threadId: `thread-${at + 2}` }, [said('user', `note ${at}`)]);
  }
  await sidecar.start();
  const list = await ask(recall, here, 'What can Rex not eat?');
  assert.ok(rememberedIds(list).includes(fact.id));
  assert.equal(await recall.flush(), 0);
});

describe('an aborted turn', () => {
  test('is not waited for, goes on without memories, and is no error', async () => {
    const { recall, log } = processor();
    await askAborted(recall, AbortSignal.abort());
    assert.deepEqual([recall.stats.recallsFailed, recall.stats.recallsAborted], [0, 1]);
    assert.deepEqual(
      log.lines.map(({ level }) => level),
      ['debug'],
    );
  });

  test('that ends while it recalls, or indexes, ends at once', { timeout: 30_000 }, async () => {
    const silent = await SilentSidecar.start();
    const client = new RecallClient({ address: silent.address, failOpen: false });
    const { recall, log } = processor({ client, timeoutMs: 600_000 });
    const stopRecall = new AbortController();
    const asked = askAborted(recall, stopRecall.signal);
    assert.equal((await silent.next()).name, 'recallStream');
    stopRecall.abort();
    await asked;
    assert.deepEqual([recall.stats.recallsFailed, recall.stats.recallsAborted], [0, 1]);
    assert.ok(log.lines.every(({ level }) => level === 'debug'));

    const stopIndex = new AbortController();
    const list = listOf(here);
    list.add('My dog Rex is allergic to chicken', 'input');
    const indexed = recall.processOutputResult({
      messages: [],
      messageList: list,
      requestContext: contextOf(here),
      abortSignal: stopIndex.signal,
    });
    const call = await silent.next();
    assert.equal(call.name, 'indexStream');
    stopIndex.abort();
    assert.equal(await indexed, list);
    await call.cancelled;
    assert.equal(recall.pendingMessages, 1);
    await client.close();
    silent.stop();
  });

  test('what it said is skipped, or kept with a mark, whatever its signal', async () => {
    for (const failedTurns of ['skip', 'mark'] as const) {
      const { recall } = processor({ failedTurns });
      await index(recall, here, [said('user', 'aborted')], 'aborted');
      assert.equal(recall.stats.failedTurns, 1);
      assert.equal(recall.stats.messagesIndexed, failedTurns === 'mark' ? 1 : 0);
    }
  });
});
