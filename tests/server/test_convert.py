"""What requests become, what answers are made of, and page tokens; of Recall see beside."""

from __future__ import annotations

import itertools
import time
import unicodedata
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.values import (
    ForgetTarget,
    MessageDraft,
    Role,
    StoredMessage,
    ThreadSummary,
    Wait,
)
from semanticrecall_server.checks import Violations
from semanticrecall_server.metadata_json import fill_struct, json_of, plain_object
from semanticrecall_server.page_tokens import PageTokens
from support.fake_engine import MESSAGE, FakeEngine
from support.running_server import InProcessServer, error_detail
from support.stored_messages import changed

NS = 1_000_000_000


# ---- Index ----


def test_every_field_of_a_message_arrives(server: InProcessServer, engine: FakeEngine) -> None:
    request = recall_pb2.IndexRequest(
        resource_id="alice", thread_id="t", wait=types_pb2.WAIT_DURABLE
    )
    request.metadata.update({"project": "A", "shared": 1})
    message = request.messages.add(
        id="m",
        thread_id="t",
        resource_id="alice",
        role=types_pb2.ROLE_TOOL,
        author="Bob",
        text="x",
        create_time=Timestamp(seconds=-9_214_560_000, nanos=5),
        payload=b"\x00",
        payload_type="p",
        group_id="g",
    )
    message.metadata.update({"project": "B", "n": 3, "half": 0.5, "list": [None, True]})
    server.recall.Index(request, timeout=20)
    assert engine.waits == [Wait.DURABLE]
    assert engine.drafts == [
        MessageDraft(
            id="m",
            thread_id="t",
            role=Role.TOOL,
            author="Bob",
            text="x",
            create_time_ns=-9_214_560_000 * NS + 5,
            metadata_json='{"half":0.5,"list":[null,true],"n":3,"project":"B","shared":1}',
            payload=b"\x00",
            payload_type="p",
            group_id="g",
            embeddable=False,
        )
    ]


@pytest.mark.parametrize(
    ("role", "text", "embeddable"),
    [
        (types_pb2.ROLE_USER, "hi", True),
        (types_pb2.ROLE_ASSISTANT, "hi", True),
        (types_pb2.ROLE_SYSTEM, "hi", False),
        (types_pb2.ROLE_TOOL, "hi", False),
        (types_pb2.ROLE_USER, "", False),
        (types_pb2.ROLE_USER, "   ", False),
        (types_pb2.ROLE_USER, "\n\t", False),
        (types_pb2.ROLE_USER, "\u200b", False),
        (types_pb2.ROLE_USER, "\x00", False),
        (types_pb2.ROLE_USER, "🙂", True),
    ],
)
def test_what_is_embedded(
    server: InProcessServer, engine: FakeEngine, role: Any, text: str, embeddable: bool
) -> None:
    request = recall_pb2.IndexRequest(
        resource_id="alice", thread_id="t", messages=[{"id": "m", "role": role, "text": text}]
    )
    server.recall.Index(request, timeout=20)
    assert [draft.embeddable for draft in engine.drafts] == [embeddable]


def test_an_index_of_bad_messages_only_stores_nothing(
    server: InProcessServer, engine: FakeEngine
) -> None:
    request = recall_pb2.IndexRequest(resource_id="alice", thread_id="t", messages=[{"role": 1}])
    answer = server.recall.Index(request, timeout=20)
    assert [result.status for result in answer.results] == [types_pb2.STATUS_REJECTED]
    assert engine.drafts == []


def test_shared_metadata_counts_towards_a_messages_limit(
    server: InProcessServer, engine: FakeEngine
) -> None:
    request = recall_pb2.IndexRequest(resource_id="alice", thread_id="t")
    request.metadata.update({"a": "x" * 40_000})
    request.messages.add(id="small", role=1)
    request.messages.add(id="large", role=1).metadata.update({"b": "x" * 40_000})
    results = server.recall.Index(request, timeout=20).results
    assert [result.status for result in results] == [
        types_pb2.STATUS_INDEXED,
        types_pb2.STATUS_REJECTED,
    ]
    assert results[1].error.field_violations[0].field == "messages[1].metadata"


# ---- the other calls ----


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"message_ids": {"ids": ["a", "b"]}}, ForgetTarget(message_ids=("a", "b"))),
        ({"thread_id": "t"}, ForgetTarget(thread_id="t")),
        ({"everything": True}, ForgetTarget(everything=True)),
        (
            {"create_time_before": Timestamp(seconds=1, nanos=2)},
            ForgetTarget(create_time_before_ns=NS + 2),
        ),
    ],
)
def test_forget_targets(
    server: InProcessServer, engine: FakeEngine, target: dict[str, Any], expected: ForgetTarget
) -> None:
    answer = server.recall.Forget(
        recall_pb2.ForgetRequest(resource_id="alice", **target), timeout=20
    )
    assert engine.targets == [expected]
    counts = (answer.messages, answer.vectors, answer.threads, answer.cache_entries)
    assert counts == (1, 2, 3, 4)


def test_messages_by_id_come_in_the_order_asked_with_repeats(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.history = history(3)
    request = recall_pb2.GetMessagesRequest(resource_id="alice", message_ids=["m2", "m0", "m2"])
    found = server.recall.GetMessages(request, timeout=20).messages
    assert [message.id for message in found] == ["m2", "m0", "m2"]


def test_embed_and_transfer_and_stats(server: InProcessServer) -> None:
    embedded = server.recall.Embed(
        recall_pb2.EmbedRequest(texts=["a", "b"], role=recall_pb2.EMBED_ROLE_QUERY), timeout=20
    )
    assert [list(e.values) for e in embedded.embeddings] == [[0.5] * 4] * 2
    assert [(e.tokens, e.truncated) for e in embedded.embeddings] == [(6, True)] * 2
    assert (embedded.dimensions, embedded.index_identity) == (4, "fake@1/4")
    moved = server.recall.TransferThread(
        recall_pb2.TransferThreadRequest(resource_id="alice", thread_id="t", to_resource_id="bob"),
        timeout=20,
    )
    assert moved.messages == 11
    whole = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
    assert (whole.messages, whole.vectors, whole.pending, whole.threads) == (1, 2, 3, 4)
    assert (whole.resources, whole.disk_bytes, whole.partitions_loaded) == (5, 6, 9)
    assert (whole.lexical_partitions_loaded, whole.lexical_bytes) == (10, 11)
    assert (whole.cache.entries, whole.cache.evictions) == (1, 5)
    found = whole.snapshots
    counts = (found.files, found.bytes, found.partitions, found.rows, found.damaged)
    assert (*counts, found.failures) == (11, 12, 13, 14, 15, 16)
    assert whole.resident_bytes > 1_000_000
    assert (whole.device, whole.server_version) == ("cpu", "0.1.0")
    one = server.admin.GetStats(admin_pb2.GetStatsRequest(resource_id="alice"), timeout=20)
    assert (one.messages, one.resources, one.resident_bytes) == (1, 0, 0)
    assert not one.HasField("cache")
    assert not one.HasField("snapshots")
    images = admin_pb2.CreateSnapshotRequest(partitions_only=True)
    made = server.admin.CreateSnapshot(images, timeout=20).snapshot
    assert (made.name, made.bytes, made.vectors) == ("", 12, 14)
    assert abs(made.create_time.ToNanoseconds() - time.time_ns()) < 60 * 10**9


# ---- pages ----


def history(count: int, *, payload: bytes = b"") -> list[StoredMessage]:
    return [
        changed(MESSAGE, seq=i + 1, id=f"m{i}", create_time_ns=i // 2, payload=payload)
        for i in range(count)
    ]


def pages(server: InProcessServer, **fields: Any) -> list[list[str]]:
    """Ids page by page until there is no next page."""
    found: list[list[str]] = []
    token = ""
    while True:
        request = recall_pb2.ListMessagesRequest(resource_id="alice", page_token=token, **fields)
        page = server.recall.ListMessages(request, timeout=20)
        found.append([message.id for message in page.messages])
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 8, 11])
def test_pages_hold_every_message_once(
    server: InProcessServer, engine: FakeEngine, count: int, newest_first: bool
) -> None:
    engine.history = history(count)
    found = pages(server, page_size=4, newest_first=newest_first)
    ids = [f"m{i}" for i in range(count)]
    expected = ids[::-1] if newest_first else ids
    assert list(itertools.chain(*found)) == expected
    assert [len(page) for page in found[:-1]] == [4] * (len(found) - 1)
    assert len(found) == max(1, -(-count // 4))


def test_large_pages_are_read_in_steps(server: InProcessServer, engine: FakeEngine) -> None:
    engine.history = history(400)
    assert pages(server, page_size=300) == [
        [f"m{i}" for i in range(300)],
        [f"m{i}" for i in range(300, 400)],
    ]
    assert max(query.limit for query in engine.lists) == 128


def test_a_page_is_cut_where_it_grows_too_large(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.history = history(9, payload=b"x" * 1_000_000)
    assert [len(page) for page in pages(server, page_size=9)] == [3, 3, 3]
    request = recall_pb2.GetMessagesRequest(
        resource_id="alice", message_ids=[f"m{i}" for i in range(4)]
    )
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.GetMessages(request, timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    detail = error_detail(refused.value)
    assert (detail.reason, detail.retryable) == ("ANSWER_TOO_LARGE", False)


def test_threads_are_paged(server: InProcessServer, engine: FakeEngine) -> None:
    engine.threads = [ThreadSummary(f"t{i}", i, 10 - i, 20 - i, 9 - i) for i in range(5)]
    found: list[str] = []
    token = ""
    for _ in range(3):
        page = server.recall.ListThreads(
            recall_pb2.ListThreadsRequest(resource_id="alice", page_size=2, page_token=token),
            timeout=20,
        )
        found += [thread.thread_id for thread in page.threads]
        token = page.next_page_token
    assert found == ["t0", "t1", "t2", "t3", "t4"]
    assert token == ""


def test_a_token_of_another_list_is_refused_without_saying_more(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.history = history(5)
    first = recall_pb2.ListMessagesRequest(resource_id="alice", page_size=2)
    token = server.recall.ListMessages(first, timeout=20).next_page_token
    others = [
        recall_pb2.ListMessagesRequest(resource_id="bob", page_token=token),
        recall_pb2.ListMessagesRequest(resource_id="alice", thread_id="t", page_token=token),
        recall_pb2.ListMessagesRequest(resource_id="alice", newest_first=True, page_token=token),
        recall_pb2.ListMessagesRequest(resource_id="alice", roles=[1], page_token=token),
        recall_pb2.ListMessagesRequest(
            resource_id="alice", create_time_from=Timestamp(seconds=1), page_token=token
        ),
    ]
    texts = set()
    for request in others:
        with pytest.raises(grpc.RpcError) as refused:
            server.recall.ListMessages(request, timeout=20)
        assert error_detail(refused.value).field_violations[0].field == "page_token"
        texts.add(refused.value.details())
    assert len(texts) == 1
    with pytest.raises(grpc.RpcError):
        server.recall.ListThreads(
            recall_pb2.ListThreadsRequest(resource_id="alice", page_token=token), timeout=20
        )


@given(st.lists(st.text(), min_size=1, max_size=4), st.integers(0, 255))
def test_page_tokens_hold_for_one_list_of_one_store(parts: list[str], flipped: int) -> None:
    query = tuple(parts)
    token = PageTokens("store-1").make(query, (-(2**63), 2**63 - 1))
    assert PageTokens("store-1").read(query, token) == (-(2**63), 2**63 - 1)
    for tokens, asked in (
        (PageTokens("store-2"), query),
        (PageTokens("store-1"), (*query, "")),
        (PageTokens("store-1"), ("", *query)),
    ):
        with pytest.raises(InvalidArgumentError):
            tokens.read(asked, token)
    spot = flipped % len(token)
    changed = token[:spot] + ("A" if token[spot] != "A" else "B") + token[spot + 1 :]
    try:
        assert PageTokens("store-1").read(query, changed) == (-(2**63), 2**63 - 1)
    except InvalidArgumentError:
        return
    # The last character's low bits are no part of the bytes it stands for.
    assert spot == len(token) - 1


# ---- metadata ----

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=8)
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=5))
def test_metadata_comes_back_as_it_went(value: dict[str, Any]) -> None:
    sent = struct_pb2.Struct()
    sent.update(value)
    text = json_of(plain_object(sent, "metadata", 100), "metadata", 1_000_000)
    returned = struct_pb2.Struct()
    if text:
        fill_struct(returned, text)
    assert returned == sent


@pytest.mark.parametrize("bytes_max", [12, 11])
def test_every_control_character_of_unicode_is_found_in_a_name(bytes_max: int) -> None:
    """And no other one is taken for it, in names that are surely short enough and in others."""
    for code in (*range(0xD800), *range(0xE000, 0x10000, 7), 0x1F600, 0x10FFFF):
        v = Violations()
        v.name("f", f"a{chr(code)}b", bytes_max)
        is_control = unicodedata.category(chr(code)) == "Cc" or code in (0x2028, 0x2029)
        assert v.found == is_control, hex(code)
