/** What the recall middleware takes, and what it gives: all of it plain values. */
import type { JsonObject, Logger, RecallClient, RecallOptions, TlsOptions } from '../index.js';
import type { FinishReason, StreamPart } from './answer.js';
import type { MemoryFailure, RecallMiddlewareStats } from './failures.js';
import type { Placement, PromptMessage, ProviderOptions } from './prompt.js';

/** The client's calls that the middleware makes. */
export type RecallAndIndex = Pick<RecallClient, 'recall' | 'index'>;

/** Whose turn it is. */
export interface TurnIdentity {
  /** Whose memory. Without it the call goes through as if there were no middleware. */
  resourceId?: string | undefined;
  /** The conversation. Without it the turn recalls, but is not indexed. */
  threadId?: string | undefined;
  /** Name of the person, kept with their messages; a question that names them favours these. */
  author?: string | undefined;
  /** Your own fields for the turn's messages, for `filter`. */
  metadata?: JsonObject | undefined;
  /** Condition on the fields of messages, e.g. `{ project: 'A' }`; holds with that of the options. */
  filter?: JsonObject | undefined;
}

/** What is read of the parameters of a model call. */
export interface ModelCall {
  /** The prompt. */
  readonly prompt: readonly PromptMessage[];
  /** Ends the recall too. */
  readonly abortSignal?: AbortSignal | undefined;
  /** Options by provider; under `semanticrecall` there may be a {@link TurnIdentity}. */
  readonly providerOptions?: ProviderOptions | undefined;
}

/** What is read of a model's answer. */
export interface GeneratedAnswer {
  /** Its parts. */
  readonly content: readonly { readonly type: string; readonly text?: unknown }[];
  /** Why it ended. */
  readonly finishReason: FinishReason;
}

/** What is read of a model's streamed answer. */
export interface StreamedAnswer {
  /** Its parts, as they come. */
  readonly stream: ReadableStream<StreamPart>;
}

/** Options of the client's `recall` that are the same for every call. */
export type LookingOptions = Pick<
  RecallOptions,
  'topK' | 'messageRange' | 'threshold' | 'scope' | 'roles' | 'maxTokens' | 'ranking' | 'timeZone'
>;

/** Options of `recallMiddleware`: whose turn it is, how to look, and where it goes. */
export interface RecallMiddlewareOptions extends TurnIdentity, LookingOptions {
  /** The client to use. It stays yours: close it yourself. */
  client?: RecallAndIndex | undefined;
  /** Without a client: where the sidecar is. Default: as `RecallClient`. */
  address?: string | undefined;
  /** Without a client: sent with every call, where the sidecar wants it. Default: as there. */
  token?: string | undefined;
  /** Without a client: how the connection is encrypted. Default: as there, no TLS. */
  tls?: TlsOptions | boolean | undefined;
  /**
   * Whose turn a call is, where one model serves many users: all of it, nothing is added from these
   * options. Default: these options, and what the call has under
   * `providerOptions.semanticrecall` in their place; a call that names a resource names its thread
   * too.
   */
  resolve?: ((call: ModelCall) => TurnIdentity | PromiseLike<TurnIdentity>) | undefined;
  /**
   * How recalled text is written. "default": dated, escaped, fenced as data. "mastra": as Mastra
   * writes it, unescaped, and only messages of other threads.
   */
  contextFormat?: 'default' | 'mastra' | undefined;
  /**
   * Where it goes. "beforeLastUser" (default): a part of its own in the last user message, before
   * what that says, so that a provider's cache of the prompt's beginning stays good. "system": a
   * message of its own after the system messages.
   */
  placement?: Placement | undefined;
  /** Recall, but index nothing. Default false. */
  readOnly?: boolean | undefined;
  /** When a turn counts as indexed. Default "durable": on disk, and found by its words at once. */
  wait?: 'searchable' | 'durable' | undefined;
  /**
   * Messages kept for later while the sidecar is away, 0 to 100,000; default 1,000. The next call
   * sends them, in order, before it recalls and before it indexes; for half of its `timeoutMs` each
   * time at most. More push out the oldest. They are lost with the process. What is forgotten with
   * the client while it waits comes back: `await middleware.flush()` first.
   */
  retryQueueMessagesMax?: number | undefined;
  /** Most milliseconds that a recall, and an indexing, may add to a call. Default 3,000. */
  timeoutMs?: number | undefined;
  /** Where failures are logged. Default: `process.emitWarning`, each text once. */
  logger?: Logger | undefined;
  /** Told of each failure as well. What it throws is ignored. */
  onError?: ((failure: MemoryFailure) => void) | undefined;
}

/** Middleware for `wrapLanguageModel` of AI SDK 5, 6 and 7. */
export interface RecallMiddleware {
  /** What AI SDK 6 asks for; 5 and 7 take it as well. */
  readonly specificationVersion: 'v3';
  /** Puts into the prompt what matters to its last user message. */
  readonly transformParams: <P extends ModelCall>(options: { params: P }) => Promise<P>;
  /** Indexes the turn after the answer. */
  readonly wrapGenerate: <R extends GeneratedAnswer>(options: {
    doGenerate: () => PromiseLike<R>;
    params: ModelCall;
  }) => Promise<R>;
  /** Passes the answer on as it comes; when it has ended, indexes the turn and closes the stream. */
  readonly wrapStream: <R extends StreamedAnswer>(options: {
    doStream: () => PromiseLike<R>;
    params: ModelCall;
  }) => Promise<R>;
  /** What has been done and what has failed since it was made: a copy. */
  readonly stats: RecallMiddlewareStats;
  /**
   * Sends what waits for the sidecar, e.g. before the process ends: for 30 seconds at most. How much
   * waits still.
   */
  readonly flush: () => Promise<number>;
  /** Closes the connection, unless the client was given. What waits is not sent. */
  readonly close: () => Promise<void>;
}
