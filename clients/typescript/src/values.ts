/**
 * What goes into the calls: plain objects, without a trace of protobuf.
 *
 * Conventions that hold everywhere: ids are UTF-8 of 1 to 512 bytes without control characters and
 * compare by equality only; scores are cosines from -1 to 1, higher is better; durations carry
 * their unit in the name. An option that is `undefined` is as if it were not given.
 */

/** A JSON value: what `JSON.parse` gives. Numbers must be finite. */
export type JsonValue = string | number | boolean | null | JsonValue[] | JsonObject;

/** A JSON object. */
export interface JsonObject {
  [key: string]: JsonValue;
}

/** Who wrote a message. User and assistant messages are searchable, the others are shown. */
export type Role = 'user' | 'assistant' | 'system' | 'tool';

/** Which of the resource's messages may be hits: all (default), or one thread's. */
export type Scope = 'resource' | 'thread';

/** How candidates are ranked: by meaning, by words, or by both (default). */
export type Mode = 'dense' | 'lexical' | 'hybrid';

/** How `RecallResult.contextText` is written; "default" is fenced, dated and escaped. */
export type ContextFormat = 'default' | 'mastra' | 'none';

/** When `index` answers: once searchable (default), or once on disk. */
export type Wait = 'searchable' | 'durable';

/** What a text is embedded as. Default: "passage". */
export type EmbedRole = 'query' | 'passage';

/** What every call takes beside its own options. */
export interface CallOptions {
  /** Milliseconds this call may take. Default: the client's (10,000). */
  timeoutMs?: number | undefined;
  /** Stops the waiting: the call rejects with `signal.reason`. */
  signal?: AbortSignal | undefined;
}

/** One message of a conversation, to be indexed. */
export interface MessageInput {
  /** Unique within the resource. Default: a random UUID, so that a repeated call stores it twice. */
  id?: string | undefined;
  /** The conversation. Default: the call's. */
  threadId?: string | undefined;
  /** The owner. Default: the call's; if given it must be equal to that. */
  resourceId?: string | undefined;
  /** Who wrote it. */
  role: Role;
  /** Name of the writer, shown in the context and used for ranking. At most 512 bytes. */
  author?: string | undefined;
  /** What is searched; at most 262,144 bytes. */
  text?: string | undefined;
  /** When it was written. Default: the server's clock on arrival. */
  createTime?: Date | undefined;
  /** The same in nanoseconds since 1970, where milliseconds are not enough; it wins. */
  createTimeNs?: bigint | undefined;
  /** Your own fields, for `filter`; at most 65,536 bytes as JSON, 16 levels. */
  metadata?: JsonObject | undefined;
  /** Your own form of the message, returned byte for byte; at most 1,048,576 bytes. */
  payload?: Uint8Array | undefined;
  /** What `payload` is, for you; at most 512 bytes. */
  payloadType?: string | undefined;
  /** Ties a tool call to its results: a group is recalled whole or not at all. */
  groupId?: string | undefined;
}

/** Fields of {@link user}, {@link assistant}, {@link system} and {@link tool}. */
export type MessageFields = Omit<MessageInput, 'role' | 'text'>;

/** A message that the person wrote. */
export function user(text: string, fields: MessageFields = {}): MessageInput {
  return { ...fields, role: 'user', text };
}

/** A message that the model wrote. */
export function assistant(text: string, fields: MessageFields = {}): MessageInput {
  return { ...fields, role: 'assistant', text };
}

/** Instructions: kept and shown beside hits, never a hit. */
export function system(text: string, fields: MessageFields = {}): MessageInput {
  return { ...fields, role: 'system', text };
}

/** A tool's call or result: kept and shown beside hits, never a hit. Give it a `groupId`. */
export function tool(text: string, fields: MessageFields = {}): MessageInput {
  return { ...fields, role: 'tool', text };
}

/** How candidates are ranked. */
export interface Ranking {
  /** Default "hybrid". */
  mode?: Mode | undefined;
  /** How much newer messages are preferred, 0 to 1. Default 0: not at all. */
  recencyWeight?: number | undefined;
  /** Age at which recency has halved, in milliseconds. Default: 7 days. */
  recencyHalfLifeMs?: number | undefined;
  /** How much hits that resemble a better one are put behind others, 0 to 1. Default 0. */
  diversity?: number | undefined;
  /** Leave out a hit with at least this cosine with a better one, above 0, at most 1. */
  nearDuplicateCosine?: number | undefined;
}

/** Neighbours of each hit. */
export interface MessageRange {
  /** 0 to 50. Default 0. */
  before?: number | undefined;
  /** 0 to 50. Default 0. */
  after?: number | undefined;
}

/** Options of `recall`. */
export interface RecallOptions {
  /** The conversation the caller is in. Required with scope "thread". */
  threadId?: string | undefined;
  /** Default "resource": all threads of the resource. */
  scope?: Scope | undefined;
  /** How many messages to find, 1 to 1,000. Default 4. */
  topK?: number | undefined;
  /** Neighbours of each hit; one number: so many before and after. Default 1 and 1. */
  messageRange?: number | MessageRange | undefined;
  /** Least cosine of a hit, -1 to 1, in every mode. Default: none. */
  threshold?: number | undefined;
  /** Condition on `Message.metadata`, e.g. `{ project: 'A', age: { $gte: 3 } }`. */
  filter?: JsonObject | undefined;
  /** Only messages of these roles are hits. */
  roles?: readonly Role[] | undefined;
  /** Only messages at or after this time are hits. */
  createTimeFrom?: Date | undefined;
  /** Only messages before this time are hits. */
  createTimeTo?: Date | undefined;
  /** Messages already in the prompt: never hits, never neighbours. At most 10,000. */
  excludeMessageIds?: readonly string[] | undefined;
  /** How candidates are ranked. */
  ranking?: Ranking | undefined;
  /** Most tokens of the messages, and of `contextText`, 1 to 1,000,000. Default: no budget. */
  maxTokens?: number | undefined;
  /** How `RecallResult.contextText` is written. */
  contextFormat?: ContextFormat | undefined;
  /** Leave messages of `threadId` out of `contextText`. Default false. */
  contextOtherThreadsOnly?: boolean | undefined;
  /** IANA name for the dates in it, e.g. "Europe/Berlin". Default "UTC". */
  timeZone?: string | undefined;
  /** Fill `RecalledMessage.explain` and `RecallResult.excluded`. Default false. */
  explain?: boolean | undefined;
  /** Of an `IndexResult` of this resource: wait until that call's messages are searchable. */
  readToken?: string | undefined;
  /** Other phrasings of the query, at most 16. */
  alternativeQueries?: readonly string[] | undefined;
  /** The query's vector, in place of that of its text; as many numbers as the model has. */
  queryEmbedding?: readonly number[] | undefined;
}

/** Options of `index`. */
export interface IndexOptions {
  /** Default "searchable". */
  wait?: Wait | undefined;
  /** Fields for every message of the call; a message's own field of the same name wins. */
  metadata?: JsonObject | undefined;
  /** Vectors of an export, so that they need not be computed again. */
  vectors?: readonly MessageVectors[] | undefined;
}

/** The vectors of one message, of an export. */
export interface MessageVectors {
  /** The message's id. */
  messageId: string;
  /** What made them; see `Stats.indexIdentity`. */
  indexIdentity: string;
  /** float32, little endian: one vector, or one for each chunk of a long text, in order. */
  data: Uint8Array;
}

/** One request of `indexStream`: 1 to 1,000 messages of one resource. */
export interface IndexBatch extends IndexOptions {
  /** Whose memory. */
  resourceId: string;
  /** The conversation. May be left out where every message names its own. */
  threadId?: string | undefined;
  /** In the order they were said. */
  messages: readonly MessageInput[];
}

/** Options of the forgetting calls. */
export interface ForgetOptions {
  /**
   * Answer when nothing of it is left in the server's files and snapshots either. Give it time.
   * Default false: that is done later (`ForgetResult.purgeDueTime`).
   */
  purge?: boolean | undefined;
}

/** Conditions of `forget`: all that are given must be met. Empty ones are refused. */
export interface ForgetConditions {
  /** Of this thread. */
  threadId?: string | undefined;
  /** By one of these authors (1 to 100), compared by equality. */
  authors?: readonly string[] | undefined;
  /** Written at or after this time. */
  createTimeFrom?: Date | undefined;
  /** Written before this time. */
  createTimeTo?: Date | undefined;
  /** Of one of these roles. */
  roles?: readonly Role[] | undefined;
}

/** Options of `listMessages`. */
export interface ListOptions {
  /** This conversation. Default: all of the resource. */
  threadId?: string | undefined;
  /** Stop after so many messages. Default: all. */
  limit?: number | undefined;
  /** Default false: oldest first. */
  newestFirst?: boolean | undefined;
  /** Only messages at or after this time. */
  createTimeFrom?: Date | undefined;
  /** Only messages before this time. */
  createTimeTo?: Date | undefined;
  /** Only these. Default: all. */
  roles?: readonly Role[] | undefined;
  /** Messages a request, 1 to 1,000. Default 200. */
  pageSize?: number | undefined;
}

/** Options of `embed`. */
export interface EmbedOptions {
  /** Default "passage". */
  role?: EmbedRole | undefined;
}

/** TLS towards the sidecar. Contents are PEM; give a file or its content, not both. */
export interface TlsOptions {
  /** File of the authorities to trust. Default: Node's own list. */
  caFile?: string | undefined;
  /** The authorities to trust. */
  ca?: string | Uint8Array | undefined;
  /** File of this client's certificate, for mutual TLS. */
  certFile?: string | undefined;
  /** This client's certificate. */
  cert?: string | Uint8Array | undefined;
  /** File of its key. */
  keyFile?: string | undefined;
  /** Its key. */
  key?: string | Uint8Array | undefined;
  /** Name to expect in the server's certificate, where it is not the address. */
  serverName?: string | undefined;
}

/** Where warnings go: `console` fits, and so does pino or winston behind a line of code. */
export interface Logger {
  /** Something the caller should know of, e.g. that a recall went on without memories. */
  warn(message: string, fields?: object): void;
}

/** Options of a client. */
export interface ClientOptions {
  /** "HOST:PORT" or "unix:/path". Default: SEMANTICRECALL_ADDRESS, else "127.0.0.1:7650". */
  address?: string | undefined;
  /**
   * Sent with every call where the server wants one. Default: SEMANTICRECALL_TOKEN. Refused without
   * TLS, except to this machine.
   */
  token?: string | undefined;
  /** Default false: no TLS. True: Node's own list of authorities. */
  tls?: TlsOptions | boolean | undefined;
  /** Milliseconds a call may take, unless the call says otherwise. Default 10,000. */
  timeoutMs?: number | undefined;
  /**
   * Milliseconds of that which may go by while nothing answers at the address, or a sidecar answers
   * that it is still starting. Default 3,000. For 10 seconds after a call that has waited so long in
   * vain the next ones try once, without waiting.
   */
  connectTimeoutMs?: number | undefined;
  /**
   * What `recall` does when the sidecar cannot be reached, is too late, is full or finds damage on
   * its disk. True (default): it returns an empty result with `degraded` set, and logs a warning.
   * False: it throws. Mistakes (a bad argument, a wrong token) throw always; so do all other calls:
   * an `index` that is lost would be lost memory.
   */
  failOpen?: boolean | undefined;
  /** Default: none; warnings go to `process.emitWarning`, each text once. */
  logger?: Logger | undefined;
}
