/** `SemanticRecall`: recall before a turn, indexing after it, as a processor of Mastra's agents. */
import type { MastraDBMessage, MessageList } from '@mastra/core/agent/message-list';
import type { ProcessInputArgs, ProcessOutputResultArgs, Processor } from '@mastra/core/processors';
import type { MemoryStorage } from '@mastra/core/storage';

import { errorFields } from '../adapters/error-fields.js';
import { isStorableId } from '../adapters/ids.js';
import { EXCLUDED_IDS_MAX } from '../adapters/limits.js';
import type { RecallResult } from '../results.js';
import type { CallOptions, JsonObject, RecallOptions } from '../values.js';
import { type FollowableMemory, type FollowableStore, follow } from './following.js';
import { NOTE_ID_PREFIX, note, type RecalledHere, withGapMarks } from './gap-marks.js';
import { indexableOrTold } from './indexable.js';
import { type SidecarLink, linkOf } from './link.js';
import { isOfUser, lastOf, queryOf, toMastra } from './messages.js';
import {
  filterOfRequest,
  optionsNotNeeded,
  type RecallLogger,
  type RecallSettings,
  type ResolvedOptions,
  resolveOptions,
  type SemanticRecallOptions,
  settingsOfRequest,
} from './options.js';
import { type RecallStats, Reporter } from './reporter.js';
import { threadMetadata, type TurnMemory, turnMemory } from './turn.js';

/** What `processInput` needs of its arguments. */
export type InputArgs = Pick<ProcessInputArgs, 'messages' | 'messageList'> &
  Partial<Pick<ProcessInputArgs, 'requestContext' | 'abortSignal' | 'agent'>>;

/** What `processOutputResult` needs of its arguments. */
export type OutputArgs = Pick<ProcessOutputResultArgs, 'messages'> &
  Partial<
    Pick<
      ProcessOutputResultArgs,
      'messageList' | 'requestContext' | 'abortSignal' | 'agent' | 'result'
    >
  >;

/** A turn's memory of which the owner is known. */
type OwnedMemory = TurnMemory & { readonly resourceId: string };

const FAILED: ReadonlySet<string> = new Set(['error', 'aborted', 'tripwire']);

/**
 * Semantic recall for Mastra's agents, over a sidecar. Takes the place of the class of that name in
 * `@mastra/core/processors`: same `id`, so that `Memory` adds none of its own, and same options.
 *
 * ```ts
 * import { SemanticRecall } from '@semanticrecall/client/mastra';
 *
 * const recall = new SemanticRecall({ topK: 4 });
 * new Agent({ memory, inputProcessors: [recall], outputProcessors: [recall] });
 * ```
 *
 * Before a turn, what matters to the user's last message is put into the list: messages of this
 * thread as themselves (source "memory"), those of other threads as one text. After it, what was
 * said is indexed. It never throws into the agent. Every failure is one line of log and one count
 * in {@link SemanticRecall.stats}; messages that could not be indexed wait in this process and are
 * sent with the next call ({@link SemanticRecall.pendingMessages}; they are lost with the process).
 */
export class SemanticRecall implements Processor<'semantic-recall'>, AsyncDisposable {
  readonly id = 'semantic-recall';
  readonly name = 'SemanticRecall';
  readonly #options: ResolvedOptions;
  readonly #reporter: Reporter;
  readonly #link: SidecarLink;
  readonly #seenAgents = new WeakSet();
  #following: Promise<void> = Promise.resolve();

  /** @throws InvalidArgumentError naming an option that is unknown or not allowed. */
  constructor(options: SemanticRecallOptions = {}) {
    this.#options = resolveOptions(options);
    this.#reporter = new Reporter(options.logger);
    this.#link = linkOf(options, this.#options);
    const notNeeded = optionsNotNeeded(options);
    if (notNeeded.length > 0) {
      const fields = { options: notNeeded.join(', ') };
      this.#reporter.debug('options that the sidecar makes needless', fields);
    }
    if (options.storage !== undefined) this.#following = this.#followOrTell(options.storage);
  }

  /** Counters since this processor was made. */
  get stats(): Readonly<RecallStats> {
    return { ...this.#reporter.counts };
  }

  /** Messages of this process that wait for the sidecar. */
  get pendingMessages(): number {
    return this.#link.writer.pendingMessages;
  }

  /**
   * Follows a memory, a store, or its memory domain: what is deleted, edited, cloned, moved to
   * another resource or given other thread metadata through it reaches the sidecar, and so does
   * what `memory.saveMessages` saves. Following twice changes nothing. The memory of an agent that
   * this processor runs in is followed by itself, from its first turn on (`followAgentMemory`).
   *
   * A deletion or a transfer that the sidecar does not acknowledge rejects, before anything is
   * changed in the store. An edit or a change of metadata rejects after the store has it, and
   * waits.
   */
  async follow(memory: FollowableMemory | FollowableStore | MemoryStorage): Promise<void> {
    await follow(memory, this.#link.follower, this.#reporter);
  }

  /**
   * Sends what waits for the sidecar, e.g. before the process ends: for 30 seconds at most. How
   * much waits still.
   */
  async flush(): Promise<number> {
    await this.#link.writer.flush({ wait: this.#options.wait, reporter: this.#reporter });
    return this.pendingMessages;
  }

  /** Gives the connection up, unless others use it or it was given. What waits is not sent. */
  async close(): Promise<void> {
    this.#reporter.close();
    await this.#link.release();
  }

  /** As {@link SemanticRecall.close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Called by Mastra: its logger is used where none was given. */
  __registerMastra(mastra: { getLogger(): RecallLogger }): void {
    try {
      this.#reporter.adoptLogger(mastra.getLogger());
    } catch (error) {
      this.#reporter.debug('no logger from Mastra', errorFields(error));
    }
  }

  /** Before a turn: recalls. Always resolves to the list it was given. */
  async processInput(args: InputArgs): Promise<MessageList> {
    const { messageList } = args;
    try {
      this.#followAgent(args);
      const memory = this.#memoryOf(args);
      if (memory !== undefined) await this.#recall(args, memory);
      await this.#following;
    } catch (error) {
      this.#reporter.failed('recallsFailed', 'could not recall', errorFields(error));
    }
    return messageList;
  }

  /** After a turn: indexes. Always resolves to the list it was given. */
  async processOutputResult(args: OutputArgs): Promise<MessageList | MastraDBMessage[]> {
    try {
      if (args.agent !== undefined && !this.#seenAgents.has(args.agent)) this.#followAgent(args);
      await this.#following;
      await this.#index(args);
    } catch (error) {
      this.#reporter.failed('indexFailed', 'could not index', errorFields(error));
    }
    return args.messageList ?? args.messages;
  }

  async #recall(args: InputArgs, memory: OwnedMemory): Promise<void> {
    const query = queryOf(args.messages);
    if (query === undefined) {
      this.#reporter.count('recallsWithoutQuery');
      return;
    }
    const settings = settingsOfRequest(this.#options, memory.semanticRecall);
    const { timeoutMs, wait } = this.#options;
    const signal = args.abortSignal;
    const startedMs = performance.now();
    const { writer } = this.#link;
    if (writer.pendingMessages > 0) {
      await writer.flush({ timeoutMs, signal, wait, reporter: this.#reporter });
    }
    this.#reporter.count('recalls');
    const asking = newQuestionId(args);
    const present = args.messageList.get.all.db();
    const ask = (without: string | undefined): Promise<RecallResult | undefined> =>
      this.#ask(memory, query, {
        ...this.#recallOptions(memory, settings, storableIds(present, without)),
        // What came before had its share of the time.
        timeoutMs: Math.max(1, timeoutMs - (performance.now() - startedMs)),
        signal,
      });
    // A new id in every request would keep the sidecar from giving an answer again.
    let found = await ask(asking);
    // It has the question under this id: the turn is done once more.
    if (found?.messages.some(({ message }) => message.id === asking)) found = await ask(undefined);
    if (found === undefined) return;
    this.#putOtherThreads(args.messageList, found.contextText, memory);
    this.#putThisThread(args.messageList, found, memory, settings);
  }

  async #ask(
    memory: OwnedMemory,
    query: string,
    options: RecallOptions & CallOptions,
  ): Promise<RecallResult | undefined> {
    try {
      const found = await this.#link.client.recall(memory.resourceId, query, options);
      if (found.degraded === undefined) {
        if (found.messages.length === 0) this.#reporter.count('recallsEmpty');
        return found;
      }
      const fields = { reason: found.degraded };
      this.#reporter.failed('recallsFailed', 'the turn goes on without memories', fields);
    } catch (error) {
      if (options.signal?.aborted === true) {
        this.#reporter.count('recallsAborted');
        this.#reporter.debug('the turn was aborted while it recalled', {});
        return undefined;
      }
      const fields = errorFields(error);
      this.#reporter.failed('recallsFailed', 'the turn goes on without memories', fields);
    }
    return undefined;
  }

  #recallOptions(
    memory: OwnedMemory,
    settings: RecallSettings,
    excludeMessageIds: readonly string[],
  ): RecallOptions {
    const { maxTokens, ranking, contextFormat, timeZone } = this.#options;
    return {
      ...settings,
      threadId: memory.threadId,
      filter: filterOfRequest(this.#options, memory.semanticRecall),
      maxTokens,
      ranking,
      timeZone,
      excludeMessageIds,
      contextFormat: settings.scope === 'thread' ? 'none' : contextFormat,
      contextOtherThreadsOnly: true,
    };
  }

  #putOtherThreads(list: MessageList, text: string, memory: OwnedMemory): void {
    if (text === '') return;
    this.#reporter.count('otherThreadsRecalled');
    if (this.#options.placement === 'system') {
      // As text: an object goes through three conversions of the list, and comes out the same.
      list.addSystem(text, 'memory');
      return;
    }
    const last = lastOf(list.get.all.db(), isOfUser);
    // The list is ordered by time: a millisecond earlier is right before the user's message.
    const createdAt = new Date((last?.createdAt.getTime() ?? Date.now()) - 1);
    list.add(note('other-threads', text, createdAt, memory), 'memory');
  }

  #putThisThread(
    list: MessageList,
    found: RecallResult,
    memory: OwnedMemory,
    settings: RecallSettings,
  ): void {
    const recalled: RecalledHere[] = [];
    for (const { message, hit } of found.messages) {
      if (message.threadId !== memory.threadId) continue;
      const ours = toMastra(message);
      if (ours !== undefined) recalled.push({ message: ours, hit });
    }
    if (recalled.length === 0) return;
    this.#reporter.count('messagesRecalled', recalled.length);
    const { timeZone, contextFormat } = this.#options;
    const messages =
      contextFormat === 'mastra'
        ? recalled.map((item) => item.message)
        : withGapMarks(recalled, list.get.all.db(), {
            ...settings.messageRange,
            timeZone,
            threadId: memory.threadId,
            resourceId: memory.resourceId,
          });
    list.add(messages, 'memory');
  }

  async #index(args: OutputArgs): Promise<void> {
    const isFailed =
      FAILED.has(args.result?.finishReason ?? '') || args.abortSignal?.aborted === true;
    if (isFailed) this.#reporter.count('failedTurns');
    if (this.#options.readOnly || (isFailed && this.#options.failedTurns === 'skip')) return;
    const memory = this.#memoryOf(args);
    if (memory === undefined || memory.readOnly) return;
    const messages = newMessages(args)
      .map((message) => indexableOrTold(message, this.#reporter))
      .filter((message) => message !== undefined);
    if (messages.length === 0) return;
    const { resourceId, threadId } = memory;
    this.#link.follower.knowThread(threadId, resourceId);
    const metadata = this.#metadataOf(memory, isFailed ? args.result?.finishReason : undefined);
    await this.#link.writer.write(
      { resourceId, threadId, metadata, messages },
      {
        timeoutMs: this.#options.timeoutMs,
        // An aborted turn that is to be kept is kept.
        signal: isFailed ? undefined : args.abortSignal,
        wait: this.#options.wait,
        reporter: this.#reporter,
      },
    );
  }

  #metadataOf(memory: OwnedMemory, failedBy: string | undefined): JsonObject {
    const own: JsonObject =
      failedBy === undefined ? {} : { turn_failed: true, finish_reason: failedBy };
    const ofThread = threadMetadata(memory.metadata);
    if (ofThread !== undefined) return { ...ofThread, ...own };
    const sentence = 'the metadata of a thread is above 64 KiB or no JSON; its messages go without';
    this.#reporter.changed('metadataLeftOut', sentence, { threadId: memory.threadId });
    return own;
  }

  /** The turn's memory; `undefined` where there is none, or none that can be used. */
  #memoryOf(args: Pick<InputArgs, 'requestContext'>): OwnedMemory | undefined {
    const memory = turnMemory(args.requestContext);
    if (memory === undefined) return undefined;
    if (memory === 'malformed') {
      const sentence = 'the request context "MastraMemory" cannot be read; no recall, no indexing';
      this.#reporter.failed('malformedContexts', sentence, {});
      return undefined;
    }
    const { resourceId, threadId } = memory;
    if (resourceId !== undefined) return { ...memory, resourceId };
    const sentence = 'the request names no resource; no recall, no indexing';
    this.#reporter.failed('turnsWithoutResource', sentence, { threadId });
    return undefined;
  }

  /** Follows the agent's memory. It may be another in each request: `Agent` takes a function. */
  #followAgent(args: Pick<InputArgs, 'agent' | 'requestContext'>): void {
    const { agent, requestContext } = args;
    if (agent === undefined || !this.#options.followAgentMemory) return;
    this.#seenAgents.add(agent);
    const memory = async () =>
      agent.getMemory(requestContext === undefined ? {} : { requestContext });
    this.#following = Promise.all([this.#following, this.#followOrTell(memory)]).then(
      () => undefined,
    );
  }

  async #followOrTell(
    what: FollowableStore | MemoryStorage | (() => Promise<FollowableMemory | undefined>),
  ): Promise<void> {
    try {
      const memory = typeof what === 'function' ? await what() : what;
      if (memory !== undefined) await this.follow(memory);
    } catch (error) {
      const sentence = 'a memory cannot be followed: deletions do not reach the sidecar';
      this.#reporter.failed('changesNotFollowed', sentence, errorFields(error));
    }
  }
}

/** What the turn has added, in order: what the user said, then the responses. */
function newMessages(args: OutputArgs): MastraDBMessage[] {
  const { messageList, messages } = args;
  if (messageList === undefined) return messages;
  const input = messageList.get.input.db().filter((one) => messageList.isNewMessage(one));
  const known = new Set(input.map((one) => one.id));
  const responses = messages.filter((one) => !known.has(one.id) && messageList.isNewMessage(one));
  return [...input, ...responses];
}

/** Ids of the newest messages, but one, that the sidecar may hold; it would refuse others. */
function storableIds(messages: readonly MastraDBMessage[], without: string | undefined): string[] {
  const ids: string[] = [];
  for (const { id } of messages) {
    if (id !== without && isStorableId(id) && !id.startsWith(NOTE_ID_PREFIX)) ids.push(id);
  }
  return ids.length > EXCLUDED_IDS_MAX ? ids.slice(-EXCLUDED_IDS_MAX) : ids;
}

/** Id of the message that asks, where it is new in this turn; as a rule nobody knows it yet. */
function newQuestionId({ messages, messageList }: InputArgs): string | undefined {
  const last = lastOf(messages, isOfUser);
  return messageList.get.input.db().find(({ id }) => id === last?.id)?.id;
}
