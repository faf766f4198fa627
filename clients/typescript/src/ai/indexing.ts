/**
 * What a turn said, on its way to the sidecar: in order, and kept while that is away.
 *
 * The queue is the one of the client, whoever writes with it; see `adapters/writer.ts`.
 */
import { type Batch, dated, type OutgoingMessage } from '../adapters/retry-queue.js';
import {
  type MemoryWriter,
  type WaitingReport,
  type WriteReport,
  writerOf,
} from '../adapters/writer.js';
import type { JsonObject, MessageInput, SemanticRecallError } from '../index.js';
import { UnavailableError } from '../index.js';
import type { FailureReport } from './failures.js';
import type { RecallAndIndex } from './options.js';

/** A message of a turn. */
export type SaidMessage = MessageInput & { readonly id: string; readonly text: string };

/** How a turn is indexed. */
export interface IndexingOptions {
  readonly wait: 'searchable' | 'durable';
  readonly timeoutMs: number;
  readonly retryQueueMessagesMax: number;
}

/** Indexes turns, and lets what could not be sent wait. Nothing here rejects but a retry. */
export class TurnIndexing {
  private readonly client: RecallAndIndex;
  private readonly writer: MemoryWriter;
  private readonly options: IndexingOptions;
  private readonly report: FailureReport;
  private readonly told: WriteReport;

  constructor(client: RecallAndIndex, options: IndexingOptions, report: FailureReport) {
    this.client = client;
    this.writer = writerOf(client, options.retryQueueMessagesMax);
    this.options = options;
    this.report = report;
    this.told = new IndexReport(report, (batch) => this.again(batch), false);
  }

  /** Messages that wait for the sidecar. */
  get pendingMessages(): number {
    return this.writer.pendingMessages;
  }

  /** Stores what was said in a call, after what waits. Not above the time of a call. */
  async store(
    resourceId: string,
    threadId: string,
    messages: readonly SaidMessage[],
    metadata: JsonObject = {},
  ): Promise<void> {
    const now = new Date();
    const outgoing = messages.map((input): OutgoingMessage => {
      // A question that goes with each step of a turn was said before the first answer.
      const saidAt = this.writer.timeOf(resourceId, input.id) ?? now;
      // Two bytes a character are a fair guess: it only says when a request is full.
      return { input, bytes: input.text.length * 2, saidAt };
    });
    const { wait, timeoutMs } = this.options;
    // Not ended by the call's signal: the answer is complete, whatever its reader does now.
    const options = { wait, timeoutMs, reporter: this.told };
    await this.writer.write({ resourceId, threadId, metadata, messages: outgoing }, options);
  }

  /** Sends what waits, for half of the time of a call at most. Milliseconds that are left of it. */
  async sendWaiting(signal: AbortSignal | undefined): Promise<number> {
    const { wait, timeoutMs } = this.options;
    if (this.pendingMessages === 0) return timeoutMs;
    const startedMs = performance.now();
    await this.writer.flush({ wait, timeoutMs, signal, reporter: this.told });
    return Math.max(1, timeoutMs - (performance.now() - startedMs));
  }

  /** Sends what waits, for as long as that takes; tells what it fails with. How much waits still. */
  async flush(): Promise<number> {
    const reporter = new IndexReport(this.report, (batch) => this.again(batch), true);
    await this.writer.flush({ wait: this.options.wait, reporter });
    return this.pendingMessages;
  }

  /** Sends messages once more, at once. Rejects as `index` does. */
  private async again(batch: Batch): Promise<void> {
    const { resourceId, threadId, metadata, messages } = batch;
    const { wait, timeoutMs } = this.options;
    const inputs = messages.map((message) => dated(message).input);
    const result = await this.client.index(resourceId, threadId, inputs, {
      metadata,
      wait,
      timeoutMs,
    });
    this.writer.delivered(batch);
    result.throwIfRejected();
  }
}

/** Counts and tells what became of turns. */
class IndexReport implements WriteReport {
  private readonly report: FailureReport;
  private readonly again: (batch: Batch) => Promise<void>;
  /** Whether it is told once more that what waits cannot be sent. */
  private readonly tellsAgain: boolean;

  constructor(report: FailureReport, again: (batch: Batch) => Promise<void>, tellsAgain: boolean) {
    this.report = report;
    this.again = again;
    this.tellsAgain = tellsAgain;
  }

  acknowledged(messages: number): void {
    this.report.count('messagesIndexed', messages);
  }

  messageRefused(error: SemanticRecallError | undefined): void {
    this.report.count('messagesRejected');
    this.report.failed('index', error);
  }

  callRefused(error: unknown, batch: Batch): void {
    this.report.count('messagesDropped', batch.messages.length);
    this.notIndexed(error, batch);
  }

  callFailed(error: unknown, batch: Batch, { hadWaited }: WaitingReport): void {
    if (!hadWaited) this.notIndexed(error, batch);
    else if (this.tellsAgain) this.report.failed('index', error);
  }

  callAborted(batch: Batch, waiting: WaitingReport): void {
    const error = new UnavailableError('the call was aborted', {
      reason: 'ABORTED',
      retryable: true,
    });
    this.callFailed(error, batch, waiting);
  }

  callPutOff(error: unknown, batch: Batch): void {
    this.notIndexed(error ?? stillSending(), batch);
  }

  pushedOut(messages: number): void {
    this.report.pushedOut(messages);
  }

  private notIndexed(error: unknown, batch: Batch): void {
    this.report.count('messagesNotIndexed', batch.messages.length);
    this.report.failed('index', error, () => this.again(batch));
  }
}

function stillSending(): UnavailableError {
  return new UnavailableError('what was said before is being sent still; this waits behind it', {
    reason: 'WAITING',
    retryable: true,
  });
}
