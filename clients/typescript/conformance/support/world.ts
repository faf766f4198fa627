import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Mastra } from '@mastra/core';
import { Agent } from '@mastra/core/agent';
import { MessageList, type MastraDBMessage } from '@mastra/core/agent/message-list';
import {
  MessageHistory,
  type InputProcessor,
  type OutputProcessor,
  type Processor,
  type ProcessOutputResultArgs,
} from '@mastra/core/processors';
import { RequestContext } from '@mastra/core/request-context';
import type { MemoryStorage } from '@mastra/core/storage';
import type { ToolsInput } from '@mastra/core/agent';
import { LibSQLStore } from '@mastra/libsql';
import type { Memory } from '@mastra/memory';

import type { JsonObject } from '../../src/index.js';
import { ScriptedModel } from './language-model.js';
import { RecordingLogger } from './logger.js';
import type { WordEmbedderOptions } from './word-embedder.js';

/** Whose processor. */
export type SystemName = 'Mastra' | 'ours';

/** What both processors are given, and what only one of them knows. */
export interface RecallSettings {
  readonly topK?: number;
  readonly messageRange?: number | { readonly before: number; readonly after: number };
  readonly scope?: 'thread' | 'resource';
  readonly threshold?: number;
  readonly indexName?: string;
  readonly embedderOptions?: { readonly providerOptions?: Record<string, Record<string, string>> };
  readonly filter?: JsonObject;
  readonly maxTokens?: number;
  readonly contextFormat?: 'default' | 'mastra';
  readonly timeZone?: string;
  readonly placement?: 'system' | 'beforeLastUser';
}

/** How a world differs from the default. */
export interface WorldSettings {
  readonly recall?: RecallSettings;
  /** Newest messages of the thread that `MessageHistory` brings. Default 10. */
  readonly lastMessages?: number | false;
  readonly tools?: ToolsInput;
  readonly workingMemory?: boolean;
  /** Of Mastra's embedder. */
  readonly embedder?: WordEmbedderOptions;
  /** In the world that is ours: Mastra's own memory over `SemanticRecallVector`, no processor. */
  readonly store?: {
    readonly indexConfig?: { readonly type: 'hnsw'; readonly metric: 'dotproduct' };
  };
}

/** One message as the index knows it. */
export interface IndexedMessage {
  /** What the index knows it by. */
  readonly key: string;
  /** The message's id. */
  readonly id: string;
  readonly threadId: string;
  readonly resourceId: string;
  readonly role: string;
  readonly text: string;
  readonly createdAt: string;
}

/** A condition on numbers in metadata. */
export interface ConditionFilter {
  readonly $or: readonly Record<string, number>[];
}

/** A text and its time in nanoseconds since 1970. */
export interface TimedText {
  readonly id: string;
  readonly text: string;
  readonly ns: bigint;
}

/** Where a hook is called. */
export interface Place {
  /** Default: the world's user. `null`: none. */
  readonly resourceId?: string | null;
  readonly threadMetadata?: Record<string, unknown>;
  readonly memoryConfig?: Record<string, unknown>;
  /** Options of the processor for this call. Default: the world's. */
  readonly recall?: RecallSettings;
  /** False: the hook is called without any memory context. */
  readonly context?: false;
}

/** What one call of the input hook did. */
export interface Recalled {
  /** Ids of what is now in the list with the source `memory` and was not before, in list order. */
  readonly ids: readonly string[];
  /** Those messages. */
  readonly messages: readonly MastraDBMessage[];
  /** The system messages tagged `memory`, one below the other. */
  readonly block: string;
  /** Ids plus block: everything that was recalled. */
  readonly everything: string;
  /** How many system messages are tagged `memory`. */
  readonly blocks: number;
  /** Texts that were searched for. */
  readonly searched: readonly string[];
  /** Whether the hook gave back the list that it got. */
  readonly sameList: boolean;
}

/** What came of one turn of an agent. */
export interface Turn {
  /** What the turn threw, or ended with. */
  readonly failure: Error | undefined;
  /** The prompt of the first model call, one line a message: `role: text`. */
  readonly prompt: string;
}

/** What the output hook is shown. */
export interface Output {
  readonly threadId: string;
  readonly list: MessageList;
  readonly responses: readonly MastraDBMessage[];
  readonly place?: Place;
}

/** A processor with both hooks. */
export type RecallProcessor = Processor & InputProcessor & OutputProcessor;

function abort(): never {
  throw new Error('aborted');
}

function lineOf(content: unknown): string {
  if (typeof content === 'string') {
    return content;
  }
  if (!Array.isArray(content)) {
    return '';
  }
  return content
    .map((part: { type: string; text?: string }) => part.text ?? `[${part.type}]`)
    .join(' ');
}

const USAGE = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };

let worlds = 0;

/** One system with a store, a scripted model and a user of its own. */
export abstract class World implements AsyncDisposable {
  abstract readonly system: SystemName;
  /** A user whom no other world knows. */
  readonly user: string;
  readonly model = new ScriptedModel();
  readonly logger = new RecordingLogger();
  readonly storage: LibSQLStore;
  protected readonly number: number;
  private memoryRows: MemoryStorage | undefined;
  private agentMemory: Memory | undefined;
  private agent: Agent | undefined;

  protected constructor(
    protected readonly directory: string,
    readonly settings: WorldSettings,
  ) {
    worlds += 1;
    this.number = worlds;
    this.user = `user-${this.number}`;
    this.storage = new LibSQLStore({
      id: `rows-${this.number}`,
      url: `file:${join(directory, 'rows.db')}`,
    });
  }

  /** A folder for a world's files. */
  protected static folder(): Promise<string> {
    return mkdtemp(join(tmpdir(), 'semanticrecall-conformance-'));
  }

  /** The processor by itself. */
  abstract processor(settings?: RecallSettings): RecallProcessor;
  /** The memory of the world's agent. */
  get memory(): Memory {
    this.agentMemory ??= this.createMemory();
    return this.agentMemory;
  }

  protected abstract createMemory(): Memory;
  /** What an agent is given as processors beside its memory. */
  protected abstract agentProcessors(): RecallProcessor[];
  /** Everything that the index holds of the user. */
  abstract indexed(resourceId?: string): Promise<IndexedMessage[]>;
  /** The system's own cosine of each of the user's messages with a query, by message id. */
  abstract scores(query: string): Promise<ReadonlyMap<string, number>>;
  /** Vectors of texts, by the system's model. */
  abstract vectorsOf(texts: readonly string[]): Promise<readonly (readonly number[])[]>;
  /** A memory that has a processor of Mastra's own configured. */
  abstract memoryWithItsOwn(): Memory;
  /** Texts searched for so far. */
  protected abstract searches(): readonly string[];
  /** How many texts the model was run for so far. */
  abstract textsEmbedded(): Promise<number>;
  /** The indexes of the vector store of ours: name, dimensions, metric, vectors. */
  abstract indexes(): Promise<readonly string[]>;
  /** How many calls of an embedder, or of a sidecar, were answered so far. */
  abstract calls(): number;
  /** Indexes messages of the user with times to the nanosecond, where the system can. */
  abstract rememberAt(threadId: string, messages: readonly TimedText[]): Promise<void>;
  /** Which of these items meet a condition on their metadata, by the system's filter. */
  abstract matching(
    filter: ConditionFilter,
    items: Readonly<Record<string, Record<string, number>>>,
  ): Promise<readonly string[]>;
  /** What Mastra calls the indexes of models of these names. */
  abstract indexNames(models: readonly string[]): Promise<readonly string[]>;
  /** From now on nothing can be embedded, and nothing of ours reached. */
  abstract takeDown(): void;
  /** Undoes `takeDown`. */
  abstract bringBack(): Promise<void>;

  /** The rows. */
  get rows(): MemoryStorage {
    if (this.memoryRows === undefined) {
      throw new Error('the world is not open');
    }
    return this.memoryRows;
  }

  /** Makes the tables. */
  protected async openRows(): Promise<void> {
    await this.storage.init();
    this.memoryRows = await this.storage.getStore('memory');
  }

  /** What both systems' memories have in common. */
  protected memoryOptions(): { lastMessages: number | false; workingMemory?: { enabled: true } } {
    return {
      lastMessages: this.settings.lastMessages ?? 10,
      ...(this.settings.workingMemory === true ? { workingMemory: { enabled: true } } : {}),
    };
  }

  /** Saves messages as rows and shows each to the output hook, as an agent does after its turn. */
  async remember(
    threadId: string,
    messages: readonly MastraDBMessage[],
    place: Place & { readonly rows?: boolean } = {},
  ): Promise<void> {
    const resourceId = place.resourceId === undefined ? this.user : place.resourceId;
    const owned = messages.map((message) => ({
      ...message,
      threadId,
      ...(resourceId === null ? {} : { resourceId }),
    }));
    if (place.rows !== false && resourceId !== null) {
      await this.saveThread(threadId, resourceId, place.threadMetadata);
      await this.rows.saveMessages({ messages: owned });
    }
    for (const message of owned) {
      // A list moves equal times apart, so each message has its own.
      const list = new MessageList({ threadId, ...(resourceId === null ? {} : { resourceId }) });
      const source = message.role === 'assistant' ? 'response' : 'input';
      list.add(message, source);
      await this.showOutput(threadId, list, source === 'response' ? [message] : [], place);
    }
  }

  /** Calls the output hook. */
  async showOutput(
    threadId: string,
    list: MessageList,
    responses: MastraDBMessage[],
    place: Place = {},
  ): Promise<void> {
    const processor = this.processor(place.recall);
    await this.showTo(processor, { threadId, list, responses, place });
  }

  /** Calls the output hook of a processor. */
  protected async showTo(processor: RecallProcessor, output: Output): Promise<void> {
    await processor.processOutputResult?.(this.outputArgs(output, 'stop'));
  }

  /** Ends a turn as an agent does whose model failed before it said anything. */
  async endFailedTurn(threadId: string, asked: MastraDBMessage): Promise<void> {
    const list = new MessageList({ threadId, resourceId: this.user });
    list.add([asked], 'input');
    const args = this.outputArgs({ threadId, list, responses: [] }, 'error');
    await this.processor().processOutputResult?.(args);
    await new MessageHistory({ storage: this.rows }).processOutputResult(args);
  }

  private outputArgs(output: Output, finishReason: string): ProcessOutputResultArgs {
    return {
      messages: [...output.responses],
      messageList: output.list,
      abort,
      requestContext: this.context(output.threadId, output.place ?? {}),
      retryCount: 0,
      state: {},
      result: { text: '', usage: USAGE, finishReason, steps: [] },
    };
  }

  /** Calls the input hook with a list that holds `history` and then `input`. */
  async recall(
    threadId: string | null,
    input: MastraDBMessage | MastraDBMessage[],
    history: readonly MastraDBMessage[] = [],
    place: Place = {},
  ): Promise<Recalled> {
    const resourceId = place.resourceId === undefined ? this.user : place.resourceId;
    const list = new MessageList({
      ...(threadId === null ? {} : { threadId }),
      ...(resourceId === null ? {} : { resourceId }),
    });
    list.add(structuredClone([...history]), 'memory');
    list.add(structuredClone(Array.isArray(input) ? [...input] : [input]), 'input');
    const before = new Set(list.get.all.db().map((message) => message.id));
    const searchedBefore = this.searches().length;
    const result = await this.processor(place.recall).processInput?.({
      messages: list.get.all.db(),
      messageList: list,
      systemMessages: [],
      abort,
      requestContext: this.context(threadId, place),
      retryCount: 0,
      state: {},
    });
    const messages = list.get.remembered.db().filter((message) => !before.has(message.id));
    const tagged = list.getSystemMessages('memory').map((message) => lineOf(message.content));
    // Marks of gaps are messages of the prompt alone.
    const ids = messages.map(({ id }) => id).filter((id) => !id.startsWith('semantic-recall:'));
    return {
      ids,
      messages,
      block: tagged.join('\n'),
      blocks: tagged.length,
      everything: [...messages.map((message) => JSON.stringify(message.content)), ...tagged].join(
        '\n',
      ),
      searched: this.searches().slice(searchedBefore),
      sameList: result === list,
    };
  }

  /** One turn of an agent with this world's memory. */
  async turn(threadId: string, input: string | MastraDBMessage, place: Place = {}): Promise<Turn> {
    const calls = this.model.prompts.length;
    const failure = await this.generate(threadId, input, place);
    const prompt = (this.model.prompts[calls] ?? [])
      .map((message) => `${message.role}: ${lineOf(message.content)}`)
      .join('\n');
    return { failure, prompt };
  }

  private async generate(
    threadId: string,
    input: string | MastraDBMessage,
    place: Place,
  ): Promise<Error | undefined> {
    this.agent ??= this.createAgent();
    const { threadMetadata: metadata, resourceId } = place;
    const thread = { id: threadId, ...(metadata === undefined ? {} : { metadata }) };
    const memory = { thread, resource: resourceId ?? this.user };
    try {
      const { error } = await this.agent.generate(typeof input === 'string' ? input : [input], {
        memory,
      });
      return error;
    } catch (error) {
      return error instanceof Error ? error : new Error(String(error));
    }
  }

  /** Saves a thread's row. */
  async saveThread(
    threadId: string,
    resourceId: string,
    metadata: Record<string, unknown> = {},
  ): Promise<void> {
    const at = new Date('2024-01-01T00:00:00Z');
    await this.rows.saveThread({
      thread: { id: threadId, resourceId, title: '', metadata, createdAt: at, updatedAt: at },
    });
  }

  /** Ends what the world holds. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.storage.close();
    await rm(this.directory, { recursive: true, force: true });
  }

  private createAgent(): Agent {
    const processors = this.agentProcessors();
    const agent = new Agent({
      id: 'conformance',
      name: 'conformance',
      instructions: 'You are a helpful assistant.',
      model: this.model.model,
      memory: this.memory,
      inputProcessors: processors,
      outputProcessors: processors,
      tools: this.settings.tools ?? {},
    });
    new Mastra({ agents: { agent }, storage: this.storage, logger: this.logger });
    return agent;
  }

  private context(threadId: string | null, place: Place): RequestContext {
    const context = new RequestContext();
    if (place.context === false) {
      return context;
    }
    const resourceId = place.resourceId === undefined ? this.user : place.resourceId;
    context.set('MastraMemory', {
      ...(threadId === null
        ? {}
        : {
            thread: {
              id: threadId,
              ...(resourceId === null ? {} : { resourceId }),
              ...(place.threadMetadata === undefined ? {} : { metadata: place.threadMetadata }),
            },
          }),
      ...(resourceId === null ? {} : { resourceId }),
      ...(place.memoryConfig === undefined ? {} : { memoryConfig: place.memoryConfig }),
    });
    return context;
  }
}
