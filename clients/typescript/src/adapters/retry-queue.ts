/** Messages that the sidecar has not acknowledged yet: kept in this process, within limits. */
import { isDeepStrictEqual } from 'node:util';

import type { JsonObject, MessageInput } from '../values.js';

/** Bytes of text and payloads that are kept, at most. */
export const QUEUE_BYTES_MAX = 16 * 1024 * 1024;

/** A message on its way to the sidecar. */
export interface OutgoingMessage {
  readonly input: MessageInput & { readonly id: string };
  /** Bytes of text and payload. */
  readonly bytes: number;
  /** The time it gets where it has to wait; without, what `input` says. */
  readonly saidAt?: Date;
}

/** Messages of one thread, with the metadata of all of them. */
export interface Batch {
  readonly resourceId: string;
  readonly threadId: string;
  readonly metadata: JsonObject;
  readonly messages: readonly OutgoingMessage[];
}

/** What is to be forgotten: a thread, or messages. */
export type Target = { readonly threadId: string } | { readonly ids: readonly string[] };

interface Entry {
  readonly resourceId: string;
  readonly threadId: string;
  readonly metadata: JsonObject;
  readonly message: OutgoingMessage;
}

/**
 * A queue in order of arrival, at most one entry for a message: of two the later one stays, at the
 * end, or where it says when it was said, at the place of the earlier. What is above the limits
 * pushes out the oldest. It is lost with the process.
 */
export class RetryQueue {
  // A map keeps the order of insertion.
  readonly #entries = new Map<string, Entry>();
  readonly #holds = new Set<(entry: Entry) => boolean>();
  #bytes = 0;
  #messagesMax: number;

  constructor(messagesMax: number) {
    this.#messagesMax = messagesMax;
  }

  /** Messages that wait. */
  get size(): number {
    return this.#entries.size;
  }

  /** Whether any of them may be sent now. */
  hasUnheld(): boolean {
    if (this.#holds.size === 0) return this.#entries.size > 0;
    return this.#unheld().next().done !== true;
  }

  /** Lets it hold more, where one of its users wants that. */
  allow(messagesMax: number): void {
    this.#messagesMax = Math.max(this.#messagesMax, messagesMax);
  }

  /** The time of a message that waits. */
  timeOf(resourceId: string, messageId: string): Date | undefined {
    return this.#entries.get(keyOf(resourceId, messageId))?.message.input.createTime;
  }

  /** Lets messages wait. Returns how many were pushed out. */
  add(batch: Batch): number {
    const { resourceId, threadId, metadata } = batch;
    for (const message of batch.messages) {
      const key = keyOf(resourceId, message.input.id);
      const earlier = this.#entries.get(key);
      const entry = { resourceId, threadId, metadata, message: dated(sooner(message, earlier)) };
      if (earlier !== undefined && message.saidAt !== undefined) {
        // It may be under way: the same again would be sent once more.
        if (isDeepStrictEqual(earlier, entry)) continue;
        this.#bytes -= earlier.message.bytes;
      } else {
        this.#remove(key);
      }
      this.#entries.set(key, entry);
      this.#bytes += message.bytes;
    }
    let pushedOut = 0;
    for (const key of this.#entries.keys()) {
      if (this.#entries.size <= this.#messagesMax && this.#bytes <= QUEUE_BYTES_MAX) break;
      this.#remove(key);
      pushedOut += 1;
    }
    return pushedOut;
  }

  /** Puts behind the others what was sent in vain, unless it was changed or taken out meanwhile. */
  postpone(batch: Batch): void {
    for (const message of batch.messages) {
      const key = keyOf(batch.resourceId, message.input.id);
      const entry = this.#entries.get(key);
      if (entry?.message !== message) continue;
      this.#entries.delete(key);
      this.#entries.set(key, entry);
    }
  }

  /**
   * The oldest that waits and is not held, with all others of its thread and the same metadata.
   * They stay.
   */
  oldest(): Batch | undefined {
    let batch: (Batch & { messages: OutgoingMessage[] }) | undefined;
    for (const { resourceId, threadId, metadata, message } of this.#unheld()) {
      batch ??= { resourceId, threadId, metadata, messages: [] };
      const fits =
        batch.resourceId === resourceId &&
        batch.threadId === threadId &&
        // Each turn has an object of its own.
        (batch.metadata === metadata || isDeepStrictEqual(batch.metadata, metadata));
      if (fits) batch.messages.push(message);
    }
    return batch;
  }

  /** Takes out what was sent, unless a later one has taken its place meanwhile. */
  sent(batch: Batch): void {
    for (const message of batch.messages) {
      const key = keyOf(batch.resourceId, message.input.id);
      const waiting = this.#entries.get(key)?.message;
      const isSame = waiting === message || isDeepStrictEqual(waiting?.input, dated(message).input);
      if (isSame) this.#remove(key);
    }
  }

  /**
   * Holds messages back, those included that come while it holds: they wait and are not sent.
   *
   * @returns lets them go.
   */
  hold(resourceId: string, target: Target): () => void {
    const isMeant = meaning(target);
    const isHeld = (entry: Entry): boolean =>
      entry.resourceId === resourceId && isMeant(entry.threadId, entry.message.input.id);
    this.#holds.add(isHeld);
    return () => {
      this.#holds.delete(isHeld);
    };
  }

  /** Takes out a thread, or all of its messages with these ids. */
  discard(resourceId: string, target: Target): void {
    if ('ids' in target) {
      for (const id of target.ids) this.#remove(keyOf(resourceId, id));
      return;
    }
    for (const [key, entry] of this.#entries) {
      if (entry.resourceId === resourceId && entry.threadId === target.threadId) this.#remove(key);
    }
  }

  *#unheld(): Generator<Entry, void> {
    const holds = [...this.#holds];
    for (const entry of this.#entries.values()) {
      if (!holds.some((isHeld) => isHeld(entry))) yield entry;
    }
  }

  #remove(key: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    this.#entries.delete(key);
    this.#bytes -= entry.message.bytes;
  }
}

/** What says when it was said was said when it waited first. */
function sooner(message: OutgoingMessage, earlier: Entry | undefined): OutgoingMessage {
  const saidAt = earlier?.message.saidAt;
  const isLater = saidAt !== undefined && message.saidAt !== undefined && saidAt < message.saidAt;
  return isLater ? { ...message, saidAt } : message;
}

/** The message as it is sent once it has waited. */
export function dated(message: OutgoingMessage): OutgoingMessage {
  const { input, saidAt } = message;
  return saidAt === undefined ? message : { ...message, input: { ...input, createTime: saidAt } };
}

/** Whether a message of this thread and id is meant. */
export function meaning(target: Target): (threadId: string, messageId: string) => boolean {
  if ('threadId' in target) return (threadId) => threadId === target.threadId;
  const ids = new Set(target.ids);
  return (_, messageId) => ids.has(messageId);
}

function keyOf(resourceId: string, messageId: string): string {
  return JSON.stringify([resourceId, messageId]);
}
