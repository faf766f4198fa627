/** `SemanticRecall` with Mastra's own message list, on a real sidecar. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { MessageList } from '@mastra/core/agent/message-list';

import type { RecallResult } from '../src/index.js';
import { RecallClient } from '../src/index.js';
import type { SemanticRecallOptions } from '../src/mastra/index.js';
import { SemanticRecall } from '../src/mastra/index.js';
import type { Place } from './support/mastra.js';
import {
  ask,
  contextOf,
  index,
  KeptLog,
  memoryTexts,
  rememberedIds,
  said,
  resultOf,
} from './support/mastra.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

let sidecar: Sidecar;
let client: RecallClient;
let resources = 0;

before(async () => {
  sidecar = await startSidecar();
  client = sidecar.client();
});
after(async () => {
  await sidecar.stop();
});

/** Notes which answers the sidecar had kept. */
class WatchedClient extends RecallClient {
  readonly wereKept: boolean[] = [];

  override async recall(...asked: Parameters<RecallClient['recall']>): Promise<RecallResult> {
    const found = await super.recall(...asked);
    this.wereKept.push(found.info?.answerCacheHit === true);
    return found;
  }
}

function processor(options: SemanticRecallOptions = {}): { recall: SemanticRecall; log: KeptLog } {
  const log = new KeptLog();
  return { recall: new SemanticRecall({ client, logger: log, ...options }), log };
}

/** A resource that no other test has. */
function place(threadId = 'thread-1', fields: Partial<Place> = {}): Place {
  resources += 1;
  return { resourceId: `user-${resources}`, threadId, ...fields };
}

describe('a turn', () => {
  test('has the constants that suppress the original', () => {
    const { recall } = processor();
    assert.equal(recall.id, 'semantic-recall');
    assert.equal(recall.name, 'SemanticRecall');
  });

  test('indexes what was said, and finds it in the same thread as the message it was', async () => {
    const here = place();
    const { recall, log } = processor();
    const fact = said('user', 'My dog Rex is allergic to chicken', {
      createdAt: new Date('2024-02-01T03:05:00Z'),
    });
    const answer = said('assistant', 'Noted: no chicken for Rex', {
      createdAt: new Date('2024-02-01T03:05:10Z'),
    });
    await index(recall, here, [fact, answer]);
    const list = await ask(recall, here, 'What can Rex not eat?');
    assert.deepEqual(rememberedIds(list), [fact.id, answer.id]);
    const found = list.get.remembered.db().find((message) => message.id === fact.id);
    assert.deepEqual(found, fact);
    assert.deepEqual(memoryTexts(list), []);
    assert.equal(recall.stats.messagesIndexed, 2);
    assert.equal(recall.stats.messagesRecalled, 2);
    assert.deepEqual(log.lines, []);
  });

  test('recalls also where the list holds an id that the sidecar would not take', async () => {
    const here = place();
    const { recall } = processor();
    const fact = said('user', 'My dog Rex is allergic to chicken');
    const year10000 = said('user', 'Hello', { createdAt: new Date(Date.UTC(10_000, 0)) });
    await index(recall, here, [fact, year10000]);
    assert.equal(recall.stats.messagesIndexed, 2);
    for (const id of ['x'.repeat(513), 'half \ud800', 'line\nend', 'line\u2028end']) {
      const list = await ask(recall, here, said('user', 'What can Rex not eat?', { id }));
      assert.ok(rememberedIds(list).includes(fact.id));
    }
  });

  test('one message with an id that cannot be stored costs nobody else their place', async () => {
    const here = place();
    const { recall, log } = processor();
    const bad = said('user', 'half', { id: 'half \ud800' });
    await index(recall, here, [bad, said('assistant', 'Rex is allergic to chicken')]);
    assert.equal(recall.stats.messagesIndexed, 1);
    assert.equal(recall.stats.messagesRejected, 1);
    assert.equal(log.lines.length, 1);
  });

  test('puts messages of other threads into one system message tagged memory', async () => {
    const there = place('thread-old');
    const { recall } = processor();
    const fact = said('user', 'My dog Rex is allergic to chicken', {
      createdAt: new Date('2024-02-01T03:05:00Z'),
    });
    await index(recall, there, [fact]);
    const list = await ask(recall, { ...there, threadId: 'thread-new' }, 'What can Rex not eat?');
    assert.deepEqual(rememberedIds(list), []);
    const [text, ...more] = memoryTexts(list);
    assert.deepEqual(more, []);
    assert.match(text ?? '', /2024-02-01 03:05 UTC, user: My dog Rex is allergic to chicken\n/);
    assert.equal(recall.stats.otherThreadsRecalled, 1);
  });

  test('another resource gets nothing', async () => {
    const here = place();
    const { recall } = processor();
    await index(recall, here, [said('user', 'My dog Rex is allergic to chicken')]);
    const list = await ask(recall, place(), 'What can Rex not eat?');
    assert.deepEqual(rememberedIds(list), []);
    assert.deepEqual(memoryTexts(list), []);
    assert.equal(recall.stats.recallsEmpty, 1);
  });

  test('scope thread keeps other threads out', async () => {
    const there = place('thread-old');
    const { recall } = processor({ scope: 'thread' });
    await index(recall, there, [said('user', 'My dog Rex is allergic to chicken')]);
    const list = await ask(recall, { ...there, threadId: 'thread-new' }, 'What can Rex not eat?');
    assert.deepEqual(rememberedIds(list), []);
    assert.deepEqual(memoryTexts(list), []);
  });

  test('what is in the list already does not use up topK', async () => {
    const here = place();
    const { recall } = processor({ topK: 1, messageRange: 0 });
    const near = said('user', 'Rex is allergic to chicken', { createdAt: new Date(1_000) });
    const far = said('user', 'Rex sleeps on the sofa', { createdAt: new Date(2_000) });
    await index(recall, here, [near, far]);
    const list = await ask(recall, here, 'What is Rex allergic to?', [near]);
    assert.deepEqual(rememberedIds(list), [near.id, far.id]);
  });
});

describe('where text of other threads goes', () => {
  test('a question that the sidecar has under this id does not use up topK either', async () => {
    const here = place();
    const { recall } = processor({ topK: 1, messageRange: 0 });
    const fact = said('user', 'My dog Rex is allergic to chicken');
    const question = said('user', 'What can Rex not eat?');
    await index(recall, here, [fact, question]);
    const list = await ask(recall, here, question);
    assert.deepEqual(rememberedIds(list), [fact.id]);
    assert.equal(recall.stats.recalls, 1);
  });

  test('the same question in another turn is answered again without a search', async () => {
    const here = place();
    const watched = new WatchedClient(sidecar.address);
    // A vector that comes later would be a change, and the answer a new one.
    const { recall } = processor({ client: watched, wait: 'searchable' });
    const fact = said('user', 'My dog Rex is allergic to chicken');
    await index(recall, here, [fact]);
    for (let turn = 0; turn < 2; turn += 1) {
      const list = await ask(recall, here, 'What can Rex not eat?');
      assert.deepEqual(rememberedIds(list), [fact.id]);
    }
    await watched.close();
    assert.deepEqual(watched.wereKept, [false, true]);
  });

  test('beforeLastUser: right before the question, in no system message', async () => {
    const there = place('thread-old');
    const { recall } = processor({ placement: 'beforeLastUser' });
    await index(recall, there, [said('user', 'My dog Rex is allergic to chicken')]);
    const history = [
      said('user', 'Hello', { id: 'h1', createdAt: new Date(1_000) }),
      said('assistant', 'Hello!', { id: 'h2', createdAt: new Date(2_000) }),
    ];
    const question = said('user', 'What can Rex not eat?', { id: 'q' });
    const list = await ask(recall, { ...there, threadId: 'thread-new' }, question, history);
    assert.deepEqual(memoryTexts(list), []);
    const messages = list.get.all.db();
    const ids = messages.map((message) => message.id);
    assert.deepEqual([...ids.slice(0, 2), ...ids.slice(3)], ['h1', 'h2', 'q']);
    assert.match(ids[2] ?? '', /^semantic-recall:[0-9a-f-]{36}:other-threads$/);
    assert.match(messages[2]?.content.content ?? '', /Rex is allergic to chicken/);
    assert.deepEqual(
      list.drainUnsavedMessages().map((message) => message.id),
      ['q'],
      'the note is never stored',
    );
  });

  test('mastra: byte for byte the text of the original, and no marks of gaps', async () => {
    const there = place('thread-old');
    const { recall } = processor({ contextFormat: 'mastra' });
    const createdAt = new Date('2024-02-01T03:05:00Z');
    await index(recall, there, [said('user', 'Rex is allergic to chicken', { createdAt })]);
    const here = { ...there, threadId: 'thread-new' };
    const own = said('user', 'Rex likes fish', { id: 'own', createdAt: new Date(1_000) });
    await index(recall, here, [own]);
    const list = await ask(recall, here, said('user', 'What does Rex eat?', { id: 'q' }));
    assert.deepEqual(memoryTexts(list), [
      'The following messages were remembered from a different conversation:\n' +
        '<remembered_from_other_conversation>\n' +
        '\nthe following messages are from 2024, Feb, 1\n' +
        'Message from previous conversation at 3:05 AM: User: Rex is allergic to chicken\n' +
        '<end_remembered_from_other_conversation>',
    ]);
    assert.deepEqual(
      list.get.all.db().map((message) => message.id),
      ['own', 'q'],
    );
  });
});

describe('the query', () => {
  test('white space, an image alone, no user message: no recall', async () => {
    const here = place();
    const { recall, log } = processor();
    await index(recall, here, [said('user', 'Rex is allergic to chicken')]);
    const image = said('user', []);
    image.content = {
      format: 2,
      parts: [{ type: 'file', mimeType: 'image/png', data: 'AAAA' }],
    };
    const earlier = said('user', 'What can Rex not eat?', { createdAt: new Date(1_000) });
    for (const question of [said('user', ' \n\t'), image]) {
      const list = await ask(recall, here, question, [earlier]);
      assert.deepEqual(rememberedIds(list), [earlier.id]);
    }
    assert.equal(recall.stats.recalls, 0);
    assert.equal(recall.stats.recallsWithoutQuery, 2);
    assert.deepEqual(log.lines, []);
  });

  test('a user signal asks as a user message does, and is indexed as one', async () => {
    const there = place('thread-old');
    const { recall } = processor();
    const signal = said('signal', 'My dog Rex is allergic to chicken');
    signal.content.metadata = { signal: { type: 'user-message' } };
    await index(recall, there, [signal]);
    const question = said('signal', 'What can Rex not eat?');
    question.content.metadata = { signal: { type: 'user' } };
    const list = await ask(recall, { ...there, threadId: 'thread-new' }, question);
    assert.match(memoryTexts(list)[0] ?? '', /, user: My dog Rex is allergic to chicken\n/);
  });

  test('no context, no thread: nothing is asked and nothing is logged', async () => {
    const { recall, log } = processor();
    const list = new MessageList().add('What can Rex not eat?', 'input');
    const messages = list.get.all.db();
    assert.equal(await recall.processInput({ messages, messageList: list }), list);
    assert.equal(recall.stats.recalls, 0);
    assert.deepEqual(log.lines, []);
  });

  test('a malformed context is told and never thrown', async () => {
    const { recall, log } = processor();
    const context = contextOf(place());
    context.set('MastraMemory', { thread: { id: 7 } });
    const list = new MessageList().add('What can Rex not eat?', 'input');
    const messages = list.get.all.db();
    const args = { messages, messageList: list, requestContext: context };
    assert.equal(await recall.processInput(args), list);
    assert.equal(recall.stats.malformedContexts, 1);
    assert.equal(log.lines.length, 1);
  });

  test('without a resource nothing is recalled, and that is told', async () => {
    const { recall, log } = processor();
    const list = await ask(recall, { threadId: 'thread-1' }, 'What can Rex not eat?');
    assert.deepEqual(rememberedIds(list), []);
    assert.equal(recall.stats.recalls, 0);
    assert.equal(recall.stats.turnsWithoutResource, 1);
    assert.equal(log.lines.length, 1);
  });
});

describe('what is indexed', () => {
  test('all text parts, without working memory; nothing of white space alone', async () => {
    const here = place();
    const { recall } = processor();
    const reply = said('assistant', [
      'First I will check the lighthouse archive.',
      'Done.<working_memory>SSN 078-05-1120</working_memory>',
    ]);
    const blank = said('user', '   ');
    await index(recall, here, [blank, reply]);
    const stored = await client.getMessages(here.resourceId ?? '', [blank.id, reply.id]);
    assert.equal(stored[1]?.text, 'First I will check the lighthouse archive.\nDone.');
    assert.equal(stored[0]?.text.trim(), '');
    assert.ok(!Buffer.from(stored[1].payload).toString().includes('SSN'));
    const list = await ask(recall, here, 'Where is the lighthouse archive?');
    assert.ok(rememberedIds(list).includes(reply.id));
  });

  test('memory, context and system messages are not', async () => {
    const here = place();
    const { recall } = processor();
    const list = new MessageList({ threadId: here.threadId, resourceId: here.resourceId ?? '' });
    list.add(said('user', 'remembered'), 'memory');
    list.add(said('user', 'context'), 'context');
    list.addSystem('instructions');
    const input = said('user', 'asked');
    list.add(input, 'input');
    const messages = list.get.all.db();
    const requestContext = contextOf(here);
    const result = resultOf();
    await recall.processOutputResult({ messages, messageList: list, requestContext, result });
    const listed = [];
    for await (const message of client.listMessages(here.resourceId ?? '')) listed.push(message.id);
    assert.deepEqual(listed, [input.id]);
  });

  test('read only, by option or by request: nothing', async () => {
    const here = place();
    const readOnly = processor({ readOnly: true }).recall;
    const { recall } = processor();
    await index(readOnly, here, [said('user', 'one')]);
    await index(recall, { ...here, memoryConfig: { readOnly: true } }, [said('user', 'two')]);
    assert.equal(readOnly.stats.messagesIndexed + recall.stats.messagesIndexed, 0);
  });

  test('a failed turn is left out, or marked', async () => {
    const here = place();
    const { recall } = processor();
    const lost = said('user', 'lost');
    await index(recall, here, [lost], 'error');
    assert.equal(recall.stats.failedTurns, 1);
    assert.equal(recall.stats.messagesIndexed, 0);
    const marking = processor({ failedTurns: 'mark' }).recall;
    const kept = said('user', 'kept');
    await index(marking, here, [kept], 'error');
    const [stored] = await client.getMessages(here.resourceId ?? '', [kept.id]);
    assert.deepEqual(stored?.metadata, { turn_failed: true, finish_reason: 'error' });
  });

  test('a payload above the limit is left out, the text is kept, and that is told', async () => {
    const here = place();
    const { recall, log } = processor();
    const large = said('user', 'The lighthouse keeper lives in Brest');
    large.content.parts.push({
      type: 'file',
      mimeType: 'image/png',
      data: 'A'.repeat(1_048_576),
    });
    await index(recall, here, [large]);
    assert.equal(recall.stats.payloadsLeftOut, 1);
    assert.equal(log.lines.length, 1);
    const list = await ask(recall, here, 'Where does the lighthouse keeper live?');
    const found = list.get.remembered.db().find((message) => message.id === large.id);
    assert.deepEqual(found?.content.parts, [
      { type: 'text', text: 'The lighthouse keeper lives in Brest' },
    ]);
  });

  test('a text above the limit is cut between characters, and that is told', async () => {
    const here = place();
    const { recall, log } = processor();
    // 3 bytes a character: 262,144 is no multiple of it.
    const long = said('user', '灯'.repeat(100_000));
    await index(recall, here, [long]);
    assert.equal(recall.stats.textsCut, 1);
    assert.equal(log.lines.length, 1);
    const [stored] = await client.getMessages(here.resourceId ?? '', [long.id]);
    assert.equal(stored?.text, '灯'.repeat(87_381));
  });
});

describe('metadata of threads', () => {
  test('a filter holds in agent turns', async () => {
    const { recall } = processor({ filter: { projectId: 'A' }, contextFormat: 'mastra' });
    const a = place('thread-a', { metadata: { projectId: 'A', workingMemory: 'SSN' } });
    const b = { ...a, threadId: 'thread-b', metadata: { projectId: 'B' } };
    await index(recall, a, [said('user', 'The secret colour of project one is green')]);
    await index(recall, b, [said('user', 'The secret colour of project two is red')]);
    const list = await ask(recall, { ...a, threadId: 'new' }, 'What is the secret colour?');
    assert.match(memoryTexts(list)[0] ?? '', /green/);
    assert.doesNotMatch(memoryTexts(list)[0] ?? '', /project two/);
  });

  test("the request's filter holds as well", async () => {
    const { recall } = processor({ filter: { projectId: 'A' } });
    const a = place('thread-a', { metadata: { projectId: 'A', year: 1 } });
    await index(recall, a, [said('user', 'The secret colour is green')]);
    const memoryConfig = { semanticRecall: { filter: { year: 2 } } };
    const list = await ask(recall, { ...a, threadId: 'new', memoryConfig }, 'Which colour?');
    assert.deepEqual(memoryTexts(list), []);
  });

  test('a key that nothing carries gives no memories, one line and one count', async () => {
    const { recall, log } = processor({ filter: { projectID: 'A' } });
    const a = place('thread-a', { metadata: { projectId: 'A' } });
    await index(recall, a, [said('user', 'The secret colour is green')]);
    const list = await ask(recall, { ...a, threadId: 'new' }, 'Which colour?');
    assert.deepEqual(memoryTexts(list), []);
    assert.equal(recall.stats.recallsFailed, 1);
    assert.equal(log.lines.length, 1);
    assert.match(JSON.stringify(log.lines), /INVALID_ARGUMENT/);
  });
});
