import { join } from 'node:path';

import { MessageList } from '@mastra/core/agent/message-list';
import { globalEmbeddingCache, SemanticRecall } from '@mastra/core/processors';
import type { QueryResult } from '@mastra/core/vector';
import { LibSQLVector } from '@mastra/libsql';
import { Memory } from '@mastra/memory';

import { user } from './messages.js';
import { WordEmbedder } from './word-embedder.js';
import {
  World,
  type ConditionFilter,
  type IndexedMessage,
  type RecallProcessor,
  type RecallSettings,
  type WorldSettings,
} from './world.js';

/** Mastra's own vector store, with its queries counted. */
class CountedVector extends LibSQLVector {
  queries = 0;

  override query(...args: Parameters<LibSQLVector['query']>): ReturnType<LibSQLVector['query']> {
    this.queries += 1;
    return super.query(...args);
  }

  /** Every vector of a resource. */
  all(indexName: string, dimension: number, resourceId: string): Promise<QueryResult[]> {
    const queryVector = new Array<number>(dimension).fill(1);
    return super.query({
      indexName,
      queryVector,
      topK: 1000,
      filter: { resource_id: resourceId },
    });
  }
}

function indexedMessage(id: string, metadata: Record<string, unknown>): IndexedMessage {
  const field = (name: string): string => {
    const value = metadata[name];
    return typeof value === 'string' ? value : '';
  };
  return {
    key: id,
    id: field('message_id'),
    threadId: field('thread_id'),
    resourceId: field('resource_id'),
    role: field('role'),
    text: field('content'),
    createdAt: field('created_at'),
  };
}

/** Mastra's own processor on LibSQL: built by `Memory` for agents, by hand for calls of a hook. */
export class MastraWorld extends World {
  override readonly system = 'Mastra';
  readonly embedder: WordEmbedder;
  readonly vector: CountedVector;

  private constructor(directory: string, settings: WorldSettings) {
    super(directory, settings);
    this.embedder = new WordEmbedder(settings.embedder);
    this.vector = new CountedVector({
      id: `vectors-${this.number}`,
      url: `file:${join(directory, 'vectors.db')}`,
    });
  }

  /** A world without messages. */
  static async open(settings: WorldSettings): Promise<MastraWorld> {
    // It is shared by the whole process, and keyed by the index's name and the text alone.
    globalEmbeddingCache.clear();
    const world = new MastraWorld(await World.folder(), settings);
    await world.openRows();
    return world;
  }

  override processor(settings: RecallSettings = this.settings.recall ?? {}): RecallProcessor {
    return new SemanticRecall({
      // The index that `Memory` uses, so that hooks and agents see the same.
      indexName: `memory_messages_${this.embedder.dimensions}`,
      storage: this.rows,
      vector: this.vector,
      embedder: this.embedder,
      logger: this.logger,
      ...settings,
    });
  }

  protected override createMemory(): Memory {
    return new Memory({
      storage: this.storage,
      vector: this.vector,
      embedder: this.embedder,
      options: {
        ...this.memoryOptions(),
        semanticRecall: { topK: 4, messageRange: 1, ...this.settings.recall },
      },
    });
  }

  protected override agentProcessors(): RecallProcessor[] {
    return [];
  }

  override async indexed(resourceId = this.user): Promise<IndexedMessage[]> {
    const found: IndexedMessage[] = [];
    for (const indexName of await this.vector.listIndexes()) {
      const { dimension } = await this.vector.describeIndex({ indexName });
      const rows = await this.vector.all(indexName, dimension, resourceId);
      found.push(...rows.map((row) => indexedMessage(row.id, row.metadata ?? {})));
    }
    return found;
  }

  protected override searches(): readonly string[] {
    return this.embedder.calls.flat();
  }

  override textsEmbedded(): Promise<number> {
    // 'a' is how Memory asks for the number of dimensions.
    const texts = this.embedder.calls.flat().filter((text) => text !== 'a');
    return Promise.resolve(texts.length);
  }

  override indexes(): Promise<readonly string[]> {
    return Promise.reject(new Error('the store is not ours'));
  }

  override calls(): number {
    return this.embedder.calls.length;
  }

  override rememberAt(): Promise<void> {
    return Promise.reject(new Error('times of LibSQL have milliseconds'));
  }

  override async matching(
    filter: ConditionFilter,
    items: Readonly<Record<string, Record<string, number>>>,
  ): Promise<readonly string[]> {
    const indexName = 'conditions';
    const ids = Object.keys(items);
    await this.vector.createIndex({ indexName, dimension: 2 });
    await this.vector.upsert({
      indexName,
      ids,
      vectors: ids.map(() => [1, 0]),
      metadata: Object.values(items),
    });
    const found = await this.vector.query({
      indexName,
      queryVector: [1, 0],
      filter: { $or: [...filter.$or] },
    });
    return found.map(({ id }) => id);
  }

  override async indexNames(models: readonly string[]): Promise<readonly string[]> {
    for (const modelId of models) {
      const processor = new SemanticRecall({
        storage: this.rows,
        vector: this.vector,
        embedder: new WordEmbedder({ modelId }),
      });
      const list = new MessageList({ threadId: 'here', resourceId: this.user });
      list.add([user(`of-${modelId}`, 'The door is red')], 'input');
      await this.showTo(processor, { threadId: 'here', list, responses: [] });
    }
    return this.vector.listIndexes();
  }

  override async scores(query: string): Promise<ReadonlyMap<string, number>> {
    const scores = new Map<string, number>();
    const [queryVector] = await this.vectorsOf([query]);
    for (const indexName of await this.vector.listIndexes()) {
      const found = await this.vector.query({
        indexName,
        queryVector: [...(queryVector ?? [])],
        topK: 1000,
        filter: { resource_id: this.user },
      });
      for (const { id, score } of found) {
        scores.set(id, score);
      }
    }
    return scores;
  }

  override async vectorsOf(texts: readonly string[]): Promise<readonly (readonly number[])[]> {
    const { embeddings } = await new WordEmbedder(this.settings.embedder).doEmbed({
      values: [...texts],
    });
    return embeddings;
  }

  override memoryWithItsOwn(): Memory {
    return this.memory;
  }

  override takeDown(): void {
    this.embedder.down = true;
  }

  override bringBack(): Promise<void> {
    this.embedder.down = false;
    return Promise.resolve();
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    await this.vector.close();
    await super[Symbol.asyncDispose]();
  }
}
