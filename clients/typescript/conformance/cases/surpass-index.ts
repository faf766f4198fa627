import { MessageList } from '@mastra/core/agent/message-list';
import { createTool } from '@mastra/core/tools';
import { z } from 'zod';

import { assistant, user } from '../support/messages.js';
import { countOf, foundIn, observed, type ConformanceCase } from '../support/case.js';

const ASK = 'Which lamp has the lighthouse?';
const FACT = 'The lamp of the lighthouse is amber';

const downAtFirst: ConformanceCase = {
  id: 'S3',
  behaviour: 'down at the first turn: it answers without memories, and the next one recalls',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.remember('past', [user('m1', FACT)]);
    world.takeDown();
    const first = await world.turn('one', 'Good morning');
    await world.bringBack();
    const second = await world.turn('two', ASK);
    const failed = [first, second].filter((turn) => turn.failure !== undefined).length;
    const recalled = second.prompt.includes('amber');
    return observed(
      failed === 0 && recalled,
      `${failed} of 2 turns fail; recalled when it is back: ${recalled ? 'yes' : 'no'}`,
    );
  },
};

const downDuringTurn: ConformanceCase = {
  id: 'S4',
  behaviour: 'down while a turn is indexed: told, and indexed later',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.turn('before', 'Good morning');
    world.model.onCall = () => {
      world.takeDown();
    };
    world.model.willAnswer({ text: FACT });
    const before = world.logger.lines.length;
    await world.turn('during', 'Tell me of the lighthouse');
    world.model.onCall = undefined;
    const lines = world.logger.lines.length - before;
    await world.bringBack();
    await world.turn('after', 'Good evening');
    const texts = (await world.indexed()).map((one) => one.text);
    const later = texts.includes(FACT);
    return observed(
      lines > 0 && later,
      `told: ${lines > 0 ? 'yes' : 'no'}; indexed later: ${later ? 'yes' : 'no'}`,
    );
  },
};

const steps: ConformanceCase = {
  id: 'S6',
  behaviour: 'a reply of text, tool call, text is indexed with all its text',
  mastra: 'wrong',
  async run(open) {
    const look = createTool({
      id: 'look',
      description: 'Looks into the archive',
      inputSchema: z.object({ shelf: z.number() }),
      execute: () => Promise.resolve({ found: true }),
    });
    await using world = await open({ tools: { look } });
    world.model.willAnswer(
      {
        text: 'First I will check the lighthouse archive.',
        toolCall: { toolName: 'look', input: { shelf: 3 } },
      },
      { text: 'Final short answer.' },
    );
    await world.turn('here', 'Please look it up');
    const text = (await world.indexed())
      .filter((one) => one.role === 'assistant')
      .map((one) => one.text)
      .join('\n');
    const seen = foundIn(text, ['lighthouse archive', 'Final short answer']);
    return observed(seen === 'lighthouse archive, Final short answer', `indexed: ${seen}`);
  },
};

function longText(): string {
  const words = ['bread', 'rain', 'wool', 'glass', 'ink', 'apples', 'sand', 'copper', 'moss'];
  const filler = Array.from({ length: 4000 }, (_, at) => words[(at * 7) % words.length]).join(' ');
  return `${filler.slice(0, 24_000)}. ${FACT}. ${filler}`.slice(0, 48_007);
}

const longMessage: ConformanceCase = {
  id: 'S7',
  behaviour: 'a text of 48,007 characters is indexed in chunks, and found once',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({
      embedder: { maxChars: 32_768 },
      recall: { topK: 1, messageRange: 0 },
    });
    await world.remember('past', [
      user('long', longText()),
      user('other', 'Sheep eat grass on the hill'),
    ]);
    const { block } = await world.recall('here', user('q', ASK));
    const times = block.split(FACT).length - 1;
    return observed(times === 1, 'found once', times === 0 ? 'not found' : `found ${times} times`);
  },
};

const deletedRow: ConformanceCase = {
  id: 'S9',
  behaviour: 'a deleted row takes no place among the hits',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { topK: 1, messageRange: 0 } });
    await world.remember('past', [
      user('best', FACT),
      user('next', 'Beside the lighthouse is a green door'),
    ]);
    await world.rows.deleteMessages(['best']);
    const { block } = await world.recall('here', user('q', ASK));
    return observed(
      foundIn(block, ['amber', 'green door']) === 'green door',
      `recalled with topK 1: ${countOf(block, ['amber', 'green door'])}`,
    );
  },
};

const oneBatch: ConformanceCase = {
  id: 'S19',
  behaviour: 'six new messages go in one call',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    const list = new MessageList({ threadId: 'here', resourceId: world.user });
    for (const at of [1, 2, 3, 4, 5, 6]) {
      list.add([user(`m${at}`, `Note ${at} of the harbour`)], 'input');
    }
    const before = world.calls();
    await world.showOutput('here', list, []);
    const calls = world.calls() - before;
    const indexed = (await world.indexed()).length;
    return observed(calls === 1 && indexed === 6, `calls: ${calls}`);
  },
};

const deletedThread: ConformanceCase = {
  id: 'S20',
  behaviour: 'a deleted thread is gone from an index of any name',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { indexName: 'of_my_own' } });
    await world.remember('past', [user('m1', FACT)]);
    const before = (await world.indexed()).length;
    await world.memory.deleteThread('past');
    await world.memory.settled();
    const left = (await world.indexed()).length;
    return observed(before === 1 && left === 0, `left in the index: ${left}`);
  },
};

const editedMessage: ConformanceCase = {
  id: 'S21',
  behaviour: 'an edit replaces the text in an index of any name',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { indexName: 'of_my_own' } });
    await world.remember('past', [user('m1', FACT)]);
    await world.memory.updateMessages({
      messages: [
        {
          id: 'm1',
          content: { format: 2, parts: [{ type: 'text', text: 'The lamp is green now' }] },
        },
      ],
    });
    await world.memory.settled();
    const texts = (await world.indexed()).map((one) => one.text).join('\n');
    const seen = foundIn(texts, ['amber', 'green']);
    return observed(seen === 'green', `indexed: ${seen}`);
  },
};

const savedThrice: ConformanceCase = {
  id: 'S22',
  behaviour: '`saveMessages` with the same two messages three times: two, not six',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { topK: 2, messageRange: 0 } });
    await world.saveThread('past', world.user);
    const place = { threadId: 'past', resourceId: world.user };
    const messages = [
      user('m1', FACT, place),
      assistant('m2', 'The lighthouse lamp is amber: noted', place),
    ];
    for (let time = 0; time < 3; time += 1) {
      await world.memory.saveMessages({ messages });
    }
    const indexed = (await world.indexed()).length;
    const { block } = await world.recall('here', user('q', ASK));
    const recalled = countOf(block, ['The lamp of', 'noted']);
    return observed(
      indexed === 2 && recalled === 2,
      `indexed: ${indexed}; topK 2 recalls ${recalled}`,
    );
  },
};

const failedTurn: ConformanceCase = {
  id: 'S23',
  behaviour: 'a turn that failed before any reply leaves nothing in the index that has no row',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.endFailedTurn('here', user('m1', FACT));
    const added = await world.indexed();
    const { messages } = await world.rows.listMessagesById({ messageIds: ['m1'] });
    return observed(
      messages.length === added.length,
      `vectors: ${added.length}, rows: ${messages.length}`,
    );
  },
};

const workingMemory: ConformanceCase = {
  id: 'S24',
  behaviour: '`<working_memory>` of a reply is neither embedded nor stored in the index',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.remember('here', [
      assistant('m1', 'Noted. <working_memory>SSN 078-05-1120</working_memory>'),
    ]);
    const [one] = await world.indexed();
    const leaked = one === undefined || one.text.includes('078-05-1120');
    const { everything } = await world.recall('there', user('q', 'What was noted?'));
    return observed(
      !leaked && one.text.includes('Noted') && !everything.includes('078-05-1120'),
      leaked ? 'stored with the text' : 'stripped',
    );
  },
};

const whiteSpace: ConformanceCase = {
  id: 'S25',
  behaviour: 'white space is not embedded',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    const before = await world.textsEmbedded();
    await world.remember('here', [user('m1', '   '), assistant('m2', '\n\n')]);
    const embedded = (await world.textsEmbedded()) - before;
    return observed(embedded === 0, `texts embedded: ${embedded}`);
  },
};

/** Defects of what is indexed, and of what becomes of it. */
export const surpassIndex: readonly ConformanceCase[] = [
  downAtFirst,
  downDuringTurn,
  steps,
  longMessage,
  deletedRow,
  oneBatch,
  deletedThread,
  editedMessage,
  savedThrice,
  failedTurn,
  workingMemory,
  whiteSpace,
];
