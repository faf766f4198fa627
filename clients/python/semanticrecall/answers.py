"""What came back: pure functions from an answer to the value a method returns."""

from __future__ import annotations

from . import results, values
from .errors import error_from_detail
from .v1 import recall_pb2
from .wire import message, moment


def recall_result(wire: recall_pb2.RecallResponse) -> results.RecallResult:
    """The answer of a recall."""
    return results.RecallResult(
        messages=tuple(_recalled(m) for m in wire.messages),
        context_text=wire.context_text,
        info=_recall_info(wire.info),
        request_id=wire.request_id,
        excluded=tuple(_excluded(candidate) for candidate in wire.excluded),
    )


def _recalled(wire: recall_pb2.RecalledMessage) -> results.RecalledMessage:
    return results.RecalledMessage(
        message=message(wire.message),
        hit=wire.hit,
        score=wire.score if wire.HasField("score") else None,
        rank=wire.rank,
        group_state=values.GroupState(wire.group_state),
        explain=_explain(wire.explain) if wire.HasField("explain") else None,
        relevance=wire.relevance if wire.HasField("relevance") else None,
        lexical_only=wire.lexical_only,
        text_cut=wire.text_cut,
    )


def _excluded(wire: recall_pb2.ExcludedCandidate) -> results.ExcludedCandidate:
    return results.ExcludedCandidate(
        message_id=wire.message_id,
        thread_id=wire.thread_id,
        reason=values.ExcludedReason(wire.reason),
        rank=wire.rank,
        relevance=wire.relevance,
        explain=_explain(wire.explain),
        near_duplicate_of=wire.near_duplicate_of,
    )


def _explain(wire: recall_pb2.Explain) -> results.Explain:
    return results.Explain(
        cosine=wire.cosine if wire.HasField("cosine") else None,
        dense_rank=wire.dense_rank,
        chunk=wire.chunk,
        chunks=wire.chunks,
        bm25=wire.bm25,
        bm25_in_context=wire.bm25_in_context,
        lexical_rank=wire.lexical_rank,
        dense_part=wire.dense_part,
        lexical_part=wire.lexical_part,
        neighbour_part=wire.neighbour_part,
        author_part=wire.author_part,
        recency_part=wire.recency_part,
        diversity_part=wire.diversity_part,
    )


def _recall_info(wire: recall_pb2.RecallInfo) -> results.RecallInfo:
    spent = wire.timings
    return results.RecallInfo(
        scope_used=values.Scope(wire.scope_used),
        mode_used=values.Mode(wire.mode_used),
        best_score=wire.best_score if wire.HasField("best_score") else None,
        why_empty=values.WhyEmpty(wire.why_empty),
        query_truncated=wire.query_truncated,
        query_tokens=wire.query_tokens,
        cache_hit=wire.cache_hit,
        timings=results.RecallTimings(
            total_us=spent.total_us,
            queue_us=spent.queue_us,
            embed_us=spent.embed_us,
            search_us=spent.search_us,
            fetch_us=spent.fetch_us,
            render_us=spent.render_us,
            lexical_us=spent.lexical_us,
        ),
        candidates=wire.candidates,
        searchable=wire.searchable,
        pending=wire.pending,
        exact=wire.exact,
        unknown_filter_keys=tuple(wire.unknown_filter_keys),
        index_identity=wire.index_identity,
        absent_group_ids=tuple(wire.absent_group_ids),
        messages_dropped=wire.messages_dropped,
        answer_cache_hit=wire.answer_cache_hit,
        tokens=wire.tokens,
        context_tokens=wire.context_tokens,
        messages_dropped_for_tokens=wire.messages_dropped_for_tokens,
        context_did_not_fit=wire.context_did_not_fit,
    )


def index_result(wire: recall_pb2.IndexResponse) -> results.IndexResult:
    """The answer of an index call."""
    return results.IndexResult(
        outcomes=tuple(
            results.MessageOutcome(
                outcome.message_id,
                values.Status(outcome.status),
                error_from_detail(outcome.error) if outcome.HasField("error") else None,
            )
            for outcome in wire.results
        ),
        read_token=wire.read_token,
        embeddings_computed=wire.info.embeddings_computed,
        embeddings_cached=wire.info.embeddings_cached,
        durable_us=wire.info.durable_us,
        total_us=wire.info.total_us,
        error=error_from_detail(wire.error) if wire.HasField("error") else None,
    )


def forget_result(wire: recall_pb2.ForgetResponse) -> results.ForgetResult:
    """What was forgotten."""
    return results.ForgetResult(
        messages=wire.messages,
        vectors=wire.vectors,
        threads=wire.threads,
        cache_entries=wire.cache_entries,
        purged=wire.purged,
        purge_due_time=moment(wire.purge_due_time) if wire.HasField("purge_due_time") else None,
        snapshots_holding=tuple(wire.snapshots_holding),
    )


def thread_summary(wire: recall_pb2.Thread) -> results.ThreadSummary:
    """One thread."""
    return results.ThreadSummary(
        wire.thread_id,
        wire.messages,
        moment(wire.first_create_time),
        moment(wire.last_create_time),
    )


def embed_result(wire: recall_pb2.EmbedResponse) -> results.EmbedResult:
    """Vectors."""
    return results.EmbedResult(
        embeddings=tuple(
            results.Embedding(tuple(e.values), e.tokens, e.truncated) for e in wire.embeddings
        ),
        dimensions=wire.dimensions,
        index_identity=wire.index_identity,
    )
