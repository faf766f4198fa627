import { MessageList } from '@mastra/core/agent/message-list';

import { assistant, system, user } from '../support/messages.js';
import { observed, type ConformanceCase } from '../support/case.js';

const LATE = { createdAt: '2025-06-01T12:00:00Z' };

const alreadyThere: ConformanceCase = {
  id: 'C6',
  behaviour: 'what is in the list already is not added again',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const messages = [
      user('m1', 'The lamp of the lighthouse is amber'),
      assistant('m2', 'Amber, noted'),
      user('m3', 'And the lighthouse has a red door'),
    ];
    await world.remember('past', messages);
    const ask = user('q', 'What of the lighthouse?', LATE);
    const { ids } = await world.recall('past', ask, messages.slice(1));
    return observed(ids.join(' ') === 'm1', 'only what was missing', `added: ${ids.join(' ')}`);
  },
};

const EXPECTED_BLOCK = [
  'The following messages were remembered from a different conversation:',
  '<remembered_from_other_conversation>',
  '',
  'the following messages are from 2024, Feb, 29',
  'Message from previous conversation at 11:59 PM: User: The lamp of the lighthouse is amber',
  'the following messages are from 2024, Mar, 1',
  'Message from previous conversation at 12:00 AM: Assistant: Lighthouse, lamp: noted' +
    'Message from previous conversation at 12:00 AM: User: The stairs of the lighthouse are steep' +
    'Message from previous conversation at 12:00 AM: Assistant: Mind the lighthouse stairs',
  '<end_remembered_from_other_conversation>',
].join('\n');

const injection: ConformanceCase = {
  id: 'C7',
  behaviour:
    'same thread: messages of the source `memory`; others: one system message tagged `memory`, in a fixed order (with `contextFormat: mastra` to the byte)',
  mastra: 'right',
  async run(open) {
    await using world = await open({
      recall: { contextFormat: 'mastra', messageRange: 0, topK: 5 },
    });
    // With `content`, which Mastra does not merge with its neighbour.
    const said = (
      make: typeof user,
      id: string,
      content: string,
      createdAt: string,
    ): ReturnType<typeof user> => make(id, content, { content, createdAt });
    const midnight = '2024-03-01T00:00:00Z';
    await world.remember('b', [
      said(user, 'b1', 'The stairs of the lighthouse are steep', midnight),
      said(assistant, 'b2', 'Mind the lighthouse stairs', '2024-03-01T00:00:30Z'),
    ]);
    await world.remember('a', [
      said(user, 'a1', 'The lamp of the lighthouse is amber', '2024-02-29T23:59:59Z'),
      said(assistant, 'a2', 'Lighthouse, lamp: noted', midnight),
    ]);
    await world.remember('here', [said(user, 'h1', 'I climb the lighthouse now', midnight)]);
    const ask = user('q', 'What of the lighthouse?', LATE);
    const { ids, block, blocks } = await world.recall('here', ask);
    const alike = block === EXPECTED_BLOCK;
    return observed(
      ids.join(' ') === 'h1' && blocks === 1 && alike,
      'a message; one system message, to the byte',
      `as messages: ${ids.join(' ')}; ${blocks} system messages, ${alike ? 'to the byte' : block}`,
    );
  },
};

const harmless: ConformanceCase = {
  id: 'C8',
  behaviour: 'the same list is given back; nothing is thrown into the agent',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    await world.remember('past', [user('p1', 'The lamp of the lighthouse is amber')]);
    const ask = user('q', 'Which lamp?');
    const up = await world.recall('here', ask);
    world.takeDown();
    const down = await world.recall('here', user('q2', 'Which other lamp?'));
    await world.remember('here', [user('h1', 'The door is red')], { rows: false });
    await world.bringBack();
    const right = up.sameList && down.sameList && up.blocks === 1 && down.everything === '';
    return observed(
      right,
      'the same, also while embedding fails',
      `same list: ${up.sameList}, and while it fails: ${down.sameList}`,
    );
  },
};

const whatIsIndexed: ConformanceCase = {
  id: 'C9',
  behaviour:
    'indexed is new text of user and assistant: no system, memory or context messages, nothing when `readOnly`; the message’s id is the key, twice is once',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const list = new MessageList({ threadId: 'here', resourceId: world.user });
    list.add([user('old', 'An old message')], 'memory');
    list.add([user('given', 'A context message')], 'context');
    list.add([user('asked', 'A new question')], 'input');
    const reply = assistant('replied', 'A new answer');
    list.add([reply], 'response');
    list.addSystem('Rules of the house');
    await world.showOutput('here', list, [reply, system('rules', 'More rules')], {
      memoryConfig: { readOnly: true },
    });
    const readOnly = (await world.indexed()).length;
    await world.showOutput('here', list, [reply, system('rules', 'More rules')]);
    await world.showOutput('here', list, [reply]);
    const indexed = await world.indexed();
    const keys = indexed.map((one) => one.key).sort((a, b) => (a < b ? -1 : 1));
    return observed(
      readOnly === 0 && keys.join(' ') === 'asked replied',
      'the two new ones; read only: none',
      `${keys.join(', ')}; read only: ${readOnly}`,
    );
  },
};

const fields: ConformanceCase = {
  id: 'C10',
  behaviour: 'known of each message: its id, thread, resource, role, text and time',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const said = { createdAt: '2024-02-29T12:34:56.789Z' };
    await world.remember('here', [assistant('m1', 'The door is red', said)]);
    const [one] = await world.indexed();
    const right =
      one?.id === 'm1' &&
      one.threadId === 'here' &&
      one.resourceId === world.user &&
      one.role === 'assistant' &&
      one.text === 'The door is red' &&
      one.createdAt === said.createdAt;
    return observed(right, 'all six', JSON.stringify(one));
  },
};

const cache: ConformanceCase = {
  id: 'C11',
  behaviour: 'the user’s text is embedded once in a turn, and not again when it is asked again',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    world.model.willAnswer({ text: 'Amber, as you told me.' }, { text: 'Still amber.' });
    const counts: number[] = [];
    for (const threadId of ['first', 'second']) {
      const before = await world.textsEmbedded();
      await world.turn(threadId, `Which lamp has the lighthouse of ${world.user}?`);
      counts.push((await world.textsEmbedded()) - before);
    }
    return observed(
      counts.join(' ') === '2 1',
      `texts embedded: ${counts[0] ?? ''} in the first turn, ${counts[1] ?? ''} in the second`,
    );
  },
};

const identity: ConformanceCase = {
  id: 'C12',
  behaviour: '`id` and `name` as documented; where it is configured, Memory adds none of its own',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const processor = world.processor();
    const memory = world.memoryWithItsOwn();
    const alone = (await memory.getInputProcessors()).map((one) => one.id);
    const beside = (await memory.getInputProcessors([processor])).map((one) => one.id);
    const beside2 = (await memory.getOutputProcessors([processor])).map((one) => one.id);
    const added = [...beside, ...beside2].filter((id) => id === 'semantic-recall').length;
    return observed(
      processor.id === 'semantic-recall' &&
        processor.name === 'SemanticRecall' &&
        alone.includes('semantic-recall') &&
        added === 0,
      'alone',
      `${processor.id}, ${processor.name ?? ''}; Memory adds ${added}`,
    );
  },
};

/** What becomes of the list and of the index: C6 to C12. */
export const matchList: readonly ConformanceCase[] = [
  alreadyThere,
  injection,
  harmless,
  whatIsIndexed,
  fields,
  cache,
  identity,
];
