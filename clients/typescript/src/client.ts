/** The client: `RecallClient`. */
import { AdminCalls } from './admin.js';
import * as answers from './answers.js';
import { Calls, map } from './calls.js';
import { settingsOf } from './connection.js';
import * as requests from './requests.js';
import type {
  EmbedResult,
  ForgetResult,
  IndexResult,
  Message,
  RecallResult,
  ThreadInfo,
} from './results.js';
import { RecallSession, recallOrDegrade } from './session.js';
import * as v1 from './v1/index.js';
import type {
  CallOptions,
  ClientOptions,
  EmbedOptions,
  ForgetConditions,
  ForgetOptions,
  IndexBatch,
  IndexOptions,
  ListOptions,
  MessageInput,
  RecallOptions,
} from './values.js';
import { VectorCalls } from './vectors.js';
import { messageOfWire } from './wire.js';

const { method } = v1.RecallService;

/**
 * A sidecar's memory: index what was said, recall what matters.
 *
 * ```ts
 * import { RecallClient, user } from '@semanticrecall/client';
 *
 * const memory = new RecallClient();
 * await memory.index('user-42', 'thread-1', [user('Rex is allergic to chicken')]);
 * for (const found of await memory.recall('user-42', 'What can Rex not eat?')) {
 *   console.log(found.score, found.message.text);
 * }
 * ```
 *
 * It holds nothing of a conversation, only the connection: share one per process. Nothing is
 * connected until the first call, and a client that has been idle for a fifth of a second does not
 * keep the process alive. Every method
 * takes `timeoutMs` and `signal`, and rejects with a {@link SemanticRecallError}: any of them with
 * InvalidArgumentError, UnauthenticatedError, ResourceExhaustedError, DeadlineExceededError,
 * UnavailableError and InternalError, beside those it names.
 */
export class RecallClient implements AsyncDisposable {
  /** State and care of the store. */
  readonly admin: AdminCalls;
  /** Named collections of the caller's own vectors. */
  readonly vectors: VectorCalls;
  readonly #calls: Calls;

  /**
   * @param options - all optional; a string is an address.
   * @throws InvalidArgumentError where one makes no sense.
   */
  constructor(options?: ClientOptions | string) {
    this.#calls = new Calls(settingsOf(options));
    this.admin = new AdminCalls(this.#calls);
    this.vectors = new VectorCalls(this.#calls);
  }

  /** Where the sidecar is. */
  get address(): string {
    return this.#calls.settings.address;
  }

  /** Whether it was closed: calls reject then. */
  get isClosed(): boolean {
    return this.#calls.isClosed;
  }

  /**
   * Finds the messages that matter to a query, with their neighbours.
   *
   * @param resourceId - whose memory.
   * @param query - what to look for. Blank gives an empty answer, never an error.
   * @throws FailedPreconditionError where `queryEmbedding` does not fit the model, or `readToken` is
   *     another store's.
   */
  async recall(
    resourceId: string,
    query: string,
    options?: RecallOptions & CallOptions,
  ): Promise<RecallResult> {
    const request = requests.recall(resourceId, query, options);
    return await recallOrDegrade(this.#calls, request, options);
  }

  /**
   * One open stream for many recalls. `recall` shares one by itself while recalls follow each other
   * closely: see {@link RecallSession} for what this is for.
   */
  recallStream(): RecallSession {
    return new RecallSession(this.#calls);
  }

  /**
   * Stores messages durably and makes them searchable. Idempotent by message id.
   *
   * A bad message is rejected by itself (`IndexResult.rejected`, and a warning); the others are
   * stored. `throwIfRejected()` makes that an error.
   *
   * @param threadId - the conversation; may be "" where every message names its own.
   * @param messages - 1 to 1,000, in the order they were said. More: `indexStream`.
   */
  async index(
    resourceId: string,
    threadId: string,
    messages: readonly MessageInput[],
    options?: IndexOptions & CallOptions,
  ): Promise<IndexResult> {
    const request = requests.index(resourceId, threadId, messages, options);
    const result = answers.index(await this.#calls.index(request, options));
    for (const { messageId, error } of result.rejected) {
      const why = error?.message ?? 'no reason given';
      this.#calls.settings.logger.warn('a message was rejected', { messageId, why });
    }
    return result;
  }

  /**
   * Indexes many batches on one stream, as fast as the sidecar takes them: one result a batch, in
   * order. A batch that fails as a whole has its `error` set; the stream goes on.
   */
  indexStream(
    batches: AsyncIterable<IndexBatch> | Iterable<IndexBatch>,
    options?: CallOptions,
  ): AsyncIterableIterator<IndexResult> {
    requests.callOptions(options);
    const indexRequests = requests.indexBatches(batches);
    return map(this.#calls.duplex(method.indexStream, indexRequests, options), answers.index);
  }

  /** Removes the messages that meet all conditions, e.g. what one author wrote in a week. */
  async forget(
    resourceId: string,
    conditions: ForgetConditions,
    options?: ForgetOptions & CallOptions,
  ): Promise<ForgetResult> {
    return this.#forget(requests.forgetConditions(resourceId, conditions, options), options);
  }

  /** Removes messages (1 to 10,000 ids) from every answer at once. Unknown ids count zero. */
  async forgetMessages(
    resourceId: string,
    ids: readonly string[],
    options?: ForgetOptions & CallOptions,
  ): Promise<ForgetResult> {
    return this.#forget(requests.forgetMessages(resourceId, ids, options), options);
  }

  /** Removes a thread with all its messages. */
  async forgetThread(
    resourceId: string,
    threadId: string,
    options?: ForgetOptions & CallOptions,
  ): Promise<ForgetResult> {
    return this.#forget(requests.forgetThread(resourceId, threadId, options), options);
  }

  /** Removes all that is known of a resource. */
  async forgetEverything(
    resourceId: string,
    options?: ForgetOptions & CallOptions,
  ): Promise<ForgetResult> {
    return this.#forget(requests.forgetEverything(resourceId, options), options);
  }

  /** Removes the messages of a resource that were created before a time. */
  async forgetBefore(
    resourceId: string,
    date: Date,
    options?: ForgetOptions & CallOptions,
  ): Promise<ForgetResult> {
    return this.#forget(requests.forgetBefore(resourceId, date, options), options);
  }

  async #forget(
    request: v1.ForgetRequest,
    options: CallOptions | undefined,
  ): Promise<ForgetResult> {
    return answers.forget(await this.#calls.unary(method.forget, request, options));
  }

  /**
   * A thread's, or a whole resource's, messages by time; pages are fetched as needed. `timeoutMs`
   * is for each page.
   */
  listMessages(
    resourceId: string,
    options?: ListOptions & CallOptions,
  ): AsyncIterableIterator<Message> {
    const { request, limit } = requests.listMessages(resourceId, options);
    return this.#messages(request, limit, options);
  }

  async *#messages(
    request: v1.ListMessagesRequest,
    limit: number,
    options: CallOptions | undefined,
  ): AsyncGenerator<Message, void, undefined> {
    let left = limit;
    do {
      const page = await this.#calls.unary(method.listMessages, request, options);
      for (const message of page.messages) {
        yield messageOfWire(message);
        if (--left <= 0) return;
      }
      request.pageToken = page.nextPageToken;
    } while (request.pageToken !== '');
  }

  /**
   * Messages by id (1 to 1,000), in the order asked.
   *
   * @throws NotFoundError where one of them is not this resource's.
   */
  async getMessages(
    resourceId: string,
    ids: readonly string[],
    options?: CallOptions,
  ): Promise<Message[]> {
    requests.callOptions(options);
    const request = requests.getMessages(resourceId, ids);
    const answer = await this.#calls.unary(method.getMessages, request, options);
    return answer.messages.map(messageOfWire);
  }

  /**
   * The resource's threads, most recently active first; pages are fetched as needed. `timeoutMs` is
   * for each page.
   */
  listThreads(resourceId: string, options?: CallOptions): AsyncIterableIterator<ThreadInfo> {
    requests.callOptions(options);
    return this.#threads(requests.listThreads(resourceId), options);
  }

  async *#threads(
    request: v1.ListThreadsRequest,
    options: CallOptions | undefined,
  ): AsyncGenerator<ThreadInfo, void, undefined> {
    do {
      const page = await this.#calls.unary(method.listThreads, request, options);
      yield* page.threads.map(answers.thread);
      request.pageToken = page.nextPageToken;
    } while (request.pageToken !== '');
  }

  /**
   * Gives a thread with all its messages to another resource; how many went.
   *
   * @throws NotFoundError where this resource has no such thread. Also after a call that was lost on
   *     its way back: it is never sent twice by itself.
   * @throws AlreadyExistsError where the other resource holds a thread or a message of the same id.
   */
  async transferThread(
    resourceId: string,
    threadId: string,
    toResourceId: string,
    options?: CallOptions,
  ): Promise<number> {
    requests.callOptions(options);
    const request = requests.transferThread(resourceId, threadId, toResourceId);
    return Number((await this.#calls.unary(method.transferThread, request, options)).messages);
  }

  /** Unit vectors of 1 to 256 texts, by the server's model. */
  async embed(
    texts: readonly string[],
    options?: EmbedOptions & CallOptions,
  ): Promise<EmbedResult> {
    const request = requests.embed(texts, options);
    return answers.embed(await this.#calls.unary(method.embed, request, options));
  }

  /** Gives the connection up; calls under way reject, later ones too. */
  async close(): Promise<void> {
    this.#calls.close();
    return Promise.resolve();
  }

  /** As {@link RecallClient.close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
