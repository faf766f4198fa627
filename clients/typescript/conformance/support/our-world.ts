import { LibSQLVector } from '@mastra/libsql';
import { Memory } from '@mastra/memory';

import {
  RecallClient,
  type CallOptions,
  type IndexOptions,
  type IndexResult,
  type JsonObject,
  type MessageInput,
  type RecallOptions,
  type RecallResult,
} from '../../src/index.js';
import { SemanticRecall, SemanticRecallVector } from '../../src/mastra/index.js';
import { Gate } from './gate.js';
import { user } from './messages.js';
import { WordEmbedder } from './word-embedder.js';
import {
  World,
  type ConditionFilter,
  type IndexedMessage,
  type RecallProcessor,
  type RecallSettings,
  type TimedText,
  type WorldSettings,
} from './world.js';

/** A client whose recalls and index calls are kept count of. */
class WatchedClient extends RecallClient {
  readonly queries: string[] = [];
  answered = 0;

  override async recall(
    resourceId: string,
    query: string,
    options?: RecallOptions & CallOptions,
  ): Promise<RecallResult> {
    this.queries.push(query);
    const result = await super.recall(resourceId, query, options);
    this.answered += 1;
    return result;
  }

  override async index(
    resourceId: string,
    threadId: string,
    messages: readonly MessageInput[],
    options?: IndexOptions & CallOptions,
  ): Promise<IndexResult> {
    const result = await super.index(resourceId, threadId, messages, options);
    this.answered += 1;
    return result;
  }
}

/** Our processor, given what the original was given, and a client. */
export class OurWorld extends World {
  override readonly system = 'ours';
  /** Handed to the processor as the original had it; never asked. */
  readonly embedder: WordEmbedder;
  readonly vector: LibSQLVector;
  /** Asked where the settings say so. */
  private readonly store: SemanticRecallVector;
  private readonly client: WatchedClient;
  /** Past the gate. */
  private readonly observer: RecallClient;

  private constructor(
    directory: string,
    settings: WorldSettings,
    private readonly gate: Gate,
    address: string,
  ) {
    super(directory, settings);
    this.embedder = new WordEmbedder(settings.embedder);
    this.vector = new LibSQLVector({ id: `unused-${this.number}`, url: ':memory:' });
    const logger = { warn: () => undefined };
    this.client = new WatchedClient({
      address: gate.address,
      failOpen: false,
      logger,
      // Where the gate is shut, nothing comes of waiting.
      connectTimeoutMs: 200,
    });
    this.observer = new RecallClient(address);
    this.store = new SemanticRecallVector({ client: this.observer, resourceId: this.user });
  }

  /** A world without messages, of the sidecar at this address. */
  static async open(settings: WorldSettings, address: string): Promise<OurWorld> {
    const world = new OurWorld(await World.folder(), settings, await Gate.to(address), address);
    await world.openRows();
    if (settings.store === undefined) await world.processor().follow(world.memory);
    return world;
  }

  override processor(settings: RecallSettings = this.settings.recall ?? {}): SemanticRecall {
    return new SemanticRecall({
      storage: this.rows,
      vector: this.vector,
      embedder: this.embedder,
      logger: this.logger,
      client: this.client,
      // Nothing here waits for time to pass: what was shown is searchable.
      wait: 'searchable',
      // Nothing depends on how busy the machine is.
      timeoutMs: 30_000,
      ...settings,
    });
  }

  protected override createMemory(): Memory {
    const { store, recall } = this.settings;
    if (store !== undefined) {
      return new Memory({
        storage: this.storage,
        vector: this.store,
        embedder: this.embedder,
        options: {
          ...this.memoryOptions(),
          semanticRecall: { topK: 4, messageRange: 1, ...recall, ...store },
        },
      });
    }
    return new Memory({
      storage: this.storage,
      options: { ...this.memoryOptions(), semanticRecall: false },
    });
  }

  override memoryWithItsOwn(): Memory {
    return new Memory({
      storage: this.storage,
      vector: this.vector,
      embedder: this.embedder,
      options: { semanticRecall: true },
    });
  }

  protected override agentProcessors(): RecallProcessor[] {
    return this.settings.store === undefined ? [this.processor()] : [];
  }

  override async indexed(resourceId = this.user): Promise<IndexedMessage[]> {
    const found: IndexedMessage[] = [];
    for await (const message of this.observer.listMessages(resourceId)) {
      const { id, threadId, role, text, createTime } = message;
      const createdAt = createTime.toISOString();
      found.push({
        key: id,
        id,
        threadId,
        resourceId: message.resourceId,
        role,
        text,
        createdAt,
      });
    }
    return found;
  }

  protected override searches(): readonly string[] {
    return this.client.queries;
  }

  override async textsEmbedded(): Promise<number> {
    const { cache } = await this.observer.admin.stats();
    return cache?.misses ?? 0;
  }

  override async indexes(): Promise<readonly string[]> {
    const found: string[] = [];
    for (const indexName of await this.store.listIndexes()) {
      const { dimension, metric, count } = await this.store.describeIndex({ indexName });
      found.push(`${indexName} ${dimension} ${metric} ${count}`);
    }
    return found;
  }

  override calls(): number {
    return this.client.answered;
  }

  override async scores(query: string): Promise<ReadonlyMap<string, number>> {
    const scores = new Map<string, number>();
    const options = { topK: 1000, ranking: { mode: 'dense' as const } };
    for (const { message, score } of (await this.observer.recall(this.user, query, options)).hits) {
      if (score !== undefined) {
        scores.set(message.id, score);
      }
    }
    return scores;
  }

  override async vectorsOf(texts: readonly string[]): Promise<readonly (readonly number[])[]> {
    const { embeddings } = await this.observer.embed(texts);
    return embeddings.map(({ values }) => values);
  }

  override async rememberAt(threadId: string, messages: readonly TimedText[]): Promise<void> {
    await this.observer.index(
      this.user,
      threadId,
      messages.map(({ id, text, ns }) => ({ id, role: 'user', text, createTimeNs: ns })),
    );
  }

  override async matching(
    filter: ConditionFilter,
    items: Readonly<Record<string, Record<string, number>>>,
  ): Promise<readonly string[]> {
    for (const [id, threadMetadata] of Object.entries(items)) {
      await this.remember(id, [user(id, `The door of ${id} is red`)], { threadMetadata });
    }
    const condition: JsonObject = { $or: filter.$or.map((branch) => ({ ...branch })) };
    const settings = { topK: 10, messageRange: 0, filter: condition };
    const { block } = await this.recall('here', user('q', 'Which door is red?'), [], {
      recall: settings,
    });
    return Object.keys(items).filter((id) => block.includes(`The door of ${id} is red`));
  }

  override indexNames(): Promise<readonly string[]> {
    return Promise.reject(new Error('a sidecar has one model'));
  }

  override takeDown(): void {
    this.gate.shut();
  }

  override async bringBack(): Promise<void> {
    await this.gate.open();
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    await this.client.close();
    await this.observer.close();
    this.gate.shut();
    await this.vector.close();
    await super[Symbol.asyncDispose]();
  }
}
