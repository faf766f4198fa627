/**
 * Methods of Mastra's stores and memories, decorated so that sidecars follow them.
 *
 * On the object itself, so that every way that leads through it is followed, `Memory`'s and anybody
 * else's; once for each object, whoever follows it. What must not stay recallable goes first in the
 * sidecars and then in the store, so that a call that fails can be made again; see decision 0031.
 */
import { isDeepStrictEqual } from 'node:util';
import type { MastraDBMessage } from '@mastra/core/agent/message-list';
import type { MemoryStorage } from '@mastra/core/storage';

import { isRecord } from '../adapters/json.js';
import type { StorageFollower } from './follower.js';
import { Followers } from './followers.js';
import type { Reporter } from './reporter.js';
import { threadMetadata } from './turn.js';

/** Of a Mastra store, what is followed: its memory domain. */
export interface FollowableStore {
  getStore(name: 'memory'): Promise<MemoryStorage | undefined>;
}

/** Of a `Memory`, what is followed. */
export interface FollowableMemory {
  readonly storage: FollowableStore;
  saveMessages?(args: { messages: MastraDBMessage[] }): Promise<unknown>;
}

const PAGE_MESSAGES = 200;

// Of every store and memory that was ever followed: its methods are decorated.
const followersOf = new WeakMap<object, Followers>();

/** Lets a sidecar follow a memory, a store, or a store's memory domain. Twice is once. */
export async function follow(
  what: FollowableMemory | FollowableStore | MemoryStorage,
  follower: StorageFollower,
  reporter: Reporter,
): Promise<void> {
  const store = 'storage' in what ? what.storage : what;
  const storage = 'getStore' in store ? await store.getStore('memory') : store;
  if (storage === undefined) return;
  followersFor(storage, (followers) => {
    decorate(storage, followers);
  }).add(follower, reporter);
  if (!('storage' in what)) return;
  followersFor(what, (followers) => {
    followSaved(what, storage, followers);
  }).add(follower, reporter);
}

function followersFor(what: object, begin: (followers: Followers) => void): Followers {
  const known = followersOf.get(what);
  if (known !== undefined) return known;
  const followers = new Followers();
  followersOf.set(what, followers);
  begin(followers);
  return followers;
}

function decorate(storage: MemoryStorage, followers: Followers): void {
  followDeletions(storage, followers);
  followEdits(storage, followers);
  followCopies(storage, followers);
  followOwners(storage, followers);
  followThreadMetadata(storage, followers);
}

/** What is saved through a memory, outside of turns. */
function followSaved(memory: FollowableMemory, storage: MemoryStorage, followers: Followers): void {
  const save = memory.saveMessages?.bind(memory);
  if (save === undefined) return;
  memory.saveMessages = async (args) => {
    const saved = await save(args);
    const messages = isRecord(saved) && Array.isArray(saved['messages']) ? saved['messages'] : [];
    await indexSaved(storage, messages.filter(isMessage), followers);
    return saved;
  };
}

function followDeletions(storage: MemoryStorage, followers: Followers): void {
  const deleteThread = storage.deleteThread.bind(storage);
  storage.deleteThread = async (args) => {
    await followers.each(({ follower, reporter }) =>
      follower.deleteThread(storage, args.threadId, reporter),
    );
    await deleteThread(args);
  };
  const deleteMessages = storage.deleteMessages.bind(storage);
  storage.deleteMessages = async (ids) => {
    await followers.each(({ follower, reporter }) =>
      follower.deleteMessages(storage, ids, reporter),
    );
    await deleteMessages(ids);
  };
}

function followEdits(storage: MemoryStorage, followers: Followers): void {
  const updateMessages = storage.updateMessages.bind(storage);
  storage.updateMessages = async (args) => {
    const updated = await updateMessages(args);
    await followers.each(({ follower, reporter }) =>
      follower.editMessages(storage, updated, reporter),
    );
    return updated;
  };
}

function followCopies(storage: MemoryStorage, followers: Followers): void {
  const cloneThread = storage.cloneThread.bind(storage);
  storage.cloneThread = async (args) => {
    const clone = await cloneThread(args);
    await indexSaved(storage, clone.clonedMessages, followers);
    return clone;
  };
  const copyThread = storage.copyThread.bind(storage);
  storage.copyThread = async (args) => {
    const copy = await copyThread(args);
    if (followers.present().length === 0) return copy;
    for (let page = 0, hasMore = true; hasMore; page += 1) {
      const found = await storage.listMessages({
        threadId: copy.thread.id,
        page,
        perPage: PAGE_MESSAGES,
      });
      await indexSaved(storage, found.messages, followers);
      hasMore = found.hasMore;
    }
    return copy;
  };
}

function followOwners(storage: MemoryStorage, followers: Followers): void {
  const updateOwner = storage.updateThreadResourceId.bind(storage);
  storage.updateThreadResourceId = async (args) => {
    const undo: (() => Promise<void>)[] = [];
    try {
      for (const { follower, reporter } of followers.present()) {
        undo.push(await follower.giveThread(storage, args.threadId, args.resourceId, reporter));
      }
      return await updateOwner(args);
    } catch (error) {
      // One that cannot be given back is told by the follower; the store's error is the caller's.
      for (const back of undo) await back().catch(() => undefined);
      throw error;
    }
  };
}

function followThreadMetadata(storage: MemoryStorage, followers: Followers): void {
  const updateThread = storage.updateThread.bind(storage);
  storage.updateThread = async (args) => {
    if (args.metadata === undefined) return updateThread(args);
    return withMetadata(storage, args.id, followers, () => updateThread(args));
  };
  const updateMetadata = storage.updateThreadMetadata.bind(storage);
  storage.updateThreadMetadata = (args) =>
    withMetadata(storage, args.id, followers, () => updateMetadata(args));
  const saveThread = storage.saveThread.bind(storage);
  storage.saveThread = (args) =>
    withMetadata(storage, args.thread.id, followers, () => saveThread(args));
}

/** Makes a change of a thread; where its metadata differs then, so does that of its messages. */
async function withMetadata<T extends { metadata?: unknown } | null>(
  storage: MemoryStorage,
  threadId: string,
  followers: Followers,
  change: () => Promise<T>,
): Promise<T> {
  if (followers.present().length === 0) return change();
  const before = await storage.getThreadById({ threadId });
  const result = await change();
  if (before === null || result === null) return result;
  const metadata = threadMetadata(result.metadata);
  if (isDeepStrictEqual(threadMetadata(before.metadata), metadata)) return result;
  await followers.each(({ follower, reporter }) =>
    follower.changeMetadata(before.resourceId, threadId, metadata ?? {}, reporter),
  );
  return result;
}

async function indexSaved(
  storage: MemoryStorage,
  messages: readonly MastraDBMessage[],
  followers: Followers,
): Promise<void> {
  await followers.each(({ follower, reporter }) =>
    follower.indexSaved(storage, messages, reporter),
  );
}

function isMessage(value: unknown): value is MastraDBMessage {
  return isRecord(value) && typeof value['id'] === 'string' && isRecord(value['content']);
}
