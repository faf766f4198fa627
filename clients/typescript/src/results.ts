/** What comes back from the calls: plain values, without a trace of protobuf. */
import type { SemanticRecallError } from './errors.js';
import { InvalidArgumentError } from './errors.js';
import type { JsonObject, MessageVectors, Mode, Role, Scope } from './values.js';

/** One message of a conversation, as it was indexed. "" stands for what was not given. */
export interface Message {
  /** Unique within its resource. */
  id: string;
  /** Its conversation. */
  threadId: string;
  /** Its owner. */
  resourceId: string;
  /** Who wrote it. A role that this version does not know reads as "tool": shown, not searched. */
  role: Role;
  /** Name of the writer. */
  author: string;
  /** What is searched. */
  text: string;
  /** When it was written, cut to the millisecond. */
  createTime: Date;
  /** The same, exact: nanoseconds since 1970. */
  createTimeNs: bigint;
  /** The caller's own fields. */
  metadata: JsonObject;
  /** The caller's own form of it, byte for byte. */
  payload: Uint8Array;
  /** What `payload` is, for the caller. */
  payloadType: string;
  /** Ties a tool call to its results. */
  groupId: string;
}

/** Whether a message's group is complete in an answer; "none": it belongs to no group. */
export type GroupState = 'none' | 'whole' | 'hit_only';

/** Why a hit ranks where it does. Its relevance is the sum of the parts. */
export interface Explain {
  /** Cosine of the message's best vector with the whole query. */
  cosine: number | undefined;
  /** Rank among dense candidates, from 1; 0 where it is not among them. */
  denseRank: number;
  /** Which part of the message matched, from 0. */
  chunk: number;
  /** Of how many. */
  chunks: number;
  /** BM25 of the message's own words; 0: it has no word of the query. */
  bm25: number;
  /** BM25 of its words and, with less weight, those of the messages around it. */
  bm25InContext: number;
  /** Rank among lexical candidates, from 1; 0 where it is not among them. */
  lexicalRank: number;
  /** What the cosine adds. */
  densePart: number;
  /** What its words add, together with those around it. */
  lexicalPart: number;
  /** What the message before it hands over, where that one asks a question. */
  neighbourPart: number;
  /** What it adds that the query names the message's author. */
  authorPart: number;
  /** What recency adds, or takes away. */
  recencyPart: number;
  /** What diversity takes away. */
  diversityPart: number;
}

/** One message of an answer. */
export interface RecalledMessage {
  /** As indexed. */
  message: Message;
  /** True: found by the query. False: a neighbour, or a member of a hit's group. */
  hit: boolean;
  /** Cosine of a hit; absent for others, and for hits that are `lexicalOnly`. */
  score: number | undefined;
  /** 1 for the best hit; 0 for others. */
  rank: number;
  /** What hits are ordered by, higher is better; comparable within one answer only. */
  relevance: number | undefined;
  /** Found by its words alone: it has no vector yet, or the mode asks for none. */
  lexicalOnly: boolean;
  /** The text is only the beginning that fits `maxTokens`; it has no payload. */
  textCut: boolean;
  /** Whether the message's group is whole. */
  groupState: GroupState;
  /** Hits only, where it was asked for. */
  explain: Explain | undefined;
}

/** Why a candidate is not in an answer. */
export type ExcludedReason =
  | 'unspecified'
  | 'top_k'
  | 'below_threshold'
  | 'no_vector'
  | 'near_duplicate'
  | 'diversity'
  | 'tokens'
  | 'answer_size'
  | 'conditions'
  | 'changed';

/** A candidate that is not in the answer, and why. */
export interface ExcludedCandidate {
  /** The message's id. */
  messageId: string;
  /** Its conversation. */
  threadId: string;
  /** Why. */
  reason: ExcludedReason;
  /** The rank it had before anything was left out and before diversity, from 1. */
  rank: number;
  /** As for hits, but before diversity. */
  relevance: number;
  /** As for hits. */
  explain: Explain | undefined;
  /** Id of the better candidate that says nearly the same, where that is the reason; else "". */
  nearDuplicateOf: string;
}

/** Why an answer holds no messages. */
export type WhyEmpty =
  'unspecified' | 'no_query' | 'no_messages' | 'filtered' | 'below_threshold' | 'no_words';

/** Where the time went on the server, in microseconds; `lexicalUs` is part of `searchUs`. */
export interface RecallTimings {
  totalUs: number;
  queueUs: number;
  embedUs: number;
  searchUs: number;
  fetchUs: number;
  renderUs: number;
  lexicalUs: number;
}

/** What an answer cost and how it was made. */
export interface RecallInfo {
  /** The scope that was applied. */
  scopeUsed: Scope | 'unspecified';
  /** The ranking that was applied. */
  modeUsed: Mode | 'unspecified';
  /** Best cosine among allowed messages, before the threshold. */
  bestScore: number | undefined;
  /** Why there are no messages; "unspecified" where there are some. */
  whyEmpty: WhyEmpty;
  /** The query was longer than the model's window and was cut. */
  queryTruncated: boolean;
  /** Tokens of the query as embedded. */
  queryTokens: number;
  /** The query's vector came from the cache, or the answer was given again. */
  cacheHit: boolean;
  /** Stage timings. */
  timings: RecallTimings;
  /** Messages that passed scope, filter and exclusions. */
  candidates: number;
  /** Messages of the resource that can be found. */
  searchable: number;
  /** Messages of the resource without a vector yet. */
  pending: number;
  /** The hits are exactly those that scoring every message would give. */
  exact: boolean;
  /** Filter keys that no message of the resource carries. */
  unknownFilterKeys: string[];
  /** Which vectors: model, revision, dimensions, arithmetic. */
  indexIdentity: string;
  /** Groups that were left out, being larger than the server's limit. */
  absentGroupIds: string[];
  /** Messages left out to keep the answer below the server's limit. */
  messagesDropped: number;
  /** Asked before, and nothing has changed since: the answer given then, without a search. */
  answerCacheHit: boolean;
  /** Tokens of the messages; with `maxTokens` only. */
  tokens: number;
  /** Tokens of `contextText`; with `maxTokens` only. */
  contextTokens: number;
  /** Messages left out or cut to keep within `maxTokens`. */
  messagesDroppedForTokens: number;
  /** `maxTokens` has no room in `contextText` for a beginning of the best hit. */
  contextDidNotFit: boolean;
}

/**
 * Why a recall gave no memories though nobody made a mistake: a `reason` of the error, e.g.
 * "UNREACHABLE", "NO_CONNECTION", "DEADLINE_EXCEEDED", "QUEUE_FULL", "DRAINING", "DATA_LOSS".
 */
export type DegradedReason = string;

/** The answer of `recall`: its messages, hits and neighbours, in thread order. */
export class RecallResult implements Iterable<RecalledMessage> {
  /** Each once; threads in order of their first message, inside by time. */
  readonly messages: readonly RecalledMessage[];
  /** The messages as text for a prompt; "" where there is nothing to say. */
  readonly contextText: string;
  /** What it cost; absent where `degraded`. */
  readonly info: RecallInfo | undefined;
  /** What is not in the answer, and why, the best first; with `explain` only. */
  readonly excluded: readonly ExcludedCandidate[];
  /** Absent normally. Else the sidecar gave no answer, the client failed open, and this is why. */
  readonly degraded: DegradedReason | undefined;

  constructor(
    fields: {
      messages?: readonly RecalledMessage[];
      contextText?: string;
      info?: RecallInfo | undefined;
      excluded?: readonly ExcludedCandidate[];
      degraded?: DegradedReason | undefined;
    } = {},
  ) {
    this.messages = fields.messages ?? [];
    this.contextText = fields.contextText ?? '';
    this.info = fields.info;
    this.excluded = fields.excluded ?? [];
    this.degraded = fields.degraded;
  }

  /** Only what the query found, best first. */
  get hits(): RecalledMessage[] {
    return this.messages.filter((m) => m.hit).sort((a, b) => a.rank - b.rank);
  }

  /** Over all messages, in order. */
  [Symbol.iterator](): Iterator<RecalledMessage> {
    return this.messages[Symbol.iterator]();
  }
}

/** What became of one message given to `index`; "pending": on disk, without a vector yet. */
export type Status =
  'unspecified' | 'indexed' | 'replaced' | 'unchanged' | 'pending' | 'not_embedded' | 'rejected';

/** What became of one message of an `index` call. */
export interface MessageOutcome {
  /** The message's id. */
  messageId: string;
  /** What became of it. */
  status: Status;
  /** Why, where it is "rejected" or "pending". */
  error: SemanticRecallError | undefined;
}

/** What an `index` call cost. */
export interface IndexInfo {
  /** Vectors computed for this call. */
  embeddingsComputed: number;
  /** Vectors taken from the cache. */
  embeddingsCached: number;
  /** Microseconds until the commit on disk. */
  durableUs: number;
  /** Microseconds until the answer. */
  totalUs: number;
}

/** The answer of `index`. */
export class IndexResult {
  /** One a message, in the order of the request. */
  readonly outcomes: readonly MessageOutcome[];
  /** Give it to `recall` to be sure that it sees these messages. */
  readonly readToken: string;
  /** What it cost. */
  readonly info: IndexInfo;
  /** Of `indexStream` only: the batch failed as a whole, nothing of it was stored. */
  readonly error: SemanticRecallError | undefined;

  constructor(fields: {
    outcomes: readonly MessageOutcome[];
    readToken: string;
    info: IndexInfo;
    error?: SemanticRecallError | undefined;
  }) {
    this.outcomes = fields.outcomes;
    this.readToken = fields.readToken;
    this.info = fields.info;
    this.error = fields.error;
  }

  /** The messages that were not stored. */
  get rejected(): MessageOutcome[] {
    return this.outcomes.filter((outcome) => outcome.status === 'rejected');
  }

  /** Throws the error of the batch, or of its first rejected message, if there is one. */
  throwIfRejected(): void {
    if (this.error !== undefined) throw this.error;
    const first = this.rejected[0];
    if (first !== undefined) {
      throw first.error ?? InvalidArgumentError.of('messages', 'a message was rejected');
    }
  }
}

/** How much was forgotten, per place, and whether the files hold it still. */
export interface ForgetResult {
  /** Messages removed from the record. */
  messages: number;
  /** Vectors removed. */
  vectors: number;
  /** Threads that are empty now and were removed. */
  threads: number;
  /** Cached vectors of removed texts that were dropped. */
  cacheEntries: number;
  /** Nothing of it is left in the files of the data directory. */
  purged: boolean;
  /** When that will have been done by itself; absent where it is done, or never is by itself. */
  purgeDueTime: Date | undefined;
  /** Snapshots whose files hold it still, by name, at most 1,000. */
  snapshotsHolding: string[];
}

/** One thread of a resource. */
export interface ThreadInfo {
  /** Its id. */
  threadId: string;
  /** How many messages it holds. */
  messages: number;
  /** Time of its oldest message. */
  firstCreateTime: Date;
  /** Time of its newest message. */
  lastCreateTime: Date;
}

/** One text's vector. */
export interface Embedding {
  /** Unit length. */
  values: number[];
  /** Tokens as embedded, special tokens included. */
  tokens: number;
  /** The text was longer than the model's window and was cut. */
  truncated: boolean;
}

/** Vectors of texts, in the order of the request, and which model made them. */
export interface EmbedResult {
  /** One a text. */
  embeddings: Embedding[];
  /** Numbers in each vector. */
  dimensions: number;
  /** Which vectors: model, revision, dimensions, arithmetic. */
  indexIdentity: string;
}

/** One message of an export. */
export interface ExportedMessage {
  /** As indexed. */
  message: Message;
  /** Its vectors, where they were asked for and are there. */
  vectors: MessageVectors | undefined;
}
