"""What a Recall becomes, and what its answer is made of."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.filters import Comparison, Condition
from semanticrecall_core.types.recalling import ContextFormat, Excluded, ExcludedReason, Mode, Scope
from semanticrecall_core.types.values import (
    Role,
)
from semanticrecall_server.metadata_json import plain_object
from support.fake_engine import BY_WORDS, HIT, MESSAGE, FakeEngine
from support.running_server import InProcessServer
from support.stored_messages import changed

NS = 1_000_000_000


def test_a_bare_recall_gets_the_defaults_of_the_contract(
    server: InProcessServer, engine: FakeEngine
) -> None:
    server.recall.Recall(recall_pb2.RecallRequest(resource_id="alice", query="q"), timeout=20)
    query = engine.queries[0]
    assert (query.resource_id, query.text, query.thread_id) == ("alice", "q", "")
    assert (query.scope, query.top_k, query.before, query.after) == (Scope.RESOURCE, 4, 1, 1)
    assert (query.threshold, query.filter, query.embedding, query.mode) == (None,) * 4
    assert (query.roles, query.excluded_ids) == (frozenset(), ())
    assert (query.time_from_ns, query.time_to_ns) == (None, None)
    assert (query.context_format, query.time_zone) == (ContextFormat.DEFAULT, "UTC")
    assert (query.context_other_threads_only, query.read_token) == (False, "")
    assert (query.alternative_texts, query.tokens_max, query.explain) == ((), 0, False)
    assert (query.recency_weight, query.recency_half_life_s) == (0.0, 7 * 86_400.0)
    assert (query.diversity, query.near_duplicate_cosine) == (0.0, None)


def test_every_field_of_a_recall_arrives(server: InProcessServer, engine: FakeEngine) -> None:
    request = recall_pb2.RecallRequest(
        resource_id="alice",
        thread_id="t",
        scope=types_pb2.SCOPE_THREAD,
        query_embedding=[3.0, 0.0, 4.0, 0.0],
        top_k=7,
        message_range={"before": 0, "after": 50},
        threshold=-1.0,
        roles=[types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT, types_pb2.ROLE_USER],
        create_time_from=Timestamp(seconds=-1, nanos=999_999_999),
        create_time_to=Timestamp(seconds=2, nanos=1),
        exclude_message_ids=["a", "b"],
        ranking={
            "mode": types_pb2.MODE_DENSE,
            "recency_weight": 0.25,
            "recency_half_life": {"seconds": 3, "nanos": 500_000_000},
            "diversity": 1.0,
            "near_duplicate_cosine": 0.5,
        },
        alternative_queries=["other words", "more"],
        max_tokens=1_000_000,
        explain=True,
        context_format=types_pb2.CONTEXT_MASTRA,
        context_other_threads_only=True,
        time_zone="Asia/Tokyo",
        read_token="1.a.b.2",
    )
    request.filter.update({"age": {"$gte": 3}})
    server.recall.Recall(request, timeout=20)
    query = engine.queries[0]
    assert (query.scope, query.thread_id, query.top_k) == (Scope.THREAD, "t", 7)
    assert (query.before, query.after, query.threshold) == (0, 50, -1.0)
    assert query.embedding is not None
    assert query.embedding.dtype == np.float32
    assert query.embedding.tolist() == [3.0, 0.0, 4.0, 0.0]
    assert query.roles == {Role.USER, Role.ASSISTANT}
    assert (query.time_from_ns, query.time_to_ns) == (-1, 2 * NS + 1)
    assert query.excluded_ids == ("a", "b")
    assert query.filter == Condition(("age",), Comparison.GTE, (3.0,))
    assert (query.mode, query.context_format) == (Mode.DENSE, ContextFormat.MASTRA)
    assert query.context_other_threads_only
    assert (query.recency_weight, query.recency_half_life_s) == (0.25, 3.5)
    assert (query.diversity, query.near_duplicate_cosine) == (1.0, 0.5)
    assert query.alternative_texts == ("other words", "more")
    assert (query.tokens_max, query.explain) == (1_000_000, True)
    assert (query.time_zone, engine.read_tokens) == ("Asia/Tokyo", ["1.a.b.2"])


@pytest.mark.parametrize("mode", list(Mode))
def test_a_mode_arrives(server: InProcessServer, engine: FakeEngine, mode: Mode) -> None:
    request = recall_pb2.RecallRequest(resource_id="alice", query="q", ranking={"mode": int(mode)})
    server.recall.Recall(request, timeout=20)
    assert engine.queries[0].mode is mode


def test_the_longest_half_life_and_the_most_phrasings_are_taken(
    server: InProcessServer, engine: FakeEngine
) -> None:
    request = recall_pb2.RecallRequest(
        resource_id="alice",
        query="q",
        alternative_queries=[f"q{number}" for number in range(16)],
        ranking={"recency_half_life": {"seconds": 36_500 * 86_400}, "near_duplicate_cosine": 1.0},
    )
    server.recall.Recall(request, timeout=20)
    query = engine.queries[0]
    assert query.recency_half_life_s == 36_500 * 86_400
    assert len(query.alternative_texts) == 16
    assert query.near_duplicate_cosine == 1.0


def test_phrasings_that_are_blank_or_said_before_are_left_out(
    server: InProcessServer, engine: FakeEngine
) -> None:
    phrasings = ["q", "", " \n", "b", "a", "b", "\u200b"]
    request = recall_pb2.RecallRequest(
        resource_id="alice", query="q", alternative_queries=phrasings
    )
    server.recall.Recall(request, timeout=20)
    assert engine.queries[0].alternative_texts == ("b", "a")


def test_an_empty_range_is_taken_as_it_is(server: InProcessServer, engine: FakeEngine) -> None:
    request = recall_pb2.RecallRequest(resource_id="alice", query="q", message_range={})
    server.recall.Recall(request, timeout=20)
    assert (engine.queries[0].before, engine.queries[0].after) == (0, 0)


def test_a_recall_answer_carries_everything(server: InProcessServer) -> None:
    request = recall_pb2.RecallRequest(
        request_id="r1", resource_id="alice", query="q", explain=True
    )
    answer = server.recall.Recall(request, timeout=20)
    hit, neighbour, by_words = answer.messages
    message = hit.message
    assert (message.id, message.thread_id, message.resource_id) == ("m1", "t1", "alice")
    assert (message.role, message.author, message.text) == (1, "Alice", "Rex eats turkey")
    assert message.create_time.ToNanoseconds() == MESSAGE.create_time_ns
    assert (message.payload, message.payload_type) == (b"\x00\xff", "test/bytes")
    assert message.group_id == "g1"
    assert plain_object(message.metadata, "metadata", 16) == {
        "age": 3,
        "tags": ["a", None, True, {"x": 0.5}],
        "project": "A",
    }
    assert (hit.hit, hit.score, hit.rank) == (True, 0.75, 1)
    assert hit.group_state == types_pb2.GROUP_STATE_WHOLE
    assert (hit.relevance, hit.lexical_only, hit.text_cut) == (2.5, False, False)
    assert hit.explain == recall_pb2.Explain(
        cosine=0.75,
        dense_rank=3,
        chunk=2,
        chunks=5,
        bm25=6.5,
        bm25_in_context=7.25,
        lexical_rank=4,
        dense_part=0.5,
        lexical_part=0.25,
        neighbour_part=0.125,
        author_part=0.625,
        recency_part=0.75,
        diversity_part=-0.75,
    )
    assert (neighbour.hit, neighbour.rank) == (False, 0)
    assert not neighbour.HasField("score")
    assert not neighbour.HasField("relevance")
    assert not neighbour.HasField("explain")
    assert (by_words.hit, by_words.rank, by_words.relevance) == (True, 2, -0.5)
    assert (by_words.lexical_only, by_words.text_cut) == (True, True)
    assert not by_words.HasField("score")
    assert by_words.explain == recall_pb2.Explain(lexical_rank=1, bm25=1.5)
    assert not by_words.explain.HasField("cosine")
    info = answer.info
    assert (answer.request_id, answer.context_text) == ("r1", "context")
    assert (info.best_score, info.candidates, info.searchable, info.pending) == (0.75, 2, 3, 1)
    assert (info.scope_used, info.mode_used) == (1, types_pb2.MODE_HYBRID)
    assert not info.exact
    assert (info.tokens, info.context_tokens, info.messages_dropped_for_tokens) == (11, 12, 13)
    assert info.context_did_not_fit
    assert info.timings.lexical_us == 14
    assert info.index_identity == "fake@1/4"
    assert info.timings.total_us >= info.timings.queue_us > 0


def test_what_is_left_out_is_told_where_it_was_asked_for(
    server: InProcessServer, engine: FakeEngine
) -> None:
    other = changed(MESSAGE, seq=20, id="m20", thread_id="t9")
    engine.excluded = (
        Excluded(BY_WORDS, ExcludedReason.TOP_K, 3, message=other),
        Excluded(HIT, ExcludedReason.NEAR_DUPLICATE, 4, instead_of_it=7, message=other),
        Excluded(HIT, ExcludedReason.NEAR_DUPLICATE, 5, instead_of_it=20, message=MESSAGE),
        Excluded(HIT, ExcludedReason.CHANGED, 6, message=None),
    )
    request = recall_pb2.RecallRequest(resource_id="alice", query="q", explain=True)
    answer = server.recall.Recall(request, timeout=20)
    first, second, third = answer.excluded
    assert (first.message_id, first.thread_id, first.rank) == ("m20", "t9", 3)
    assert first.reason == recall_pb2.EXCLUDED_REASON_TOP_K
    assert (first.relevance, first.near_duplicate_of) == (-0.5, "")
    assert first.explain == recall_pb2.Explain(lexical_rank=1, bm25=1.5)
    assert second.reason == recall_pb2.EXCLUDED_REASON_NEAR_DUPLICATE
    assert (second.relevance, second.near_duplicate_of) == (2.5, "m1")
    assert second.explain == answer.messages[0].explain
    assert third.near_duplicate_of == "m20"
    assert len(answer.messages) == 3
    request.explain = False
    silent = server.recall.Recall(request, timeout=20)
    assert list(silent.excluded) == []
    assert [message.HasField("explain") for message in silent.messages] == [False] * 3


@pytest.mark.parametrize("reason", list(ExcludedReason))
def test_every_reason_has_its_name_on_the_wire(reason: ExcludedReason) -> None:
    assert recall_pb2.ExcludedReason.Name(int(reason)) == f"EXCLUDED_REASON_{reason.name}"
    assert len(ExcludedReason) + 1 == len(recall_pb2.ExcludedReason.values())
