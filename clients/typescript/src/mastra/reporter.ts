/** What went wrong, told once: a line of log and a counter; never text of a message. */
import { errorFields, type ReportFields } from '../adapters/error-fields.js';
import type { Batch } from '../adapters/retry-queue.js';
import type { WaitingReport, WriteReport } from '../adapters/writer.js';
import type { SemanticRecallError } from '../errors.js';
import { tell } from '../logging.js';
import type { RecallLogger } from './options.js';

/** Counters of a {@link SemanticRecall}, since it was made. */
export interface RecallStats {
  /** Recalls that were asked for. */
  recalls: number;
  /** Of those: nothing was found. */
  recallsEmpty: number;
  /** Of those: the sidecar gave no answer, or refused. The turn went on without memories. */
  recallsFailed: number;
  /** Of those: the turn was aborted meanwhile. */
  recallsAborted: number;
  /** Turns without a recall: no text to search with, or only white space. */
  recallsWithoutQuery: number;
  /** Turns without a recall or without indexing: the request names no resource. */
  turnsWithoutResource: number;
  /** Messages of this thread that were put into the list. */
  messagesRecalled: number;
  /** Turns in which text of other threads was put into the prompt. */
  otherThreadsRecalled: number;
  /** Messages that the sidecar acknowledged. */
  messagesIndexed: number;
  /** Calls to index that failed; their messages are kept for later, or told as dropped. */
  indexFailed: number;
  /** Calls to index that the turn's signal ended; their messages are kept for later. */
  indexAborted: number;
  /** Messages that the sidecar refused, for good. */
  messagesRejected: number;
  /** Messages that were given up: refused as a call, or more than the queue holds. */
  messagesDropped: number;
  /** Messages whose text was above 262,144 bytes: the rest is not searched. */
  textsCut: number;
  /** Messages whose payload was above 1 MiB, or no JSON: they come back as their text. */
  payloadsLeftOut: number;
  /** Threads whose metadata was above the limits: their messages went without. */
  metadataLeftOut: number;
  /** Turns that failed or were aborted. */
  failedTurns: number;
  /** Requests whose memory context could not be read. */
  malformedContexts: number;
  /** Deletions, edits and the like that reached the sidecar. */
  changesFollowed: number;
  /** Those that did not. */
  changesNotFollowed: number;
  /**
   * Deleted threads and messages of which neither the store nor a turn of this process knew the
   * owner: the sidecar was told nothing of them.
   */
  deletionsWithoutOwner: number;
}

/** A fresh set of counters. */
function noCounts(): RecallStats {
  return {
    recalls: 0,
    recallsEmpty: 0,
    recallsFailed: 0,
    recallsAborted: 0,
    recallsWithoutQuery: 0,
    turnsWithoutResource: 0,
    messagesRecalled: 0,
    otherThreadsRecalled: 0,
    messagesIndexed: 0,
    indexFailed: 0,
    indexAborted: 0,
    messagesRejected: 0,
    messagesDropped: 0,
    textsCut: 0,
    payloadsLeftOut: 0,
    metadataLeftOut: 0,
    failedTurns: 0,
    malformedContexts: 0,
    changesFollowed: 0,
    changesNotFollowed: 0,
    deletionsWithoutOwner: 0,
  };
}

const WARNING_INTERVAL_MS = 60_000;
const PREFIX = '[SemanticRecall]';

/** Counts, and writes lines of log. Never throws, whatever the logger does. */
export class Reporter implements WriteReport {
  readonly counts = noCounts();
  #logger: RecallLogger | undefined;
  readonly #warnedAtMs = new Map<string, number>();
  #isClosed = false;

  constructor(logger: RecallLogger | undefined) {
    this.#logger = logger;
  }

  /** Whether its processor was closed: what is followed is told elsewhere then. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Its processor is closed. */
  close(): void {
    this.#isClosed = true;
  }

  /** Takes a logger where none was given. */
  adoptLogger(logger: RecallLogger): void {
    this.#logger ??= logger;
  }

  /** One more (or `by` more) of what is counted. */
  count(counter: keyof RecallStats, by = 1): void {
    this.counts[counter] += by;
  }

  /** Something was lost or left undone: counted, and one line. */
  failed(counter: keyof RecallStats, sentence: string, fields: ReportFields, by = 1): void {
    this.count(counter, by);
    this.#write('error', sentence, fields);
  }

  /** Something is not as it was given: counted, and one line. */
  changed(counter: keyof RecallStats, sentence: string, fields: ReportFields): void {
    this.count(counter);
    this.#write('warn', sentence, fields);
  }

  /** See {@link WriteReport}. */
  acknowledged(messages: number): void {
    this.count('messagesIndexed', messages);
  }

  /** See {@link WriteReport}. */
  messageRefused(error: SemanticRecallError | undefined, messageId: string): void {
    const fields = { ...errorFields(error), messageId };
    this.failed('messagesRejected', 'a message was refused; it is not remembered', fields);
  }

  /** See {@link WriteReport}. */
  callRefused(error: unknown, { messages }: Batch): void {
    this.count('messagesDropped', messages.length);
    const fields = { ...errorFields(error), messages: messages.length };
    this.failed('indexFailed', 'could not index; the messages are not remembered', fields);
  }

  /** See {@link WriteReport}. */
  callFailed(error: unknown, { messages }: Batch, { pending }: WaitingReport): void {
    const fields = { ...errorFields(error), messages: messages.length, pending };
    this.failed('indexFailed', 'could not index; the messages wait for the next call', fields);
  }

  /** See {@link WriteReport}. */
  callAborted({ messages }: Batch, { pending }: WaitingReport): void {
    this.count('indexAborted');
    const fields = { messages: messages.length, pending };
    this.debug('the turn was aborted while it was indexed; its messages wait', fields);
  }

  /** See {@link WriteReport}. */
  callPutOff(_: unknown, { messages }: Batch, { pending }: WaitingReport): void {
    const fields = { messages: messages.length, pending };
    this.failed('indexFailed', 'the sidecar is away; the messages wait', fields);
  }

  /** See {@link WriteReport}. */
  pushedOut(messages: number): void {
    const sentence = 'more messages wait than are kept; the oldest are not remembered';
    this.failed('messagesDropped', sentence, { messages }, messages);
  }

  /** Good to know; told to a logger only. */
  debug(sentence: string, fields: ReportFields): void {
    if (this.#logger !== undefined) this.#write('debug', sentence, fields);
  }

  #write(level: 'error' | 'warn' | 'debug', sentence: string, fields: ReportFields): void {
    const line = `${PREFIX} ${sentence}`;
    if (this.#logger === undefined) {
      this.#warnProcess(sentence, `${line} ${JSON.stringify(fields)}`);
      return;
    }
    const hasLevel = level !== 'warn' || this.#logger.warn !== undefined;
    tell(this.#logger, hasLevel ? level : 'error', line, fields);
  }

  /** Without a logger: a warning of the process, each kind at most once a minute. */
  #warnProcess(kind: string, line: string): void {
    const nowMs = performance.now();
    const lastMs = this.#warnedAtMs.get(kind);
    if (lastMs !== undefined && nowMs - lastMs < WARNING_INTERVAL_MS) return;
    this.#warnedAtMs.set(kind, nowMs);
    process.emitWarning(line, 'SemanticRecallWarning');
  }
}
