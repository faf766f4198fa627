/** Changes of Mastra's stores as they reach one sidecar, with its acknowledgement. */
import { isDeepStrictEqual } from 'node:util';
import type { MastraDBMessage } from '@mastra/core/agent/message-list';
import type { MemoryStorage } from '@mastra/core/storage';

import { errorFields, type ReportFields } from '../adapters/error-fields.js';
import { isStorableId } from '../adapters/ids.js';
import type { Batch } from '../adapters/retry-queue.js';
import type { MemoryWriter, WriteOptions } from '../adapters/writer.js';
import type { RecallClient } from '../client.js';
import { NotFoundError, UnavailableError } from '../errors.js';
import type { Message } from '../results.js';
import type { JsonObject } from '../values.js';
import { indexableOrTold } from './indexable.js';
import { type IndexableMessage, toIndexable } from './messages.js';
import { Reporter } from './reporter.js';
import { threadMetadata } from './turn.js';

/** Of the client, what the processor and what follows its stores call. */
export type SidecarCalls = Pick<
  RecallClient,
  | 'recall'
  | 'index'
  | 'forgetMessages'
  | 'forgetThread'
  | 'listMessages'
  | 'transferThread'
  | 'close'
  | 'isClosed'
>;

/** Metadata of a message that is its own and not its thread's. */
const OWN_METADATA: ReadonlySet<string> = new Set(['turn_failed', 'finish_reason']);

/** Ids in one Forget: the server's limit. */
const FORGET_IDS_MAX = 10_000;
const PAGE_MESSAGES = 200;
const KNOWN_THREADS_MAX = 10_000;
const TIMEOUT_MS = 10_000;

/** What one sidecar is told of the stores that it follows; see `following.ts`. */
export class StorageFollower {
  /** Where counts go when every processor that follows is closed: warnings of the process. */
  readonly reporter = new Reporter(undefined);
  readonly #client: SidecarCalls;
  readonly #writer: MemoryWriter;
  // Owners of threads as turns named them, for those that the store does not know.
  readonly #owners = new Map<string, string>();

  constructor(client: SidecarCalls, writer: MemoryWriter) {
    this.#client = client;
    this.#writer = writer;
  }

  /** Nothing reaches the sidecar through its client any more: its owner has closed it. */
  get isOver(): boolean {
    return this.#client.isClosed;
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

  /** Before a thread is deleted in its store. */
  async deleteThread(storage: MemoryStorage, threadId: string, reporter: Reporter): Promise<void> {
    await this.#change('delete a thread', reporter, async () => {
      const resourceId = await this.#ownerOf(storage, threadId);
      if (resourceId === undefined) {
        this.#nobodys(reporter, 1, { threadId });
        return false;
      }
      await this.#writer.forget(resourceId, { threadId }, async () => {
        // The sidecar refuses an id that it cannot hold, and so has nothing of.
        if (!isStorableId(resourceId) || !isStorableId(threadId)) return;
        await this.#client.forgetThread(resourceId, threadId, { timeoutMs: TIMEOUT_MS });
      });
      return true;
    });
  }

  /** Before messages are deleted in their store. */
  async deleteMessages(
    storage: MemoryStorage,
    ids: readonly string[],
    reporter: Reporter,
  ): Promise<void> {
    const storable = ids.filter(isStorableId);
    if (storable.length === 0) return;
    await this.#change('delete messages', reporter, async () => {
      const { messages } = await storage.listMessagesById({ messageIds: storable });
      const forgotten = await this.#forget(storage, messages);
      const left = new Set(storable);
      for (const id of forgotten) left.delete(id);
      if (left.size > 0) this.#nobodys(reporter, left.size, { messages: left.size });
      return forgotten.length > 0;
    });
  }

  /** After messages were changed in their store. */
  async editMessages(
    storage: MemoryStorage,
    updated: readonly MastraDBMessage[],
    reporter: Reporter,
  ): Promise<void> {
    await this.#change('edit messages', reporter, async () => {
      // What holds nothing any more must not be found by what it held; nor is that sent any more,
      // whatever the sidecar says: the store has the change.
      const emptied = updated.filter((message) => toIndexable(message) === undefined);
      for (const [resourceId, ids] of await this.#idsByResource(storage, emptied)) {
        await this.#writer.discard(resourceId, { ids });
      }
      await this.#forget(storage, emptied);
      for (const batch of await this.#batchesOf(storage, updated, reporter)) {
        await this.#writeOrThrow(batch, reporter);
      }
      return true;
    });
  }

  /**
   * Before a thread is given to another resource in its store.
   *
   * @returns takes it back, for when the store refuses.
   */
  async giveThread(
    storage: MemoryStorage,
    threadId: string,
    resourceId: string,
    reporter: Reporter,
  ): Promise<() => Promise<void>> {
    const from = await this.#ownerOf(storage, threadId);
    if (from === undefined || from === resourceId) return () => Promise.resolve();
    await this.#change('give a thread to another resource', reporter, async () => {
      await this.#writer.flush(this.#writeOptions(reporter));
      await this.#transfer(from, threadId, resourceId);
      return true;
    });
    this.knowThread(threadId, resourceId);
    return async () => {
      this.knowThread(threadId, from);
      await this.#change('give a thread back', reporter, async () => {
        await this.#transfer(resourceId, threadId, from);
        return true;
      });
    };
  }

  /** After a thread got other metadata in its store. */
  async changeMetadata(
    resourceId: string,
    threadId: string,
    metadata: JsonObject,
    reporter: Reporter,
  ): Promise<void> {
    await this.#change('change the metadata of a thread', reporter, async () => {
      await this.#reindex(resourceId, threadId, metadata, reporter);
      return true;
    });
  }

  /** Gives every message of a thread that is in the sidecar its thread's present metadata. */
  async #reindex(
    resourceId: string,
    threadId: string,
    metadata: JsonObject,
    reporter: Reporter,
  ): Promise<void> {
    await this.#writer.flush(this.#writeOptions(reporter));
    let messages: IndexableMessage[] = [];
    const write = async () => {
      await this.#writeOrThrow({ resourceId, threadId, metadata: {}, messages }, reporter);
      messages = [];
    };
    const listed = this.#client.listMessages(resourceId, { threadId, pageSize: PAGE_MESSAGES });
    for await (const message of listed) {
      const own = Object.entries(message.metadata).filter(([name]) => OWN_METADATA.has(name));
      const theirs = Object.entries(message.metadata).filter(([name]) => !OWN_METADATA.has(name));
      if (isDeepStrictEqual(Object.fromEntries(theirs), metadata)) continue;
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

  /** Forgets messages; the ids of those of which somebody knows the owner. */
  async #forget(storage: MemoryStorage, messages: readonly MastraDBMessage[]): Promise<string[]> {
    const idsByResource = await this.#idsByResource(storage, messages);
    for (const [resourceId, all] of idsByResource) {
      for (let from = 0; from < all.length; from += FORGET_IDS_MAX) {
        const ids = all.slice(from, from + FORGET_IDS_MAX);
        await this.#writer.forget(resourceId, { ids }, () =>
          this.#client.forgetMessages(resourceId, ids, { timeoutMs: TIMEOUT_MS }),
        );
      }
    }
    return [...idsByResource.values()].flat();
  }

  async #idsByResource(
    storage: MemoryStorage,
    messages: readonly MastraDBMessage[],
  ): Promise<Map<string, string[]>> {
    const idsByResource = new Map<string, string[]>();
    for (const message of messages) {
      const resourceId = await this.#ownerOfMessage(storage, message);
      if (resourceId === undefined || !isStorableId(message.id)) continue;
      const ids = idsByResource.get(resourceId);
      if (ids === undefined) idsByResource.set(resourceId, [message.id]);
      else ids.push(message.id);
    }
    return idsByResource;
  }

  /** Nothing can be forgotten: a deletion names no resource, and the sidecar wants one. */
  #nobodys(reporter: Reporter, by: number, fields: ReportFields): void {
    const sentence = 'nobody knows the owner of what is deleted; the sidecar forgets nothing';
    reporter.failed('deletionsWithoutOwner', sentence, fields, by);
  }

  /** Indexes what a store has saved. What cannot be delivered waits; nobody's call fails. */
  async indexSaved(
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
      const { threadId } = message;
      if (threadId === undefined || threadId === '') continue;
      const indexable = indexableOrTold(message, reporter);
      if (indexable === undefined) continue;
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

  /**
   * Makes a change in the sidecar: counted, and where it fails, told and thrown.
   *
   * @param make - whether there was anything to change.
   */
  async #change(what: string, reporter: Reporter, make: () => Promise<boolean>): Promise<void> {
    try {
      if (await make()) reporter.count('changesFollowed');
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
