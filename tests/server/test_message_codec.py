"""Messages as the record keeps them, and answers spliced from them, against protobuf's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.recalling import (
    GroupState,
    RecallAnswer,
    RecalledMessage,
    RecallInfo,
    Scope,
)
from semanticrecall_core.types.values import TIME_NS_MAX, TIME_NS_MIN, MessageDraft, Role, VectorHit
from semanticrecall_server.answers import fill_message, recalled_bytes
from semanticrecall_server.framing import varint
from semanticrecall_server.message_codec import ProtobufMessages
from support.stored_messages import stored

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
TIMES = st.integers(TIME_NS_MIN, TIME_NS_MAX)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
METADATA = st.dictionaries(TEXTS, JSON_VALUES, max_size=4)


@st.composite
def drafts(draw: st.DrawFn) -> MessageDraft:
    metadata = draw(METADATA)
    return MessageDraft(
        id=draw(TEXTS),
        thread_id=draw(TEXTS),
        role=draw(st.sampled_from(Role)),
        author=draw(TEXTS),
        text=draw(TEXTS) * draw(st.sampled_from((1, 1, 1000))),
        metadata_json=json.dumps(metadata) if metadata else "",
        payload=draw(st.binary(max_size=30)) * draw(st.sampled_from((1, 1, 2000))),
        payload_type=draw(TEXTS),
        group_id=draw(TEXTS),
    )


def plain(resource_id: str, draft: MessageDraft, time_ns: int) -> types_pb2.Message:
    """The message built field by field, the metadata by protobuf's own reader."""
    message = types_pb2.Message(
        id=draft.id,
        thread_id=draft.thread_id,
        resource_id=resource_id,
        role=int(draft.role),  # type: ignore[arg-type]
        author=draft.author,
        text=draft.text,
        payload=draft.payload,
        payload_type=draft.payload_type,
        group_id=draft.group_id,
    )
    message.create_time.FromNanoseconds(time_ns)
    message.create_time.SetInParent()
    if draft.metadata_json:
        json_format.Parse(draft.metadata_json, message.metadata)
    return message


@given(draft=drafts(), resource_id=TEXTS, time_ns=TIMES)
def test_a_message_is_kept_whole(draft: MessageDraft, resource_id: str, time_ns: int) -> None:
    codec = ProtobufMessages()
    encoded = codec.encode(resource_id, draft, time_ns)
    assert types_pb2.Message.FromString(encoded) == plain(resource_id, draft, time_ns)
    body = codec.decode(encoded)
    assert (body.author, body.text, body.payload, body.payload_type) == (
        draft.author,
        draft.text,
        draft.payload,
        draft.payload_type,
    )


def test_equal_messages_give_equal_bytes() -> None:
    codec = ProtobufMessages()
    names = [f"key{n}" for n in range(50)]
    one, other = (
        MessageDraft("a", "t", Role.USER, metadata_json=json.dumps(dict.fromkeys(order, 1)))
        for order in (names, names[::-1])
    )
    assert codec.encode("u", one, 5) == codec.encode("u", other, 5)


def test_what_is_no_message_is_told_as_damage() -> None:
    with pytest.raises(CorruptDataError):
        ProtobufMessages().decode(b"\x0a\xff")


HITS = st.builds(
    VectorHit,
    seq=st.just(1),
    score=st.floats(-1, 1, width=32),
    chunk=st.integers(0, 2**32 - 1),
    chunks=st.integers(0, 2**32 - 1),
    revision=st.just(1),
)
RECALLED = st.tuples(
    drafts(), TIMES, st.integers(0, 1000), st.none() | HITS, st.sampled_from(GroupState)
)


@given(found=st.lists(RECALLED, max_size=4), explain=st.booleans())
def test_an_answer_is_what_protobuf_makes_of_it(found: list[Any], explain: bool) -> None:
    messages = tuple(
        RecalledMessage(stored(draft, time_ns), rank, hit, state)
        for draft, time_ns, rank, hit, state in found
    )
    expected = recall_pb2.RecallResponse(context_text="c")
    for draft, time_ns, rank, hit, state in found:
        target = expected.messages.add(message=plain("u", draft, time_ns), group_state=int(state))
        if hit is not None:
            target.hit, target.score, target.rank = True, hit.score, rank
            if explain:
                target.explain.cosine, target.explain.dense_rank = hit.score, rank
                target.explain.chunk, target.explain.chunks = hit.chunk, hit.chunks
    rest = recall_pb2.RecallResponse(context_text="c").SerializeToString()
    answer = RecallAnswer(messages, "c", RecallInfo(Scope.RESOURCE))
    spliced = recalled_bytes(answer, explain) + rest
    assert recall_pb2.RecallResponse.FromString(spliced) == expected


@given(draft=drafts(), time_ns=TIMES)
def test_a_page_of_history_holds_the_same_message(draft: MessageDraft, time_ns: int) -> None:
    page = recall_pb2.ListMessagesResponse()
    fill_message(page.messages.add(), stored(draft, time_ns))
    assert list(page.messages) == [plain("u", draft, time_ns)]


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 300, 16_383, 16_384, 2_097_151, 2_097_152, 2**32 - 1, 2**63]
)
def test_varints_are_protobufs(value: int) -> None:
    """A field of that number, written by protobuf, is its tag and the varint."""
    written = recall_pb2.ListThreadsResponse(threads=[{"messages": value}]).threads[0]
    assert written.SerializeToString() == (b"\x10" + varint(value) if value else b"")
