import { user } from '../support/messages.js';
import { observed, type ConformanceCase } from '../support/case.js';

const changes: ConformanceCase = {
  id: 'C13',
  behaviour:
    'deleting a thread or messages, editing, cloning and giving a thread away reach the index',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const { memory } = world;
    for (const thread of ['a', 'b', 'c', 'd', 'e']) {
      await world.remember(thread, [
        user(`${thread}1`, `First note of ${thread}`),
        user(`${thread}2`, `Second note of ${thread}`),
      ]);
    }
    await memory.deleteThread('a');
    await memory.deleteMessages(['b1']);
    await memory.updateMessages({
      messages: [
        { id: 'c1', content: { format: 2, parts: [{ type: 'text', text: 'Edited note of c' }] } },
      ],
    });
    await memory.cloneThread({ sourceThreadId: 'd', newThreadId: 'd-clone' });
    const heir = `${world.user}-heir`;
    await memory.updateThreadResourceId({ threadId: 'e', resourceId: heir });
    await memory.settled();
    const here = (await world.indexed()).map((one) => `${one.threadId}: ${one.text}`).sort();
    const there = (await world.indexed(heir)).map((one) => `${one.threadId}: ${one.text}`).sort();
    const seen = [here.join('; '), there.join('; ')].join(' | ');
    const expected = [
      'b: Second note of b; c: Edited note of c; c: Second note of c; d-clone: First note of d; d-clone: Second note of d; d: First note of d; d: Second note of d',
      'e: First note of e; e: Second note of e',
    ].join(' | ');
    return observed(seen === expected, 'all five', seen);
  },
};

/** What becomes of the index when the rows change. */
export const matchChanges: readonly ConformanceCase[] = [changes];
