/** Everything that a process writes to one sidecar: in order, and kept while it is away. */
import { errorFields } from '../adapters/error-fields.js';
import type { RecallClient } from '../client.js';
import { SemanticRecallError } from '../errors.js';
import type { IndexResult } from '../results.js';
import type { CallOptions, Wait } from '../values.js';
import type { IndexableMessage } from './messages.js';
import type { Reporter } from './reporter.js';
import { type Batch, meaning, RetryQueue, type Target } from './retry-queue.js';

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
  | 'isClosed'
>;

/** How a write goes. `timeoutMs` is for all of it, what waited before included. */
export interface WriteOptions extends CallOptions {
  readonly wait: Wait;
  readonly reporter: Reporter;
}

/** Messages of one request: the server's limit is 1,000. */
const REQUEST_MESSAGES_MAX = 1_000;
/** Bytes of text and payloads in one request: the server's limit is 8 MiB, metadata included. */
const REQUEST_BYTES_MAX = 4 * 1024 * 1024;

/** Milliseconds in which all of what waits is sent, whoever began with it. */
const FLUSH_MS = 30_000;
/** Milliseconds of one call of those. */
const FLUSH_CALL_MS = 10_000;

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
  // Of calls that wait until what waited before has been sent.
  readonly #arriving = new Set<{ batch: Batch; readonly reporter: Reporter }>();
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
    const arriving = { batch, reporter: options.reporter };
    const untilMs = performance.now() + (options.timeoutMs ?? Infinity);
    if (this.#queue.hasUnheld()) {
      this.#arriving.add(arriving);
      // Half of the time at most: the other half is for what is new.
      await this.flush(options);
      this.#arriving.delete(arriving);
      // It is away still, or slow: one more call would only hold the turn up.
      if (this.#queue.hasUnheld()) {
        this.#keep(arriving.batch, options.reporter);
        return false;
      }
    }
    // What is held and older than this must not be sent after it.
    if (this.#queue.size > 0) {
      const ids = arriving.batch.messages.map(({ input }) => input.id);
      this.#queue.discard(batch.resourceId, { ids });
    }
    let isDone = true;
    for (const request of requestsOf(arriving.batch)) {
      if (request.messages.length === 0) continue;
      // After one that waits, the others do: they are newer.
      if (isDone) isDone = await this.#send(request, withinTime(options, untilMs));
      else this.#keep(request, options.reporter);
    }
    return isDone;
  }

  /**
   * Sends what waits, oldest first, until one call fails. Never rejects.
   *
   * What is sent is everybody's, and goes on for {@link FLUSH_MS}. A caller waits for it half of
   * his time at most, and leaves with his signal.
   */
  async flush(options: WriteOptions): Promise<void> {
    if (!this.#queue.hasUnheld()) return;
    const { signal, timeoutMs, ...others } = options;
    this.#flushing ??= this.#flushAll(others).finally(() => {
      this.#flushing = undefined;
    });
    await ended(this.#flushing, (timeoutMs ?? Infinity) / 2, signal);
  }

  /** Drops from what waits; then nothing of it is under way any more. */
  async discard(resourceId: string, target: Target): Promise<void> {
    this.#queue.discard(resourceId, target);
    for (const arriving of this.#arriving) {
      [arriving.batch] = parted(arriving.batch, resourceId, target);
    }
    await Promise.allSettled(this.#underWay);
    // A call that failed meanwhile has put its messages back.
    this.#queue.discard(resourceId, target);
  }

  /**
   * Has something forgotten by the sidecar, and then drops it from what waits. Until then it waits
   * and is not sent; and it waits on where the sidecar refuses.
   *
   * @param call - tells the sidecar; nothing of what is meant is under way then.
   */
  async forget(resourceId: string, target: Target, call: () => Promise<unknown>): Promise<void> {
    const letGo = this.#queue.hold(resourceId, target);
    try {
      for (const arriving of this.#arriving) {
        const [others, meant] = parted(arriving.batch, resourceId, target);
        arriving.batch = others;
        this.#pushedOut(this.#queue.add(meant), arriving.reporter);
      }
      await Promise.allSettled(this.#underWay);
      await call();
      this.#queue.discard(resourceId, target);
    } finally {
      letGo();
    }
  }

  async #flushAll(options: WriteOptions): Promise<void> {
    const untilMs = performance.now() + FLUSH_MS;
    // Asked anew for each call: what is discarded meanwhile must not be sent any more.
    for (let batch = this.#queue.oldest(); batch !== undefined; batch = this.#queue.oldest()) {
      if (performance.now() >= untilMs) return;
      const [request] = requestsOf(batch);
      const limits = withinTime({ ...options, timeoutMs: FLUSH_CALL_MS }, untilMs);
      if (request === undefined || !(await this.#send(request, limits))) return;
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
    if (batch.messages.length === 0) return;
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

/** The same with no more time than is left until then; at least a millisecond. */
function withinTime(options: WriteOptions, untilMs: number): WriteOptions {
  const leftMs = Math.min(options.timeoutMs ?? Infinity, untilMs - performance.now());
  return leftMs === Infinity ? options : { ...options, timeoutMs: Math.max(1, leftMs) };
}

/** Waits for the end of something, but no longer than one's own time and signal. */
async function ended(
  work: Promise<void>,
  withinMs: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  if (withinMs === Infinity && signal === undefined) return work;
  if (signal?.aborted === true) return;
  let timer: NodeJS.Timeout | undefined;
  let leave: (() => void) | undefined;
  const left = new Promise<void>((resolve) => {
    leave = () => {
      resolve();
    };
    if (withinMs !== Infinity) timer = setTimeout(leave, withinMs);
    signal?.addEventListener('abort', leave, { once: true });
  });
  await Promise.race([work, left]);
  clearTimeout(timer);
  if (leave !== undefined) signal?.removeEventListener('abort', leave);
}

/** A batch without what is meant, and that alone. */
function parted(batch: Batch, resourceId: string, target: Target): [Batch, Batch] {
  if (batch.resourceId !== resourceId) return [batch, { ...batch, messages: [] }];
  const isMeant = meaning(target);
  const others: IndexableMessage[] = [];
  const meant: IndexableMessage[] = [];
  for (const message of batch.messages) {
    (isMeant(batch.threadId, message.input.id) ? meant : others).push(message);
  }
  return [
    { ...batch, messages: others },
    { ...batch, messages: meant },
  ];
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
