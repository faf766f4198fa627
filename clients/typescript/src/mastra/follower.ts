/**
 * Changes of a Mastra store that reach the sidecar with an acknowledgement.
 *
 * The methods of the store's memory domain are decorated, on the object itself: every way that
 * leads through it is followed, `Memory`'s and anybody else's. What must not stay recallable goes
 * first in the sidecar and then in the store, so that a call that fails can be made again; see
 * decision 0031.
 */
import type { MastraDBMessage } from '@mastra/core/agent/message-list';
import type { MemoryStorage } from '@mastra/core/storage';

import { errorFields } from '../adapters/error-fields.js';
import { isRecord } from '../adapters/json.js';
import { NotFoundError, UnavailableError } from '../errors.js';
import type { Message } from '../results.js';
import type { JsonObject } from '../values.js';
import { type IndexableMessage, toIndexable } from './messages.js';
import type { Reporter } from './reporter.js';
import type { Batch } from './retry-queue.js';
import { threadMetadata } from './turn.js';
import type { MemoryWriter, SidecarCalls, WriteOptions } from './writer.js';

/** Of a Mastra store, what is followed: its memory domain. */
export interface FollowableStore {
  getStore(name: 'memory'): Promise<MemoryStorage | undefined>;
}

/** Of a `Memory`, what is followed. */
export interface FollowableMemory {
  readonly storage: FollowableStore;
  saveMessages?(args: { messages: MastraDBMessage[] }): Promise<unknown>;
}

/** Metadata of a message that is its own and not its thread's. */
const OWN_METADATA: ReadonlySet<string> = new Set(['turn_failed', 'finish_reason']);

/** Ids in one Forget: the server's limit. */
const FORGET_IDS_MAX = 10_000;
const PAGE_MESSAGES = 200;
const KNOWN_THREADS_MAX = 10_000;
const TIMEOUT_MS = 10_000;

/** Follows stores and memories for one sidecar; each of them once. */
export class StorageFollower {
  readonly #client: SidecarCalls;
  readonly #writer: MemoryWriter;
  readonly #followed = new WeakSet();
  // Owners of threads as turns named them, for those that the store does not know.
  readonly #owners = new Map<string, string>();

  constructor(client: SidecarCalls, writer: MemoryWriter) {
    this.#client = client;
    this.#writer = writer;
  }

  /** Remembers whose a thread is. */
  knowThread(threadId: string, resourceId: string): void {
    this.#owners.delete(threadId);
    this.#owners.set(threadId, resourceId);
    if (this.#owners.size <= KNOWN_THREADS_MAX) return;
    for (const oldest of this.#owners.keys()) {
      this.#owners.delete(oldest);
      break;
    }
  }

  /** Follows a memory, a store, or a store's memory domain. */
  async follow(
    what: FollowableMemory | FollowableStore | MemoryStorage,
    reporter: Reporter,
  ): Promise<void> {
    if ('storage' in what) return this.#followMemory(what, reporter);
    const storage = 'getStore' in what ? await what.getStore('memory') : what;
    if (storage !== undefined) this.#followStorage(storage, reporter);
  }

  /** Follows the store behind a memory, and what is saved through the memory outside of turns. */
  async #followMemory(memory: FollowableMemory, reporter: Reporter): Promise<void> {
    if (this.#followed.has(memory)) return;
    const storage = await memory.storage.getStore('memory');
    if (storage === undefined) return;
    this.#followStorage(storage, reporter);
    if (this.#followed.has(memory)) return;
    this.#followed.add(memory);
    const save = memory.saveMessages?.bind(memory);
    if (save === undefined) return;
    memory.saveMessages = async (args) => {
      const saved = await save(args);
      const messages = isRecord(saved) && Array.isArray(saved['messages']) ? saved['messages'] : [];
      await this.#indexSaved(storage, messages.filter(isMessage), reporter);
      return saved;
    };
  }

  #followStorage(storage: MemoryStorage, reporter: Reporter): void {
    if (this.#followed.has(storage)) return;
    this.#followed.add(storage);
    this.#followDeletions(storage, reporter);
    this.#followEdits(storage, reporter);
    this.#followClones(storage, reporter);
    this.#followOwners(storage, reporter);
    this.#followThreadMetadata(storage, reporter);
  }

  #followDeletions(storage: MemoryStorage, reporter: Reporter): void {
    const deleteThread = storage.deleteThread.bind(storage);
    storage.deleteThread = async (args) => {
      await this.#change('delete a thread', reporter, async () => {
        const resourceId = await this.#ownerOf(storage, args.threadId);
        if (resourceId === undefined) return;
        await this.#writer.discard(resourceId, { threadId: args.threadId });
        await this.#client.forgetThread(resourceId, args.threadId, { timeoutMs: TIMEOUT_MS });
      });
      await deleteThread(args);
    };
    const deleteMessages = storage.deleteMessages.bind(storage);
    storage.deleteMessages = async (ids) => {
      await this.#change('delete messages', reporter, async () => {
        if (ids.length === 0) return;
        const { messages } = await storage.listMessagesById({ messageIds: ids });
        await this.#forget(storage, messages);
      });
      await deleteMessages(ids);
    };
  }

  #followEdits(storage: MemoryStorage, reporter: Reporter): void {
    const updateMessages = storage.updateMessages.bind(storage);
    storage.updateMessages = async (args) => {
      const updated = await updateMessages(args);
      await this.#change('edit messages', reporter, async () => {
        // What holds nothing any more must not be found by what it held.
        await this.#forget(
          storage,
          updated.filter((message) => toIndexable(message) === undefined),
        );
        for (const batch of await this.#batchesOf(storage, updated, reporter)) {
          await this.#writeOrThrow(batch, reporter);
        }
      });
      return updated;
    };
  }

  #followClones(storage: MemoryStorage, reporter: Reporter): void {
    const cloneThread = storage.cloneThread.bind(storage);
    storage.cloneThread = async (args) => {
      const clone = await cloneThread(args);
      await this.#indexSaved(storage, clone.clonedMessages, reporter);
      return clone;
    };
    const copyThread = storage.copyThread.bind(storage);
    storage.copyThread = async (args) => {
      const copy = await copyThread(args);
      for (let page = 0, hasMore = true; hasMore; page += 1) {
        const found = await storage.listMessages({
          threadId: copy.thread.id,
          page,
          perPage: PAGE_MESSAGES,
        });
        await this.#indexSaved(storage, found.messages, reporter);
        hasMore = found.hasMore;
      }
      return copy;
    };
  }

  #followOwners(storage: MemoryStorage, reporter: Reporter): void {
    const updateOwner = storage.updateThreadResourceId.bind(storage);
    storage.updateThreadResourceId = async (args) => {
      const { threadId, resourceId } = args;
      const from = await this.#ownerOf(storage, threadId);
      if (from === undefined || from === resourceId) return updateOwner(args);
      await this.#change('give a thread to another resource', reporter, async () => {
        await this.#writer.flush(this.#writeOptions(reporter));
        await this.#transfer(from, threadId, resourceId);
      });
      this.knowThread(threadId, resourceId);
      try {
        return await updateOwner(args);
      } catch (error) {
        this.knowThread(threadId, from);
        await this.#change('give a thread back', reporter, () =>
          this.#transfer(resourceId, threadId, from),
        );
        throw error;
      }
    };
  }

  #followThreadMetadata(storage: MemoryStorage, reporter: Reporter): void {
    const updateThread = storage.updateThread.bind(storage);
    storage.updateThread = async (args) => {
      if (args.metadata === undefined) return updateThread(args);
      return this.#withMetadata(storage, args.id, reporter, () => updateThread(args));
    };
    const updateMetadata = storage.updateThreadMetadata.bind(storage);
    storage.updateThreadMetadata = (args) =>
      this.#withMetadata(storage, args.id, reporter, () => updateMetadata(args));
    const saveThread = storage.saveThread.bind(storage);
    storage.saveThread = (args) =>
      this.#withMetadata(storage, args.thread.id, reporter, () => saveThread(args));
  }

  /** Makes a change of a thread; where its metadata differs then, so does that of its messages. */
  async #withMetadata<T extends { metadata?: unknown } | null>(
    storage: MemoryStorage,
    threadId: string,
    reporter: Reporter,
    change: () => Promise<T>,
  ): Promise<T> {
    const before = await storage.getThreadById({ threadId });
    const result = await change();
    if (before === null || result === null) return result;
    const metadata = threadMetadata(result.metadata);
    if (JSON.stringify(threadMetadata(before.metadata)) === JSON.stringify(metadata)) return result;
    await this.#change('change the metadata of a thread', reporter, () =>
      this.#reindex(before.resourceId, threadId, metadata ?? {}, reporter),
    );
    return result;
  }

  /** Gives every message of a thread that is in the sidecar its thread's present metadata. */
  async #reindex(
    resourceId: string,
    threadId: string,
    metadata: JsonObject,
    reporter: Reporter,
  ): Promise<void> {
    await this.#writer.flush(this.#writeOptions(reporter));
    const wanted = JSON.stringify(sorted(metadata));
    let messages: IndexableMessage[] = [];
    const write = async () => {
      await this.#writeOrThrow({ resourceId, threadId, metadata: {}, messages }, reporter);
      messages = [];
    };
    const listed = this.#client.listMessages(resourceId, { threadId, pageSize: PAGE_MESSAGES });
    for await (const message of listed) {
      const own = Object.entries(message.metadata).filter(([name]) => OWN_METADATA.has(name));
      const theirs = Object.entries(message.metadata).filter(([name]) => !OWN_METADATA.has(name));
      if (JSON.stringify(sorted(Object.fromEntries(theirs))) === wanted) continue;
      messages.push(again(message, { ...metadata, ...Object.fromEntries(own) }));
      if (messages.length === PAGE_MESSAGES) await write();
    }
    await write();
  }

  async #transfer(from: string, threadId: string, to: string): Promise<void> {
    try {
      await this.#client.transferThread(from, threadId, to, { timeoutMs: TIMEOUT_MS });
    } catch (error) {
      // Nothing of it was ever indexed.
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  async #forget(storage: MemoryStorage, messages: readonly MastraDBMessage[]): Promise<void> {
    const idsByResource = new Map<string, string[]>();
    for (const message of messages) {
      const resourceId = await this.#ownerOfMessage(storage, message);
      if (resourceId === undefined) continue;
      const ids = idsByResource.get(resourceId);
      if (ids === undefined) idsByResource.set(resourceId, [message.id]);
      else ids.push(message.id);
    }
    for (const [resourceId, ids] of idsByResource) {
      await this.#writer.discard(resourceId, { ids });
      for (let from = 0; from < ids.length; from += FORGET_IDS_MAX) {
        const some = ids.slice(from, from + FORGET_IDS_MAX);
        await this.#client.forgetMessages(resourceId, some, { timeoutMs: TIMEOUT_MS });
      }
    }
  }

  /** Indexes what a store has saved. What cannot be delivered waits; nobody's call fails. */
  async #indexSaved(
    storage: MemoryStorage,
    messages: readonly MastraDBMessage[],
    reporter: Reporter,
  ): Promise<void> {
    try {
      for (const batch of await this.#batchesOf(storage, messages, reporter)) {
        const isDone = await this.#writer.write(batch, this.#writeOptions(reporter));
        if (isDone) reporter.count('changesFollowed');
      }
    } catch (error) {
      const fields = { ...errorFields(error), messages: messages.length };
      reporter.failed('changesNotFollowed', 'could not index what was saved', fields);
    }
  }

  async #batchesOf(
    storage: MemoryStorage,
    messages: readonly MastraDBMessage[],
    reporter: Reporter,
  ): Promise<Batch[]> {
    const batches = new Map<string, Batch & { messages: IndexableMessage[] }>();
    for (const message of messages) {
      const indexable = toIndexable(message);
      const { threadId } = message;
      if (indexable === undefined || threadId === undefined || threadId === '') continue;
      const open = batches.get(threadId);
      if (open !== undefined) {
        open.messages.push(indexable);
        continue;
      }
      const thread = await storage.getThreadById({ threadId });
      const resourceId = message.resourceId ?? thread?.resourceId;
      if (resourceId === undefined || resourceId === '') {
        reporter.failed('turnsWithoutResource', 'a saved message names no resource', { threadId });
        continue;
      }
      const metadata = threadMetadata(thread?.metadata) ?? {};
      batches.set(threadId, { resourceId, threadId, metadata, messages: [indexable] });
    }
    return [...batches.values()];
  }

  async #ownerOfMessage(
    storage: MemoryStorage,
    message: MastraDBMessage,
  ): Promise<string | undefined> {
    if (message.resourceId !== undefined && message.resourceId !== '') return message.resourceId;
    if (message.threadId === undefined) return undefined;
    return this.#ownerOf(storage, message.threadId);
  }

  async #ownerOf(storage: MemoryStorage, threadId: string): Promise<string | undefined> {
    const thread = await storage.getThreadById({ threadId });
    return thread?.resourceId ?? this.#owners.get(threadId);
  }

  /** Writes, and says so where the sidecar did not acknowledge it. */
  async #writeOrThrow(batch: Batch, reporter: Reporter): Promise<void> {
    if (await this.#writer.write(batch, this.#writeOptions(reporter))) return;
    throw new UnavailableError(
      'the store has the change and the sidecar has not: it waits and is sent with the next ' +
        'call; until then what was there before can be recalled',
      { retryable: true },
    );
  }

  #writeOptions(reporter: Reporter): WriteOptions {
    return { timeoutMs: TIMEOUT_MS, wait: 'durable', reporter };
  }

  /** Makes a change in the sidecar: counted, and where it fails, told and thrown. */
  async #change(what: string, reporter: Reporter, make: () => Promise<void>): Promise<void> {
    try {
      await make();
      reporter.count('changesFollowed');
    } catch (error) {
      const fields = errorFields(error);
      reporter.failed('changesNotFollowed', `could not ${what} in the sidecar`, fields);
      throw error;
    }
  }
}

/** A message of the sidecar, to be indexed again with other metadata. */
function again(message: Message, metadata: JsonObject): IndexableMessage {
  const { id, role, author, text, createTimeNs, payload, payloadType, groupId } = message;
  const bytes = text.length * 2 + payload.byteLength;
  const input = { id, role, author, text, createTimeNs, metadata, payload, payloadType, groupId };
  return { input, bytes, textCut: false, payloadLeftOut: false };
}

function sorted(metadata: JsonObject): [string, unknown][] {
  return Object.entries(metadata).sort(([a], [b]) => (a < b ? -1 : 1));
}

function isMessage(value: unknown): value is MastraDBMessage {
  return isRecord(value) && typeof value['id'] === 'string' && isRecord(value['content']);
}
