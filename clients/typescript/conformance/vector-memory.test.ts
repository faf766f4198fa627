/**
 * Mastra's own processor and `Memory` over `SemanticRecallVector`, with the sidecar's embedding
 * model: agents recall, and what is deleted, edited or given away leaves every index.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Agent } from '@mastra/core/agent';
import { SemanticRecall } from '@mastra/core/processors';
import type { MemoryStorage } from '@mastra/core/storage';
import { LibSQLStore } from '@mastra/libsql';
import { Memory } from '@mastra/memory';

import type { RecallClient } from '../src/index.js';
import { semanticRecallEmbedder } from '../src/adapters/embedder.js';
import { SemanticRecallVector, type SemanticRecallVectorOptions } from '../src/mastra/index.js';
import { startSidecar, type Sidecar } from '../tests/support/sidecar.js';
import { ScriptedModel } from './support/language-model.js';
import { user } from './support/messages.js';

const FACT = 'My dog Rex is allergic to chicken';
const QUESTION = 'What is Rex allergic to?';
const DIMENSIONS = 384;
const INDEX = `memory_messages_${DIMENSIONS}`;

let sidecar: Sidecar;
let client: RecallClient;
let worlds = 0;

before(async () => {
  sidecar = await startSidecar();
  client = sidecar.client();
});
after(() => sidecar.stop());

/** How a world's memory is set up. */
interface Setting {
  readonly vector?: SemanticRecallVectorOptions;
  readonly indexName?: string;
  /** A processor of Mastra beside a memory that has none: its index is named after the model. */
  readonly standalone?: boolean;
}

/** An agent with Mastra's own memory over a store of vectors that no other world knows. */
class World implements AsyncDisposable {
  readonly vector: SemanticRecallVector;
  readonly memory: Memory;
  readonly model = new ScriptedModel();
  readonly #agent: Agent;
  readonly #storage: LibSQLStore;
  readonly #folder: string;

  constructor(folder: string, setting: Setting) {
    worlds += 1;
    this.#folder = folder;
    this.vector = new SemanticRecallVector({
      client,
      resourceId: `world-${worlds}`,
      ...setting.vector,
    });
    const embedder = semanticRecallEmbedder({ client });
    this.#storage = new LibSQLStore({
      id: `rows-${worlds}`,
      url: `file:${join(folder, 'rows.db')}`,
    });
    const semanticRecall = {
      topK: 3,
      messageRange: 0,
      scope: 'resource' as const,
      ...(setting.indexName === undefined ? {} : { indexName: setting.indexName }),
    };
    this.memory = new Memory({
      storage: this.#storage,
      vector: this.vector,
      embedder,
      options: {
        semanticRecall: setting.standalone === true ? false : semanticRecall,
      },
    });
    const processors =
      setting.standalone === true
        ? async () => {
            const storage = await this.rows();
            return [
              new SemanticRecall({ storage, vector: this.vector, embedder, ...semanticRecall }),
            ];
          }
        : [];
    this.#agent = new Agent({
      id: `agent-${worlds}`,
      name: 'agent',
      instructions: 'Be brief.',
      model: this.model.model,
      memory: this.memory,
      inputProcessors: processors,
      outputProcessors: processors,
    });
  }

  static async open(setting: Setting = {}): Promise<World> {
    return new World(await mkdtemp(join(tmpdir(), 'semanticrecall-vector-')), setting);
  }

  async rows(): Promise<MemoryStorage> {
    const found = await this.#storage.getStore('memory');
    assert.ok(found);
    return found;
  }

  /** One turn of the agent; what the model was shown. */
  async turn(thread: string, text: string, resource = 'alice'): Promise<string> {
    await this.#agent.generate(text, { memory: { thread, resource } });
    return JSON.stringify(this.model.prompts.at(-1));
  }

  /** Texts that any index holds of a thread; an index that has two names holds them once. */
  async held(thread_id: string): Promise<string[]> {
    const found = new Map<string, string>();
    for (const indexName of await this.vector.listIndexes()) {
      const matches = await this.vector.query({ indexName, filter: { thread_id } });
      for (const { id, metadata } of matches) found.set(id, String(metadata?.['content']));
    }
    return [...found.values()].sort();
  }

  /** Ids of the messages of a thread, by their text. */
  async ids(threadId: string): Promise<Map<string, string>> {
    const { messages } = await this.memory.recall({ threadId, perPage: false });
    return new Map(
      messages.map(({ id, content }) => {
        const texts = content.parts.map((part) => (part.type === 'text' ? part.text : ''));
        return [texts.join(''), id];
      }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#storage.close();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** Whose index names what: `Memory`'s own, one that the user chose, one of the bare processor. */
const SETTINGS: Readonly<Record<string, Setting>> = {
  "Memory's own index": {},
  'an index of another name': { indexName: 'my_memory' },
  'the index of a bare processor': { standalone: true },
  'one index under two names': {
    indexName: 'my_memory',
    vector: { memoryIndexName: 'my_memory' },
  },
};

for (const [name, setting] of Object.entries(SETTINGS)) {
  describe(`with ${name}`, () => {
    test('an agent recalls what was said in another thread, and nobody else does', async () => {
      await using world = await World.open(setting);
      await world.turn('t1', FACT);
      assert.match(await world.turn('t2', QUESTION), /chicken/);
      assert.doesNotMatch(await world.turn('t3', QUESTION, 'bob'), /chicken/);
      assert.deepEqual(await world.held('t1'), ['All right.', FACT].sort());
    });

    test('a thread that is deleted leaves every index', async () => {
      await using world = await World.open(setting);
      await world.turn('t1', FACT);
      await world.turn('t2', 'The harbour is closed in June');
      await world.memory.deleteThread('t1');
      await world.memory.settled();
      assert.deepEqual(await world.held('t1'), []);
      assert.equal((await world.held('t2')).length, 2);
      assert.doesNotMatch(await world.turn('t3', QUESTION), /chicken/);
    });

    test('a message that is deleted leaves every index', async () => {
      await using world = await World.open(setting);
      await world.turn('t1', FACT);
      const id = (await world.ids('t1')).get(FACT);
      assert.ok(id);
      await world.memory.deleteMessages([id]);
      await world.memory.settled();
      assert.deepEqual(await world.held('t1'), ['All right.']);
      assert.doesNotMatch(await world.turn('t3', QUESTION), /chicken/);
    });
  });
}

describe('what Memory writes by itself', () => {
  for (const [name, setting] of Object.entries(SETTINGS)) {
    if (setting.standalone === true) continue; // that Memory has no semantic recall
    test(`an edit takes the old text out of every index: ${name}`, async () => {
      await using world = await World.open(setting);
      await world.turn('t1', FACT);
      const id = (await world.ids('t1')).get(FACT);
      assert.ok(id);
      const text = 'My dog Rex is allergic to beef';
      const { content } = user(id, text, { content: text });
      await world.memory.updateMessages({ messages: [{ id, content }] });
      assert.deepEqual(await world.held('t1'), ['All right.', text].sort());
      const isOne = setting.indexName === undefined || setting.vector !== undefined;
      const prompt = await world.turn('t2', QUESTION);
      assert.doesNotMatch(prompt, /chicken/);
      assert.equal(prompt.includes('beef'), isOne);
    });

    test(`a thread that is given away is no longer found by who had it: ${name}`, async () => {
      await using world = await World.open(setting);
      await world.turn('t1', FACT);
      await world.memory.updateThreadResourceId({ threadId: 't1', resourceId: 'bob' });
      assert.doesNotMatch(await world.turn('t2', QUESTION, 'alice'), /chicken/);
      const isOne = setting.indexName === undefined || setting.vector !== undefined;
      const theirs = await world.turn('t3', QUESTION, 'bob');
      assert.equal(theirs.includes('chicken'), isOne);
    });
  }

  test('its own recall and an agent find the same where there is one index', async () => {
    await using world = await World.open(SETTINGS['one index under two names']);
    await world.turn('t1', FACT);
    const { messages } = await world.memory.recall({
      threadId: 't2',
      resourceId: 'alice',
      vectorSearchString: QUESTION,
      threadConfig: { semanticRecall: { topK: 1, messageRange: 0, scope: 'resource' } },
    });
    assert.match(JSON.stringify(messages), /chicken/);
    assert.deepEqual(await world.vector.listIndexes(), ['my_memory', 'memory_messages']);
    assert.deepEqual(
      await world.vector.describeIndex({ indexName: INDEX }),
      await world.vector.describeIndex({ indexName: 'my_memory' }),
    );
  });
});

test('a deletion in one index stays there where it is not to reach others', async () => {
  await using world = await World.open({
    indexName: 'my_memory',
    vector: { deletesReachEveryIndex: false },
  });
  await world.turn('t1', FACT);
  assert.deepEqual(await world.vector.listIndexes(), ['my_memory']);
  await world.memory.deleteThread('t1');
  await world.memory.settled();
  assert.equal((await world.held('t1')).length, 2);
});

test('only deletions of Memory reach other indexes, and never those of observations', async () => {
  await using world = await World.open();
  const { vector } = world;
  const metadata = [{ message_id: 'm1', thread_id: 't1' }];
  const names = ['memory_messages', 'memory_observations_2', 'docs'];
  for (const indexName of names) {
    await vector.createIndex({ indexName, dimension: 2 });
    await vector.upsert({ indexName, ids: ['x'], vectors: [[1, 0]], metadata });
  }
  const counts = async (): Promise<number[]> => {
    const found = await Promise.all(names.map((indexName) => vector.describeIndex({ indexName })));
    return found.map(({ count }) => count);
  };
  await vector.deleteVectors({ indexName: 'memory_messages', filter: { thread_id: 't2' } });
  await vector.deleteVectors({
    indexName: 'memory_messages',
    filter: { thread_id: 't1', message_id: 'm2' },
  });
  await vector.deleteVectors({ indexName: 'memory_messages', ids: ['other'] });
  assert.deepEqual(await counts(), [1, 1, 1]);
  await vector.deleteVectors({ indexName: 'docs', filter: { thread_id: 't1' } });
  assert.deepEqual(await counts(), [1, 1, 0]);
  await vector.upsert({ indexName: 'docs', ids: ['x'], vectors: [[1, 0]], metadata });
  await vector.deleteVectors({
    indexName: 'memory_messages',
    filter: { message_id: { $in: ['m0', 'm1'] } },
  });
  assert.deepEqual(await counts(), [0, 1, 0]);
});

test('a message longer than metadata may be is found like any other', async () => {
  await using world = await World.open();
  const long = `${FACT}. ${'All work and no play. '.repeat(5_000)}😀`;
  await world.turn('t1', long);
  const held = await world.held('t1');
  assert.equal(held.length, 2);
  assert.ok(held.some((text) => text.length > 60_000 && long.startsWith(text)));
  assert.match(await world.turn('t2', FACT), /chicken/);
});

test('an embedder of other dimensions is refused by the index, not mixed into it', async () => {
  await using world = await World.open({ indexName: 'my_memory' });
  await world.turn('t1', FACT);
  await assert.rejects(world.vector.createIndex({ indexName: 'my_memory', dimension: 8 }), {
    id: 'VECTOR_VALIDATE_INDEX_DIMENSION_MISMATCH',
  });
});

test('everything is found after the sidecar was killed and started again', async () => {
  await using world = await World.open();
  await world.turn('t1', FACT);
  await sidecar.kill();
  await sidecar.start();
  assert.match(await world.turn('t2', QUESTION), /chicken/);
  assert.deepEqual(await world.vector.describeIndex({ indexName: INDEX }), {
    dimension: DIMENSIONS,
    count: 4,
    metric: 'cosine',
  });
});
