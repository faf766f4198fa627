/** Counts what was done, and makes known what failed: a line in the log, a call, a number. */
import type { Logger } from '../index.js';
import { SemanticRecallError } from '../index.js';

/** What has been done and what has failed since the middleware was made. */
export interface RecallMiddlewareStats {
  /** Recalls that were answered, with or without memories. */
  recalls: number;
  /** Recalls that were not answered: the call went on without memories. */
  recallFailures: number;
  /** Messages stored, new or in place of an older text. */
  indexedMessages: number;
  /** Messages that were stored already. */
  unchangedMessages: number;
  /** Messages that could not be stored. */
  unindexedMessages: number;
  /** Model calls that failed, were aborted or broke off: nothing of them was indexed. */
  unfinishedCalls: number;
  /** Model calls that named no resource, or none that makes sense: they had no memory. */
  callsWithoutIdentity: number;
  /** Model calls that named no thread: what they said was not indexed. */
  callsWithoutThread: number;
}

/** Something that memory could not do for a call. */
export interface MemoryFailure {
  /** What it was. */
  readonly operation: 'identity' | 'recall' | 'index';
  /** Why. Holds no text of a message. */
  readonly error: Error;
}

const CONSEQUENCES: Readonly<Record<MemoryFailure['operation'], string>> = {
  identity: 'whose turn it is could not be told; the call goes on without memory',
  recall: 'nothing could be recalled; the call goes on without memories',
  index: 'the turn could not be indexed',
};

/** Where one middleware counts and complains. */
export class FailureReport {
  private readonly logger: Logger;
  private readonly onError: ((failure: MemoryFailure) => void) | undefined;
  private readonly counts: RecallMiddlewareStats = {
    recalls: 0,
    recallFailures: 0,
    indexedMessages: 0,
    unchangedMessages: 0,
    unindexedMessages: 0,
    unfinishedCalls: 0,
    callsWithoutIdentity: 0,
    callsWithoutThread: 0,
  };

  constructor(logger: Logger | undefined, onError: ((failure: MemoryFailure) => void) | undefined) {
    this.logger = logger ?? processWarnings();
    this.onError = onError;
  }

  /** A copy of the counts. */
  get stats(): RecallMiddlewareStats {
    return { ...this.counts };
  }

  /** Adds to a count. */
  count(name: keyof RecallMiddlewareStats, by = 1): void {
    this.counts[name] += by;
  }

  /** Makes a failure known. Never throws. */
  failed(operation: MemoryFailure['operation'], thrown: unknown): void {
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    const reason = error instanceof SemanticRecallError ? error.reason : error.name;
    const message = `semantic recall: ${CONSEQUENCES[operation]} (${reason})`;
    attempt(() => {
      this.logger.warn(message, { operation, reason, error: error.message });
    });
    attempt(() => this.onError?.({ operation, error }));
  }
}

/** The process's own warnings, each text once, so that an outage does not flood them. */
function processWarnings(): Logger {
  const told = new Set<string>();
  return {
    warn(message) {
      if (told.has(message)) return;
      told.add(message);
      process.emitWarning(message, 'SemanticRecallWarning');
    },
  };
}

/** A caller's own function must not end the model's call. */
function attempt(callback: () => void): void {
  try {
    callback();
  } catch {
    // Said to be ignored.
  }
}
