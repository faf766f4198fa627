/** A client that remembers what it was asked, and answers what it is told to. */
import type {
  CallOptions,
  IndexOptions,
  MessageInput,
  MessageOutcome,
  RecallOptions,
} from '../../src/index.js';
import { IndexResult, RecallResult } from '../../src/index.js';

/** One recall that was asked for. */
export interface RecallCall {
  resourceId: string;
  query: string;
  options: (RecallOptions & CallOptions) | undefined;
}

/** One indexing that was asked for. */
export interface IndexCall {
  resourceId: string;
  threadId: string;
  messages: readonly MessageInput[];
  options: (IndexOptions & CallOptions) | undefined;
}

/** Stands in for a `RecallClient` where no sidecar is needed. */
export class FakeMemory {
  readonly recalls: RecallCall[] = [];
  readonly indexes: IndexCall[] = [];
  /** What recalls answer; a function may throw. */
  answer: () => RecallResult | Promise<RecallResult> = () => new RecallResult();
  /** What becomes of every message; a function may throw. */
  outcome: (message: MessageInput) => MessageOutcome = (message) => ({
    messageId: message.id ?? '',
    status: 'indexed',
    error: undefined,
  });

  /** Indexing is answered when this is fulfilled. */
  held: Promise<void> = Promise.resolve();

  /** Answers with this text from now on. */
  saying(contextText: string): this {
    this.answer = () => new RecallResult({ contextText });
    return this;
  }

  async recall(
    resourceId: string,
    query: string,
    options?: RecallOptions & CallOptions,
  ): Promise<RecallResult> {
    this.recalls.push({ resourceId, query, options });
    return await this.answer();
  }

  async index(
    resourceId: string,
    threadId: string,
    messages: readonly MessageInput[],
    options?: IndexOptions & CallOptions,
  ): Promise<IndexResult> {
    this.indexes.push({ resourceId, threadId, messages, options });
    await this.held;
    const info = { embeddingsComputed: 0, embeddingsCached: 0, durableUs: 0, totalUs: 0 };
    return new IndexResult({ outcomes: messages.map(this.outcome), readToken: '', info });
  }
}
