/** Everything that a process writes to one sidecar: in order, and kept while it is away. */
import type { RecallClient } from '../client.js';
import { SemanticRecallError } from '../errors.js';
import type { IndexResult } from '../results.js';
import type { CallOptions, Wait } from '../values.js';
import {
  type Batch,
  meaning,
  type OutgoingMessage,
  RetryQueue,
  type Target,
} from './retry-queue.js';

/** Of the client, what a writer calls. */
type IndexCalls = Pick<RecallClient, 'index'>;

/** Messages that were not sent, or sent in vain. */
export interface WaitingReport {
  /** How many messages wait now, these included. */
  readonly pending: number;
  /** These have waited before: they were told then. */
  readonly hadWaited: boolean;
}

/** Told what becomes of what is written. None of these throws. */
export interface WriteReport {
  /** Messages that the sidecar has acknowledged. */
  acknowledged(messages: number): void;
  /** One message that it has refused, for good. */
  messageRefused(error: SemanticRecallError | undefined, messageId: string): void;
  /** A call that it has refused, for good: its messages are not remembered. */
  callRefused(error: unknown, batch: Batch): void;
  /** A call that failed: its messages wait. */
  callFailed(error: unknown, batch: Batch, waiting: WaitingReport): void;
  /** A call that its caller's signal has ended: its messages wait. */
  callAborted(batch: Batch, waiting: WaitingReport): void;
  /**
   * A call that was not made, since older messages wait still: its messages wait behind them.
   *
   * @param error - what the older ones failed with; `undefined` where they are being sent still.
   */
  callPutOff(error: unknown, batch: Batch, waiting: WaitingReport): void;
  /** Messages that waited, and are not remembered: more did than are kept. */
  pushedOut(messages: number): void;
}

/** A call; `batch`: what of it waits where it fails. */
interface UnderWay {
  batch: Batch;
}

/** How a write goes. `timeoutMs` is for all of it, what waited before included. */
export interface WriteOptions extends CallOptions {
  readonly wait: Wait;
  readonly reporter: WriteReport;
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
  readonly #client: IndexCalls;
  readonly #queue: RetryQueue;
  readonly #underWay = new Map<Promise<unknown>, UnderWay>();
  // Of calls that wait until what waited before has been sent.
  readonly #arriving = new Set<{ batch: Batch; readonly reporter: WriteReport }>();
  #flushing: Promise<void> | undefined;
  // What the last call for what waits failed with.
  #failure: unknown;

  constructor(client: IndexCalls, queueMessagesMax: number) {
    this.#client = client;
    this.#queue = new RetryQueue(queueMessagesMax);
  }

  /** Messages that wait for the sidecar. */
  get pendingMessages(): number {
    return this.#queue.size;
  }

  /** The time of a message that waits. */
  timeOf(resourceId: string, messageId: string): Date | undefined {
    return this.#queue.timeOf(resourceId, messageId);
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
        this.#putOff(arriving.batch, options);
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
      if (isDone) isDone = await this.#send(request, withinTime(options, untilMs), false);
      else this.#putOff(request, options);
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
    if (this.#flushing === undefined) {
      this.#failure = undefined;
      this.#flushing = this.#flushAll(others).finally(() => {
        this.#flushing = undefined;
      });
    }
    await ended(this.#flushing, (timeoutMs ?? Infinity) / 2, signal);
  }

  /** Takes out of what waits what reached the sidecar in another way. */
  delivered(batch: Batch): void {
    this.#queue.sent(batch);
  }

  /** Drops from what waits; then nothing of it is under way any more. */
  async discard(resourceId: string, target: Target): Promise<void> {
    this.#queue.discard(resourceId, target);
    for (const arriving of this.#arriving) {
      [arriving.batch] = parted(arriving.batch, resourceId, target);
    }
    await Promise.allSettled(this.#underWay.keys());
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
        const pushedOut = this.#queue.add(meant);
        if (pushedOut > 0) arriving.reporter.pushedOut(pushedOut);
      }
      await Promise.allSettled(this.#underWay.keys());
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
      if (request === undefined || !(await this.#send(request, limits, true))) return;
    }
  }

  /** One call. False: its messages wait; true: they are acknowledged or given up. */
  async #send(batch: Batch, options: WriteOptions, hadWaited: boolean): Promise<boolean> {
    const { reporter, ...callOptions } = options;
    const { resourceId, threadId, metadata } = batch;
    const inputs = batch.messages.map((message) => message.input);
    const call = this.#client.index(resourceId, threadId, inputs, { ...callOptions, metadata });
    const earlier = [...this.#underWay.values()];
    const mine = { batch };
    this.#underWay.set(call, mine);
    try {
      const result = await call;
      this.#queue.sent(batch);
      this.#overtake(earlier, batch);
      tellOutcomes(batch, result, reporter);
      return true;
    } catch (error) {
      // Where later ones of all its messages are acknowledged, nothing is left to be done.
      if (mine.batch.messages.length === 0) return true;
      return this.#failed(mine.batch, error, options, hadWaited);
    } finally {
      this.#underWay.delete(call);
    }
  }

  /** What an earlier call has of the same messages must not be sent after these, if it fails. */
  #overtake(earlier: readonly UnderWay[], { resourceId, messages }: Batch): void {
    if (earlier.length === 0) return;
    const ids = messages.map(({ input }) => input.id);
    for (const one of earlier) {
      const [others, same] = parted(one.batch, resourceId, { ids });
      one.batch = others;
      // It may have failed before.
      this.#queue.sent(same);
    }
  }

  #failed(batch: Batch, error: unknown, options: WriteOptions, hadWaited: boolean): boolean {
    const { reporter, signal } = options;
    if (error instanceof SemanticRecallError && FINAL_CODES.has(error.code)) {
      this.#queue.sent(batch);
      reporter.callRefused(error, batch);
      return true;
    }
    if (hadWaited) {
      this.#failure = error;
      // One that fails each time does not keep the others from being sent.
      this.#queue.postpone(batch);
    }
    const pushedOut = hadWaited ? 0 : this.#queue.add(batch);
    const waiting = { pending: this.#queue.size, hadWaited };
    if (signal?.aborted === true) reporter.callAborted(batch, waiting);
    else reporter.callFailed(error, batch, waiting);
    if (pushedOut > 0) reporter.pushedOut(pushedOut);
    return false;
  }

  #putOff(batch: Batch, { reporter, signal }: WriteOptions): void {
    if (batch.messages.length === 0) return;
    const pushedOut = this.#queue.add(batch);
    const waiting = { pending: this.#queue.size, hadWaited: false };
    if (signal?.aborted === true) reporter.callAborted(batch, waiting);
    else reporter.callPutOff(this.#failure, batch, waiting);
    if (pushedOut > 0) reporter.pushedOut(pushedOut);
  }
}

// A client has one writer, whoever writes with it: what waits is sent in order.
const writers = new WeakMap<IndexCalls, MemoryWriter>();

/** The writer of a client, that lets at least so many messages wait. */
export function writerOf(client: IndexCalls, queueMessagesMax: number): MemoryWriter {
  const known = writers.get(client);
  if (known !== undefined) {
    known.allowPending(queueMessagesMax);
    return known;
  }
  const writer = new MemoryWriter(client, queueMessagesMax);
  writers.set(client, writer);
  return writer;
}

function tellOutcomes(batch: Batch, { rejected }: IndexResult, reporter: WriteReport): void {
  reporter.acknowledged(batch.messages.length - rejected.length);
  for (const { error, messageId } of rejected) reporter.messageRefused(error, messageId);
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
  const others: OutgoingMessage[] = [];
  const meant: OutgoingMessage[] = [];
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
