/** Changes of a Mastra store that reach the sidecar: nothing deleted or edited stays recallable. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';

import type { MastraDBMessage } from '@mastra/core/agent/message-list';
import { MockMemory } from '@mastra/core/memory';
import type { MemoryStorage } from '@mastra/core/storage';
import { InMemoryStore } from '@mastra/core/storage';

import type { RecallClient } from '../src/index.js';
import { UnavailableError } from '../src/index.js';
import { SemanticRecall } from '../src/mastra/index.js';
import { index, KeptLog, listOf, said } from './support/mastra.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;
let client: RecallClient;
let users = 0;
let resourceId: string;
let store: MemoryStorage;
let memory: MockMemory;
let recall: SemanticRecall;

before(async () => {
  sidecar = await startSidecar();
});
after(async () => {
  await sidecar.stop();
});
beforeEach(async () => {
  users += 1;
  resourceId = `user-${users}`;
  client = sidecar.client({ connectTimeoutMs: 50 });
  const storage = new InMemoryStore();
  const domain = await storage.getStore('memory');
  assert.ok(domain !== undefined);
  store = domain;
  memory = new MockMemory({ storage });
  recall = new SemanticRecall({ client, logger: new KeptLog(), wait: 'searchable' });
  await recall.follow(memory);
});

/** A turn as an agent makes it: indexed first, then stored. */
async function turn(
  threadId: string,
  messages: MastraDBMessage[],
  metadata: Record<string, unknown> = {},
): Promise<void> {
  const here = { resourceId, threadId, metadata };
  if ((await store.getThreadById({ threadId })) === null) {
    const now = new Date();
    await store.saveThread({
      thread: { id: threadId, resourceId, title: '', metadata, createdAt: now, updatedAt: now },
    });
  }
  for (const message of messages) Object.assign(message, { threadId, resourceId });
  await index(recall, here, messages);
  await store.saveMessages({ messages });
}

async function remembered(owner = resourceId): Promise<string[]> {
  const found: string[] = [];
  for await (const { threadId, text } of client.listMessages(owner)) {
    found.push(`${threadId}: ${text}`);
  }
  return found;
}

describe('deletions', () => {
  test('of a thread', async () => {
    await turn('thread-1', [said('user', 'one')]);
    await turn('thread-2', [said('user', 'two')]);
    await memory.deleteThread('thread-1');
    assert.deepEqual(await remembered(), ['thread-2: two']);
    assert.equal(await store.getThreadById({ threadId: 'thread-1' }), null);
  });

  test('of messages', async () => {
    const [one, two] = [said('user', 'one'), said('user', 'two')];
    await turn('thread-1', [one, two]);
    await store.deleteMessages([one.id]);
    assert.deepEqual(await remembered(), ['thread-1: two']);
  });

  test('reject while the sidecar is away, and delete nothing; they can be made again', async () => {
    const one = said('user', 'one');
    await turn('thread-1', [one]);
    await sidecar.kill();
    await assert.rejects(memory.deleteThread('thread-1'), UnavailableError);
    await assert.rejects(store.deleteMessages([one.id]), UnavailableError);
    assert.equal((await store.getThreadById({ threadId: 'thread-1' }))?.id, 'thread-1');
    assert.equal((await store.listMessagesById({ messageIds: [one.id] })).messages.length, 1);
    assert.equal(recall.stats.changesNotFollowed, 2);
    await sidecar.start();
    await memory.deleteThread('thread-1');
    assert.deepEqual(await remembered(), []);
  });

  test('take what waits for the sidecar along', async () => {
    await turn('thread-1', [said('user', 'one')]);
    await sidecar.kill();
    await turn('thread-1', [said('user', 'two')]);
    assert.equal(recall.pendingMessages, 1);
    await sidecar.start();
    await memory.deleteThread('thread-1');
    assert.equal(recall.pendingMessages, 0);
    assert.equal(await recall.flush(), 0);
    assert.deepEqual(await remembered(), []);
  });
});

describe('edits', () => {
  test('replace what was there', async () => {
    const one = said('user', 'My dog Rex is allergic to chicken');
    await turn('thread-1', [one]);
    const parts = [{ type: 'text' as const, text: 'My dog Rex is allergic to beef' }];
    const content = { format: 2 as const, parts, content: 'My dog Rex is allergic to beef' };
    await store.updateMessages({ messages: [{ id: one.id, content }] });
    assert.deepEqual(await remembered(), ['thread-1: My dog Rex is allergic to beef']);
    const [stored] = await client.getMessages(resourceId, [one.id]);
    assert.ok(!Buffer.from(stored?.payload ?? []).includes('chicken'));
  });

  test('reject while the sidecar is away, and are sent with the next call', async () => {
    const one = said('user', 'old');
    await turn('thread-1', [one]);
    await sidecar.kill();
    const parts = [{ type: 'text' as const, text: 'new' }];
    const content = { format: 2 as const, parts, content: 'new' };
    const edit = store.updateMessages({ messages: [{ id: one.id, content }] });
    await assert.rejects(edit, UnavailableError);
    await sidecar.start();
    assert.equal(await recall.flush(), 0);
    assert.deepEqual(await remembered(), ['thread-1: new']);
  });
});

describe('threads', () => {
  test('a clone can be recalled from, with messages of its own', async () => {
    await turn('thread-1', [said('user', 'one'), said('assistant', 'two')], { projectId: 'A' });
    await store.cloneThread({ sourceThreadId: 'thread-1', newThreadId: 'thread-2' });
    assert.deepEqual((await remembered()).sort(), [
      'thread-1: one',
      'thread-1: two',
      'thread-2: one',
      'thread-2: two',
    ]);
  });

  test('other metadata of a thread is that of its messages at once', async () => {
    const one = said('user', 'one');
    await turn('thread-1', [one], { projectId: 'A', colour: 'red' });
    const metadata = { projectId: 'B', workingMemory: 'secret' };
    await store.updateThread({ id: 'thread-1', title: 'x', metadata });
    const [stored] = await client.getMessages(resourceId, [one.id]);
    // This store merges metadata; saveThread replaces them.
    assert.deepEqual(stored?.metadata, { projectId: 'B', colour: 'red' });
    assert.equal(stored.text, 'one');
    const thread = await store.getThreadById({ threadId: 'thread-1' });
    assert.ok(thread !== null);
    await store.saveThread({ thread: { ...thread, metadata: { projectId: 'C' } } });
    const [again] = await client.getMessages(resourceId, [one.id]);
    assert.deepEqual(again?.metadata, { projectId: 'C' });
    assert.deepEqual(again.payload, stored.payload);
  });

  test('a title alone, and what Mastra keeps for itself, change nothing', async () => {
    await turn('thread-1', [said('user', 'one')], { projectId: 'A' });
    const { changesFollowed } = recall.stats;
    await store.updateThread({ id: 'thread-1', title: 'x' });
    const metadata = { projectId: 'A', workingMemory: 'secret' };
    await store.updateThread({ id: 'thread-1', title: 'x', metadata });
    assert.equal(recall.stats.changesFollowed, changesFollowed);
  });

  test('one that is given to another resource takes its messages along', async () => {
    await turn('thread-1', [said('user', 'one')]);
    const other = `${resourceId}-other`;
    await store.updateThreadResourceId({ threadId: 'thread-1', resourceId: other });
    assert.deepEqual(await remembered(), []);
    assert.deepEqual(await remembered(other), ['thread-1: one']);
  });

  test('one that was never indexed can be given away as well', async () => {
    const now = new Date();
    await store.saveThread({
      thread: { id: 'thread-1', resourceId, title: '', createdAt: now, updatedAt: now },
    });
    const given = await store.updateThreadResourceId({ threadId: 'thread-1', resourceId: 'else' });
    assert.equal(given.resourceId, 'else');
  });
});

describe('following', () => {
  test('what memory.saveMessages saves is indexed, and only once', async () => {
    await turn('thread-1', [said('user', 'one')]);
    const two = said('user', 'two', { threadId: 'thread-1', resourceId });
    for (let time = 0; time < 3; time += 1) await memory.saveMessages({ messages: [two] });
    assert.deepEqual(await remembered(), ['thread-1: one', 'thread-1: two']);
  });

  test('twice is once', async () => {
    await recall.follow(memory);
    await recall.follow(store);
    await recall.follow(memory.storage);
    await turn('thread-1', [said('user', 'one')]);
    const before = recall.stats.changesFollowed;
    await memory.deleteThread('thread-1');
    assert.equal(recall.stats.changesFollowed, before + 1);
  });

  test("an agent's memories are followed from their first turn on", async () => {
    const stores = [new InMemoryStore(), new InMemoryStore()];
    const memories = stores.map((storage) => new MockMemory({ storage }));
    const getMemory = () => Promise.resolve(memories.shift());
    const messageList = listOf({ threadId: 't', resourceId });
    // Of an agent, a processor asks for its memory only.
    const args = { messages: [], messageList, agent: { getMemory } };
    for (const storage of stores) {
      await Reflect.apply(recall.processInput.bind(recall), recall, [args]);
      const domain = await storage.getStore('memory');
      assert.ok(domain !== undefined && Object.hasOwn(domain, 'deleteThread'));
    }
  });

  test('an agent without memory, or whose memory fails, has its turn', async () => {
    const messageList = listOf({ threadId: 't', resourceId });
    for (const getMemory of [
      () => Promise.resolve(undefined),
      () => Promise.reject(new Error('no storage')),
    ]) {
      const args = { messages: [], messageList, agent: { getMemory } };
      await Reflect.apply(recall.processInput.bind(recall), recall, [args]);
    }
    assert.equal(recall.stats.changesNotFollowed, 1);
  });
});
