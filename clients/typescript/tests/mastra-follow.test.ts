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
import { collected } from './support/collected.js';
import { index, KeptLog, listOf, said } from './support/mastra.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

/** A tool call that has only begun: nothing is remembered of it. */
const HALF_CALL = {
  state: 'partial-call' as const,
  toolCallId: 'call-1',
  toolName: 'weather',
  args: {},
};

let sidecar: Sidecar;
let client: RecallClient;
let users = 0;
let resourceId: string;
let store: MemoryStorage;
let memory: MockMemory;
let recall: SemanticRecall;
let log: KeptLog;

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
  log = new KeptLog();
  recall = new SemanticRecall({ client, logger: log, wait: 'searchable' });
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

describe('deletions that the sidecar refuses', () => {
  test('leave waiting what waits: of a thread, of messages', async () => {
    const [one, two] = [said('user', 'one'), said('user', 'two')];
    await sidecar.kill();
    await turn('thread-1', [one]);
    await turn('thread-2', [two]);
    assert.equal(recall.pendingMessages, 2);
    await assert.rejects(memory.deleteThread('thread-1'), UnavailableError);
    await assert.rejects(store.deleteMessages([two.id]), UnavailableError);
    assert.equal(recall.pendingMessages, 2);
    await sidecar.start();
    assert.equal(await recall.flush(), 0);
    assert.deepEqual(await remembered(), ['thread-1: one', 'thread-2: two']);
  });

  test('an edit that takes the text of a message: what waits of it is not sent', async () => {
    const one = said('user', 'secret');
    await sidecar.kill();
    await turn('thread-1', [one]);
    const content = { format: 2 as const, parts: [{ type: 'step-start' as const }], content: '' };
    const parts = [{ type: 'tool-invocation' as const, toolInvocation: HALF_CALL }];
    const edit = store.updateMessages({
      messages: [{ id: one.id, content: { ...content, parts } }],
    });
    await assert.rejects(edit, UnavailableError);
    await sidecar.start();
    assert.equal(await recall.flush(), 0);
    assert.deepEqual(await remembered(), []);
  });
});

describe('ids that the sidecar cannot hold', () => {
  test('a saved message of such an id is left out, told once, and the others are indexed', async () => {
    await turn('thread-1', []);
    const messages = ['one', 'two', 'three'].map((text) =>
      said('user', text, { threadId: 'thread-1', resourceId, id: `${text} ${resourceId}` }),
    );
    Object.assign(messages[1] ?? {}, { id: 'half \ud800' });
    await memory.saveMessages({ messages });
    assert.deepEqual(await remembered(), ['thread-1: one', 'thread-1: three']);
    const { messagesIndexed, messagesRejected, messagesDropped } = recall.stats;
    assert.deepEqual([messagesIndexed, messagesRejected, messagesDropped], [2, 1, 0]);
    assert.deepEqual(
      log.lines.map(({ message }) => message),
      [
        '[SemanticRecall] a message has an id that the sidecar cannot hold; ' +
          'it is not remembered',
      ],
    );
  });

  test('a message or a thread of such an id can be deleted', async () => {
    const threadId = 'half \ud800';
    const now = new Date();
    await store.saveThread({
      thread: { id: threadId, resourceId, title: '', createdAt: now, updatedAt: now },
    });
    const [bad, good] = [said('user', 'one', { id: 'half \udc00' }), said('user', 'two')];
    await turn('thread-1', [good]);
    await store.saveMessages({ messages: [{ ...bad, threadId, resourceId }] });
    await store.deleteMessages([bad.id, good.id]);
    assert.deepEqual(
      (await store.listMessagesById({ messageIds: [bad.id, good.id] })).messages,
      [],
    );
    assert.deepEqual(await remembered(), []);
    await memory.deleteThread(threadId);
    assert.equal(await store.getThreadById({ threadId }), null);
    assert.equal(recall.stats.changesNotFollowed, 0);
  });

  test('a text above the limit is told where it was saved, too', async () => {
    await turn('thread-1', []);
    const text = 'x'.repeat(262_145);
    const message = said('user', text, { threadId: 'thread-1', resourceId });
    await memory.saveMessages({ messages: [message] });
    assert.equal(recall.stats.textsCut, 1);
  });
});

describe('deletions of what nobody knows', () => {
  test('a thread: counted apart, and one line', async () => {
    await memory.deleteThread('unheard-of');
    const { changesFollowed, deletionsWithoutOwner } = recall.stats;
    assert.deepEqual([changesFollowed, deletionsWithoutOwner], [0, 1]);
    assert.equal(log.lines.length, 1);
    assert.deepEqual(log.lines[0]?.fields, { threadId: 'unheard-of' });
  });

  test('messages without a row: the others are forgotten', async () => {
    const one = said('user', 'one');
    await turn('thread-1', [one]);
    await store.deleteMessages(['unheard-of', one.id, 'another']);
    assert.deepEqual(await remembered(), []);
    const { changesFollowed, deletionsWithoutOwner } = recall.stats;
    assert.deepEqual([changesFollowed, deletionsWithoutOwner], [1, 2]);
    assert.deepEqual(log.lines[0]?.fields, { messages: 2 });
    await store.deleteMessages(['unheard-of']);
    assert.equal(recall.stats.changesFollowed, 1);
    assert.equal(recall.stats.deletionsWithoutOwner, 3);
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

  test('any number of processors decorates a store and a memory once', async () => {
    const methods = (): unknown[] => [
      Reflect.get(store, 'deleteThread'),
      Reflect.get(store, 'saveThread'),
      Reflect.get(memory, 'saveMessages'),
    ];
    const before = methods();
    for (let time = 0; time < 3; time += 1) {
      await using other = new SemanticRecall({ client: sidecar.client(), logger: new KeptLog() });
      await other.follow(memory);
    }
    // By identity: two decorations would look alike.
    assert.ok(methods().every((method, at) => method === before[at]));
  });

  test('a closed client is asked no more once its processor is closed', async () => {
    await turn('thread-1', [said('user', 'one')]);
    await client.close();
    await assert.rejects(memory.deleteThread('thread-1'), { reason: 'CLIENT_CLOSED' });
    await recall.close();
    await memory.deleteThread('thread-1');
    assert.equal(await store.getThreadById({ threadId: 'thread-1' }), null);
  });

  test('a new processor takes over from one whose client is closed', async () => {
    const one = said('user', 'one');
    await turn('thread-1', [one, said('user', 'two')]);
    await client.close();
    client = sidecar.client();
    const next = new SemanticRecall({ client, logger: new KeptLog() });
    await next.follow(memory);
    await store.deleteMessages([one.id]);
    assert.deepEqual(await remembered(), ['thread-1: two']);
    const three = said('user', 'three', { threadId: 'thread-1', resourceId });
    await memory.saveMessages({ messages: [three] });
    assert.deepEqual(await remembered(), ['thread-1: two', 'thread-1: three']);
    assert.equal(next.stats.changesFollowed, 2);
  });

  test('what is followed is counted by a processor that is open', async () => {
    await turn('thread-1', [said('user', 'one')]);
    await recall.close();
    const next = new SemanticRecall({ client, logger: new KeptLog() });
    await next.follow(memory);
    await memory.deleteThread('thread-1');
    assert.deepEqual(await remembered(), []);
    assert.equal(recall.stats.changesFollowed, 0);
    assert.equal(next.stats.changesFollowed, 1);
  });

  test('two sidecars that follow a store both forget, both learn, both give', async () => {
    const second = await startSidecar();
    try {
      const theirs = second.client();
      const other = new SemanticRecall({ client: theirs, logger: new KeptLog() });
      await other.follow(memory);
      const texts = async (of: RecallClient, owner = resourceId) =>
        (await collected(of.listMessages(owner))).map(({ text }) => text);
      await turn('thread-1', []);
      const messages = ['one', 'two'].map((text) =>
        said('user', text, { threadId: 'thread-1', resourceId }),
      );
      await memory.saveMessages({ messages });
      assert.deepEqual(
        [await texts(client), await texts(theirs)],
        [
          ['one', 'two'],
          ['one', 'two'],
        ],
      );
      await store.deleteMessages([messages[0]?.id ?? '']);
      assert.deepEqual([await texts(client), await texts(theirs)], [['two'], ['two']]);

      await second.kill();
      const away = sidecar.client();
      const gift = { threadId: 'thread-1', resourceId: `${resourceId}-other` };
      await assert.rejects(store.updateThreadResourceId(gift), UnavailableError);
      assert.deepEqual(await texts(away), ['two'], 'the first one has it back');
      assert.equal((await store.getThreadById({ threadId: 'thread-1' }))?.resourceId, resourceId);
    } finally {
      await second.stop();
    }
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
