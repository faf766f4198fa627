import { assistant, picture, user } from '../support/messages.js';
import { countOf, foundIn, observed, outside, type ConformanceCase } from '../support/case.js';

const LATE = { createdAt: '2025-06-01T12:00:00Z' };

const filter: ConformanceCase = {
  id: 'S1',
  behaviour: 'a filter holds in agent turns: nothing of another project reaches the prompt',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { filter: { projectId: 'A' } } });
    for (const projectId of ['A', 'B']) {
      await world.remember(
        `thread-${projectId}`,
        [user(`m-${projectId}`, `The launch code of the project is code-of-${projectId}`)],
        { threadMetadata: { projectId } },
      );
    }
    const { prompt } = await world.turn('here', 'What is the launch code of the project?', {
      threadMetadata: { projectId: 'A' },
    });
    const seen = foundIn(prompt, ['code-of-A', 'code-of-B']);
    return observed(seen === 'code-of-A', `in the prompt: ${seen}`);
  },
};

const rebuild: ConformanceCase = {
  id: 'S2',
  behaviour: 'one index, however it is asked: `recall()` and agent turns never rebuild it',
  mastra: 'outside',
  async run(open) {
    const indexConfig = { type: 'hnsw', metric: 'dotproduct' } as const;
    await using world = await open({ store: { indexConfig } });
    if (world.system === 'Mastra') {
      return outside('needs PostgreSQL');
    }
    const { user: resourceId } = world;
    await world.turn('past', 'The lamp of the lighthouse is amber');
    const first = await world.indexes();
    for (const turn of [1, 2]) {
      const asked = { threadId: 'past', resourceId, vectorSearchString: 'Which lamp?' };
      await world.memory.recall(asked);
      await world.turn(`thread-${turn}`, 'Which lamp has the lighthouse?');
    }
    const last = await world.indexes();
    const made = (index: string | undefined) => index?.slice(0, index.lastIndexOf(' '));
    const vectors = (index: string | undefined) => Number(index?.split(' ').at(-1));
    // What is built anew would have lost what the first turn stored.
    const grew = vectors(last[0]) === 3 * vectors(first[0]) && vectors(first[0]) > 0;
    const same = first.length === 1 && last.length === 1 && made(first[0]) === made(last[0]);
    return observed(
      same && grew,
      'store: 1 index, the same after 2 `recall()` and 2 turns with an `indexConfig`',
      `store: ${first.join()}; then ${last.join()}`,
    );
  },
};

const dimensions: ConformanceCase = {
  id: 'S5',
  behaviour: 'an embedder of 3,072 dimensions works, or is refused in one clear error',
  mastra: 'outside',
  async run(open) {
    await using world = await open({ embedder: { dimensions: 3072 }, store: {} });
    if (world.system === 'Mastra') {
      return outside('needs PostgreSQL');
    }
    await world.turn('past', 'The lamp of the lighthouse is amber');
    const { prompt } = await world.turn('here', 'Which lamp has the lighthouse?');
    const indexes = await world.indexes();
    const holds = /^memory_messages_3072 3072 cosine [1-9]/.test(indexes.join());
    return observed(
      holds && prompt.includes('amber'),
      'store: vectors of 3,072 numbers are stored, and found in the next turn',
      `store: ${indexes.join()}; in the prompt: ${foundIn(prompt, ['amber'])}`,
    );
  },
};

const slots: ConformanceCase = {
  id: 'S8',
  behaviour: 'topK counts new messages: what is in the prompt takes no place',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { messageRange: 0 } });
    await world.remember('past', [user('old', 'Cape Ottoline has a lighthouse')]);
    const recent = [1, 2, 3, 4, 5, 6].map((at) => user(`h${at}`, `The old lighthouse, note ${at}`));
    await world.remember('here', recent);
    const ask = user('q', 'Which lighthouse is old?', LATE);
    const { ids, block } = await world.recall('here', ask, recent);
    return observed(
      ids.length === 0 && block.includes('Cape Ottoline'),
      `new: ${foundIn(block, ['Cape Ottoline'])}`,
    );
  },
};

const siblings: ConformanceCase = {
  id: 'S10',
  behaviour: 'the hit is in the answer, also beside messages of the same millisecond',
  mastra: 'wrong',
  async run(open) {
    await using world = await open({ recall: { messageRange: 0, topK: 1 } });
    const at = { createdAt: '2024-03-01T10:00:00.000Z' };
    await world.remember('past', [
      user('aaa', 'The lamp of the lighthouse is amber', at),
      assistant('zzz', 'Wool is warm', at),
    ]);
    const { block } = await world.recall('here', user('q', 'Which lamp has the lighthouse?'));
    const seen = foundIn(block, ['amber', 'Wool']);
    return observed(seen === 'amber', `recalled: ${seen === 'Wool' ? 'the sibling' : 'the hit'}`);
  },
};

const microseconds: ConformanceCase = {
  id: 'S11',
  behaviour: 'a row with microseconds is found, with its neighbours',
  mastra: 'outside',
  async run(open) {
    await using world = await open({ recall: { topK: 1 } });
    if (world.system === 'Mastra') {
      return outside('needs PostgreSQL');
    }
    await world.rememberAt('past', [
      { id: 'mic1', text: 'Rain falls', ns: 1_700_000_000_123_455_001n },
      { id: 'mic2', text: 'The lamp of the lighthouse is amber', ns: 1_700_000_000_123_456_002n },
      { id: 'mic3', text: 'Wool is warm', ns: 1_700_000_000_123_456_003n },
    ]);
    const { block } = await world.recall('here', user('q', 'Which lamp has the lighthouse?'));
    const seen = foundIn(block, ['Rain', 'amber', 'Wool']);
    return observed(
      seen === 'Rain, amber, Wool',
      `the hit and ${countOf(block, ['Rain', 'Wool'])} neighbours (indexed by the client: times of Mastra’s messages have milliseconds)`,
    );
  },
};

const imageOnly: ConformanceCase = {
  id: 'S16',
  behaviour: 'a turn of a picture alone does not ask the previous question again',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.remember('past', [user('m1', 'The lamp of the lighthouse is amber')]);
    const { searched, everything } = await world.recall(
      'here',
      user('q', '', { ...LATE, parts: [picture()] }),
      [user('h1', 'Which lamp has the lighthouse?'), assistant('h2', 'Let me think')],
    );
    return observed(
      searched.length === 0 && everything === '',
      searched.length === 0 ? 'nothing searched' : `searched: ${searched.join()}`,
    );
  },
};

const sharedVectors: ConformanceCase = {
  id: 'S17',
  behaviour: 'vectors of two models or task types are never mixed, whatever the index is called',
  mastra: 'wrong',
  ours: 'outside',
  async run(open) {
    await using world = await open({ recall: { indexName: 'shared' } });
    if (world.system === 'ours') {
      return outside(
        'a sidecar has one model, and the default one treats questions like passages; prompts by tests/core/test_embedding_folder.py, two models by tests/core/test_messages_generations.py',
      );
    }
    await world.remember('past', [user('m1', 'The lamp of the lighthouse is amber')]);
    const ask = 'Which lamp has the lighthouse?';
    await world.recall('here', user('q1', ask));
    const before = world.calls();
    await world.recall('here', user('q2', ask), [], {
      recall: {
        indexName: 'shared',
        embedderOptions: { providerOptions: { words: { taskType: 'question' } } },
      },
    });
    const asked = world.calls() - before;
    return observed(asked > 0, `another task type: ${asked} texts embedded anew`);
  },
};

const singleFlight: ConformanceCase = {
  id: 'S18',
  behaviour: 'eight callers with the same new query cost one embedding',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    await world.remember('past', [user('m1', 'The lamp of the lighthouse is amber')]);
    const before = await world.textsEmbedded();
    await Promise.all(
      Array.from({ length: 8 }, (_, at) =>
        world.recall(`here-${at}`, user(`q${at}`, 'Which lamp has the lighthouse, all ask?')),
      ),
    );
    const embedded = (await world.textsEmbedded()) - before;
    // How many more depends on which of them was first.
    return observed(embedded === 1, `texts embedded: ${embedded === 1 ? '1' : 'more than 1'}`);
  },
};

const orBranches: ConformanceCase = {
  id: 'S26',
  behaviour: '`{$or: [{a: 1, b: 2}, {c: 3}]}`: keys of one branch hold together',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    const found = await world.matching(
      { $or: [{ a: 1, b: 2 }, { c: 3 }] },
      { 'a1-b2': { a: 1, b: 2 }, 'a1-b9': { a: 1, b: 9 }, c3: { c: 3 } },
    );
    const seen = [...found].sort((x, y) => (x < y ? -1 : 1)).join(', ');
    return observed(seen === 'a1-b2, c3', `found: ${seen}`);
  },
};

const noResource: ConformanceCase = {
  id: 'S27',
  behaviour: 'scope resource without a resource is said, not silently another scope',
  mastra: 'wrong',
  async run(open) {
    await using world = await open();
    const nobody = { resourceId: null };
    await world.remember('here', [user('m1', 'The lamp of the lighthouse is amber')], nobody);
    const before = world.logger.lines.length;
    await world.recall('here', user('q', 'Which lamp has the lighthouse?', LATE), [], nobody);
    const lines = world.logger.lines.length - before;
    return observed(lines > 0, `lines of log: ${lines}`);
  },
};

const names: ConformanceCase = {
  id: 'S32',
  behaviour: 'two models never share an index by their names alone',
  mastra: 'wrong',
  ours: 'outside',
  async run(open) {
    await using world = await open();
    if (world.system === 'ours') {
      return outside(
        'a sidecar has one model; its identity by tests/core/test_embedding_embedder.py, two models by tests/core/test_messages_generations.py',
      );
    }
    const models = ['text-embedding-3.small', 'text-embedding-3-small'];
    const indexes = await world.indexNames(models);
    return observed(indexes.length === 2, `${models.length} models, ${indexes.length} index`);
  },
};

/** Defects of what is searched and found. */
export const surpassSearch: readonly ConformanceCase[] = [
  filter,
  rebuild,
  dimensions,
  slots,
  siblings,
  microseconds,
  imageOnly,
  sharedVectors,
  singleFlight,
  orBranches,
  noResource,
  names,
];
