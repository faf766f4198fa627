/** Everything that a process writes to one sidecar: in order, and kept while it is away. */
import type { RecallClient } from '../client.js';
import { SemanticRecallError } from '../errors.js';
import type { IndexResult } from '../results.js';
import type { CallOptions, Wait } from '../values.js';
import { errorFields, type Reporter } from './reporter.js';
import { type Batch, RetryQueue } from './retry-queue.js';

/** Of the client, what the processor calls. */
export type SidecarCalls = Pick<
  RecallClient,
  | 'recall'
  | 'index'
  | 'forgetMessages'
  | 'forgetThread'
  | 'listMessages'
  | 'transferThread'
  | 'close'
>;

/** How a write goes. */
export interface WriteOptions extends CallOptions {
  readonly wait: Wait;
  readonly reporter: Reporter;
}

/** Messages of one request: the server's limit is 1,000. */
const REQUEST_MESSAGES_MAX = 1_000;
/** Bytes of text and payloads in one request: the server's limit is 8 MiB, metadata included. */
const REQUEST_BYTES_MAX = 4 * 1024 * 1024;

/** Sending the same again cannot help: what is wrong is the request. */
const FINAL_CODES: ReadonlySet<string> = new Set([
  'INVALID_ARGUMENT',
  'FAILED_PRECONDITION',
  'OUT_OF_RANGE',
  'UNIMPLEMENTED',
]);

/**
 * Writes of one client. What an earlier call could not deliver goes first, so that a message that
 * was changed twice ends as it was changed last.
 */
export class MemoryWriter {
  readonly #client: SidecarCalls;
  readonly #queue: RetryQueue;
  readonly #underWay = new Set<Promise<unknown>>();
  #flushing: Promise<void> | undefined;

  constructor(client: SidecarCalls, queueMessagesMax: number) {
    this.#client = client;
    this.#queue = new RetryQueue(queueMessagesMax);
  }

  /** Messages that wait for the sidecar. */
  get pendingMessages(): number {
    return this.#queue.size;
  }

  /** Lets more wait, where one of the processors that share it wants that. */
  allowPending(messagesMax: number): void {
    this.#queue.allow(messagesMax);
  }

  /**
   * Indexes messages, after those that wait. Never rejects: what cannot be delivered waits, or is
   * given up, and either is reported. True: all of it was acknowledged.
   */
  async write(batch: Batch, options: WriteOptions): Promise<boolean> {
    if (batch.messages.length === 0) return true;
    if (this.#queue.size > 0) {
      await this.flush(options);
      // It is away still: one more call would only hold the turn up.
      if (this.#queue.size > 0) {
        this.#keep(batch, options.reporter);
        return false;
      }
    }
    let isDone = true;
    for (const request of requestsOf(batch)) {
      // After one that waits, the others do: they are newer.
      if (isDone) isDone = await this.#send(request, options);
      else this.#keep(request, options.reporter);
    }
    return isDone;
  }

  /** Sends what waits, oldest first, until one call fails. Never rejects. */
  async flush(options: WriteOptions): Promise<void> {
    if (this.#queue.size === 0) return;
    this.#flushing ??= this.#flushAll(options).finally(() => {
      this.#flushing = undefined;
    });
    await this.#flushing;
  }

  /** Drops from what waits; then nothing of it is under way any more. */
  async discard(
    resourceId: string,
    target: { threadId: string } | { ids: readonly string[] },
  ): Promise<void> {
    this.#queue.discard(resourceId, target);
    await Promise.allSettled(this.#underWay);
    // A call that failed meanwhile has put its messages back.
    this.#queue.discard(resourceId, target);
  }

  async #flushAll(options: WriteOptions): Promise<void> {
    // Asked anew for each call: what is discarded meanwhile must not be sent any more.
    for (let batch = this.#queue.oldest(); batch !== undefined; batch = this.#queue.oldest()) {
      const [request] = requestsOf(batch);
      if (request === undefined || !(await this.#send(request, options))) return;
    }
  }

  /** One call. False: its messages wait; true: they are acknowledged or given up. */
  async #send(batch: Batch, options: WriteOptions): Promise<boolean> {
    const { reporter, ...callOptions } = options;
    const { resourceId, threadId, metadata } = batch;
    const inputs = batch.messages.map((message) => message.input);
    const call = this.#client.index(resourceId, threadId, inputs, { ...callOptions, metadata });
    this.#underWay.add(call);
    try {
      const result = await call;
      this.#queue.sent(batch);
      this.#acknowledged(batch, result, reporter);
      return true;
    } catch (error) {
      return this.#failed(batch, error, reporter);
    } finally {
      this.#underWay.delete(call);
    }
  }

  #acknowledged(batch: Batch, result: IndexResult, reporter: Reporter): void {
    const rejected = result.rejected;
    reporter.count('messagesIndexed', batch.messages.length - rejected.length);
    for (const outcome of rejected) {
      const fields = { ...errorFields(outcome.error), messageId: outcome.messageId };
      reporter.failed('messagesRejected', 'a message was refused; it is not remembered', fields);
    }
  }

  #failed(batch: Batch, error: unknown, reporter: Reporter): boolean {
    const messages = batch.messages.length;
    const isFinal = error instanceof SemanticRecallError && FINAL_CODES.has(error.code);
    if (!isFinal) {
      const pushedOut = this.#queue.add(batch);
      const fields = { ...errorFields(error), messages, pending: this.#queue.size };
      reporter.failed(
        'indexFailed',
        'could not index; the messages wait for the next call',
        fields,
      );
      this.#pushedOut(pushedOut, reporter);
      return false;
    }
    this.#queue.sent(batch);
    reporter.count('messagesDropped', messages);
    const fields = { ...errorFields(error), messages };
    reporter.failed('indexFailed', 'could not index; the messages are not remembered', fields);
    return true;
  }

  #keep(batch: Batch, reporter: Reporter): void {
    const pushedOut = this.#queue.add(batch);
    const fields = { messages: batch.messages.length, pending: this.#queue.size };
    reporter.failed('indexFailed', 'the sidecar is away; the messages wait', fields);
    this.#pushedOut(pushedOut, reporter);
  }

  #pushedOut(messages: number, reporter: Reporter): void {
    if (messages === 0) return;
    const sentence = 'more messages wait than are kept; the oldest are not remembered';
    reporter.failed('messagesDropped', sentence, { messages }, messages);
  }
}

/** The batch as requests that the server takes; nearly always one. */
function* requestsOf(batch: Batch): Iterable<Batch> {
  let from = 0;
  let bytes = 0;
  for (const [index, message] of batch.messages.entries()) {
    const isFull =
      index - from === REQUEST_MESSAGES_MAX || bytes + message.bytes > REQUEST_BYTES_MAX;
    if (isFull && index > from) {
      yield { ...batch, messages: batch.messages.slice(from, index) };
      from = index;
      bytes = 0;
    }
    bytes += message.bytes;
  }
  yield from === 0 ? batch : { ...batch, messages: batch.messages.slice(from) };
}
