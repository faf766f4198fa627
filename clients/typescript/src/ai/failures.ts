/** Counts what was done, and makes known what failed: a line in the log, a call, a number. */
import type { Logger } from '../index.js';
import { errorFields } from '../adapters/error-fields.js';
import { attempt, tell } from '../logging.js';
import { ProcessWarnings } from '../process-warnings.js';

/** What has been done and what has failed since the middleware was made. */
export interface RecallMiddlewareStats {
  /** Recalls that were asked for. */
  recalls: number;
  /** Of those: nothing was found. */
  recallsEmpty: number;
  /** Of those: the sidecar gave no answer, or refused. The call went on without memories. */
  recallsFailed: number;
  /** Messages that the sidecar acknowledged; one that is sent with each step counts each time. */
  messagesIndexed: number;
  /** Messages that the sidecar refused. */
  messagesRejected: number;
  /**
   * Messages of calls to index that failed, or were put off since older ones wait; see
   * {@link MemoryFailure.retry}. Those that wait count as indexed as well once they are sent.
   */
  messagesNotIndexed: number;
  /** Messages that were given up: refused as a call, or more waited than are kept. */
  messagesDropped: number;
  /** Messages that wait for the sidecar now, of all that share the client. */
  pendingMessages: number;
  /** Messages above 262,144 bytes: the rest is neither stored nor searched. */
  textsCut: number;
  /** Model calls that failed, were aborted or broke off: nothing of them was indexed. */
  failedCalls: number;
  /** Model calls without memory: they named no resource, or not as it should be. */
  callsWithoutResource: number;
  /** Model calls that named no thread: what they said was not indexed. */
  callsWithoutThread: number;
}

/** Something that memory could not do for a call. */
export interface MemoryFailure {
  /** What it was. */
  readonly operation: 'identity' | 'recall' | 'index';
  /** Why. Holds no text of a message. */
  readonly error: Error;
  /**
   * For "index": sends the messages once more, with the time they were said at. Not needed where
   * they wait (`retryQueueMessagesMax`): the next call sends them. It may be called later, and more
   * than once: their ids make that they are stored once. Rejects as `index` does.
   */
  readonly retry?: (() => Promise<void>) | undefined;
}

const CONSEQUENCES: Readonly<Record<MemoryFailure['operation'], string>> = {
  identity: 'whose turn it is could not be told; the call goes on without memory',
  recall: 'nothing could be recalled; the call goes on without memories',
  index: 'the turn could not be indexed',
};

/** What is counted; how much waits is asked of the queue. */
export type RecallCounts = Omit<RecallMiddlewareStats, 'pendingMessages'>;

/** Where one middleware counts and complains. */
export class FailureReport {
  private readonly logger: Logger;
  private readonly onError: ((failure: MemoryFailure) => void) | undefined;
  private readonly counts: RecallCounts = {
    recalls: 0,
    recallsEmpty: 0,
    recallsFailed: 0,
    messagesIndexed: 0,
    messagesRejected: 0,
    messagesNotIndexed: 0,
    messagesDropped: 0,
    textsCut: 0,
    failedCalls: 0,
    callsWithoutResource: 0,
    callsWithoutThread: 0,
  };

  constructor(logger: Logger | undefined, onError: ((failure: MemoryFailure) => void) | undefined) {
    this.logger = logger ?? new ProcessWarnings();
    this.onError = onError;
  }

  /** A copy of the counts. */
  get stats(): RecallCounts {
    return { ...this.counts };
  }

  /** Adds to a count. */
  count(name: keyof RecallCounts, by = 1): void {
    this.counts[name] += by;
  }

  /** Counts a call that does not say something; the first one of its kind is logged. */
  lacking(
    name: 'callsWithoutResource' | 'callsWithoutThread',
    field: string,
    consequence: string,
  ): void {
    this.count(name);
    if (this.counts[name] > 1) return;
    const message = `[SemanticRecall] a call names no ${field}: ${consequence}; said once`;
    tell(this.logger, 'warn', message, { field });
  }

  /** Messages that waited are given up; their own failure was made known before. */
  pushedOut(messages: number): void {
    this.count('messagesDropped', messages);
    const sentence = 'more messages wait than are kept; the oldest are not remembered';
    tell(this.logger, 'warn', `[SemanticRecall] ${sentence}`, { messages });
  }

  /** Makes a failure known. Never throws. */
  failed(
    operation: MemoryFailure['operation'],
    thrown: unknown,
    retry?: () => Promise<void>,
  ): void {
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    const fields = errorFields(error);
    const reason = String(fields['reason'] ?? fields['error']);
    const message = `[SemanticRecall] ${CONSEQUENCES[operation]} (${reason})`;
    tell(this.logger, 'warn', message, { operation, ...fields });
    attempt(() => this.onError?.({ operation, error, retry }));
  }
}
