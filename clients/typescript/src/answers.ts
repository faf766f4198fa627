/** What was received: pure functions from an answer of the wire to a result. */
import { errorOfDetail } from './errors.js';
import type {
  EmbedResult,
  ExcludedCandidate,
  ExcludedReason,
  Explain,
  ExportedMessage,
  ForgetResult,
  GroupState,
  RecallInfo,
  RecalledMessage,
  Status,
  ThreadInfo,
  WhyEmpty,
} from './results.js';
import { IndexResult, RecallResult } from './results.js';
import * as v1 from './v1/index.js';
import type { Mode, Scope } from './values.js';
import { dateOf, messageOfWire, vectorsOfWire } from './wire.js';

const GROUP_STATES: Readonly<Record<number, GroupState>> = {
  [v1.GroupState.WHOLE]: 'whole',
  [v1.GroupState.HIT_ONLY]: 'hit_only',
};
const SCOPES: Readonly<Record<number, Scope>> = {
  [v1.Scope.RESOURCE]: 'resource',
  [v1.Scope.THREAD]: 'thread',
};
const MODES: Readonly<Record<number, Mode>> = {
  [v1.Mode.DENSE]: 'dense',
  [v1.Mode.LEXICAL]: 'lexical',
  [v1.Mode.HYBRID]: 'hybrid',
};
const WHY_EMPTY: Readonly<Record<number, WhyEmpty>> = {
  [v1.WhyEmpty.NO_QUERY]: 'no_query',
  [v1.WhyEmpty.NO_MESSAGES]: 'no_messages',
  [v1.WhyEmpty.FILTERED]: 'filtered',
  [v1.WhyEmpty.BELOW_THRESHOLD]: 'below_threshold',
  [v1.WhyEmpty.NO_WORDS]: 'no_words',
};
const EXCLUDED_REASONS: Readonly<Record<number, ExcludedReason>> = {
  [v1.ExcludedReason.TOP_K]: 'top_k',
  [v1.ExcludedReason.BELOW_THRESHOLD]: 'below_threshold',
  [v1.ExcludedReason.NO_VECTOR]: 'no_vector',
  [v1.ExcludedReason.NEAR_DUPLICATE]: 'near_duplicate',
  [v1.ExcludedReason.DIVERSITY]: 'diversity',
  [v1.ExcludedReason.TOKENS]: 'tokens',
  [v1.ExcludedReason.ANSWER_SIZE]: 'answer_size',
  [v1.ExcludedReason.CONDITIONS]: 'conditions',
  [v1.ExcludedReason.CHANGED]: 'changed',
};
const STATUSES: Readonly<Record<number, Status>> = {
  [v1.Status.INDEXED]: 'indexed',
  [v1.Status.REPLACED]: 'replaced',
  [v1.Status.UNCHANGED]: 'unchanged',
  [v1.Status.PENDING]: 'pending',
  [v1.Status.NOT_EMBEDDED]: 'not_embedded',
  [v1.Status.REJECTED]: 'rejected',
};

/** The answer of a recall. */
export function recall(wire: v1.RecallResponse): RecallResult {
  const messages: RecalledMessage[] = [];
  for (const one of wire.messages) {
    const found = recalledMessage(one);
    if (found !== undefined) messages.push(found);
  }
  return new RecallResult({
    messages,
    contextText: wire.contextText,
    info: wire.info === undefined ? undefined : recallInfo(wire.info),
    excluded: wire.excluded.map(excludedCandidate),
  });
}

function recalledMessage(wire: v1.RecalledMessage): RecalledMessage | undefined {
  if (wire.message === undefined) return undefined;
  return {
    message: messageOfWire(wire.message),
    hit: wire.hit,
    score: wire.score,
    rank: wire.rank,
    relevance: wire.relevance,
    lexicalOnly: wire.lexicalOnly,
    textCut: wire.textCut,
    groupState: GROUP_STATES[wire.groupState] ?? 'none',
    explain: explain(wire.explain),
  };
}

function explain(wire: v1.Explain | undefined): Explain | undefined {
  if (wire === undefined) return undefined;
  return {
    cosine: wire.cosine,
    denseRank: wire.denseRank,
    chunk: wire.chunk,
    chunks: wire.chunks,
    bm25: wire.bm25,
    bm25InContext: wire.bm25InContext,
    lexicalRank: wire.lexicalRank,
    densePart: wire.densePart,
    lexicalPart: wire.lexicalPart,
    neighbourPart: wire.neighbourPart,
    authorPart: wire.authorPart,
    recencyPart: wire.recencyPart,
    diversityPart: wire.diversityPart,
  };
}

function excludedCandidate(wire: v1.ExcludedCandidate): ExcludedCandidate {
  return {
    messageId: wire.messageId,
    threadId: wire.threadId,
    reason: EXCLUDED_REASONS[wire.reason] ?? 'unspecified',
    rank: wire.rank,
    relevance: wire.relevance,
    explain: explain(wire.explain),
    nearDuplicateOf: wire.nearDuplicateOf,
  };
}

function recallInfo(wire: v1.RecallInfo): RecallInfo {
  return {
    scopeUsed: SCOPES[wire.scopeUsed] ?? 'unspecified',
    modeUsed: MODES[wire.modeUsed] ?? 'unspecified',
    bestScore: wire.bestScore,
    whyEmpty: WHY_EMPTY[wire.whyEmpty] ?? 'unspecified',
    queryTruncated: wire.queryTruncated,
    queryTokens: wire.queryTokens,
    cacheHit: wire.cacheHit,
    timings: {
      totalUs: wire.timings?.totalUs ?? 0,
      queueUs: wire.timings?.queueUs ?? 0,
      embedUs: wire.timings?.embedUs ?? 0,
      searchUs: wire.timings?.searchUs ?? 0,
      fetchUs: wire.timings?.fetchUs ?? 0,
      renderUs: wire.timings?.renderUs ?? 0,
      lexicalUs: wire.timings?.lexicalUs ?? 0,
    },
    candidates: Number(wire.candidates),
    searchable: Number(wire.searchable),
    pending: Number(wire.pending),
    exact: wire.exact,
    unknownFilterKeys: wire.unknownFilterKeys,
    indexIdentity: wire.indexIdentity,
    absentGroupIds: wire.absentGroupIds,
    messagesDropped: wire.messagesDropped,
    answerCacheHit: wire.answerCacheHit,
    tokens: wire.tokens,
    contextTokens: wire.contextTokens,
    messagesDroppedForTokens: wire.messagesDroppedForTokens,
    contextDidNotFit: wire.contextDidNotFit,
  };
}

/** The answer of an index call. */
export function index(wire: v1.IndexResponse): IndexResult {
  return new IndexResult({
    outcomes: wire.results.map((result) => ({
      messageId: result.messageId,
      status: STATUSES[result.status] ?? 'unspecified',
      error: result.error === undefined ? undefined : errorOfDetail(result.error),
    })),
    readToken: wire.readToken,
    info: {
      embeddingsComputed: wire.info?.embeddingsComputed ?? 0,
      embeddingsCached: wire.info?.embeddingsCached ?? 0,
      durableUs: wire.info?.durableUs ?? 0,
      totalUs: wire.info?.totalUs ?? 0,
    },
    error: wire.error === undefined ? undefined : errorOfDetail(wire.error),
  });
}

/** The answer of a forgetting call. */
export function forget(wire: v1.ForgetResponse): ForgetResult {
  return {
    messages: Number(wire.messages),
    vectors: Number(wire.vectors),
    threads: Number(wire.threads),
    cacheEntries: Number(wire.cacheEntries),
    purged: wire.purged,
    purgeDueTime: wire.purgeDueTime === undefined ? undefined : dateOf(wire.purgeDueTime),
    snapshotsHolding: wire.snapshotsHolding,
  };
}

/** One thread. */
export function thread(wire: v1.Thread): ThreadInfo {
  return {
    threadId: wire.threadId,
    messages: Number(wire.messages),
    firstCreateTime: dateOf(wire.firstCreateTime),
    lastCreateTime: dateOf(wire.lastCreateTime),
  };
}

/** Vectors of texts. */
export function embed(wire: v1.EmbedResponse): EmbedResult {
  return {
    embeddings: wire.embeddings.map(({ values, tokens, truncated }) => ({
      values,
      tokens,
      truncated,
    })),
    dimensions: wire.dimensions,
    indexIdentity: wire.indexIdentity,
  };
}

/** One message of an export; nothing where the answer holds none. */
export function exported(wire: v1.ExportResponse): ExportedMessage | undefined {
  if (wire.message === undefined) return undefined;
  return {
    message: messageOfWire(wire.message),
    vectors: wire.vectors === undefined ? undefined : vectorsOfWire(wire.vectors),
  };
}
