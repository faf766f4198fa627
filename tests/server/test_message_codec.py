"""Messages as the record keeps them, and answers spliced from them, against protobuf's own."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.recalling import (
    Excluded,
    ExcludedReason,
    GroupState,
    Hit,
    Parts,
    RecallAnswer,
    RecalledMessage,
    RecallInfo,
    Scope,
)
from semanticrecall_core.types.values import TIME_NS_MAX, TIME_NS_MIN, MessageDraft, Role
from semanticrecall_server.answers import excluded_bytes, fill_message, recalled_bytes
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


NUMBERS = st.floats(width=32, allow_nan=False)
COUNTS = st.integers(0, 2**32 - 1)
PARTS = {
    "dense": NUMBERS,
    "lexical": NUMBERS,
    "neighbour": NUMBERS,
    "author": NUMBERS,
    "recency": NUMBERS,
    "diversity": NUMBERS,
}
OWN = ("chunk", "chunks", "dense_rank", "lexical_rank", "bm25", "bm25_in_context")
HITS = st.builds(
    Hit,
    seq=st.just(1),
    revision=st.just(1),
    relevance=NUMBERS,
    cosine=st.none() | st.floats(-1, 1, width=32),
    chunk=COUNTS,
    chunks=COUNTS,
    dense_rank=COUNTS,
    lexical_rank=COUNTS,
    bm25=NUMBERS,
    bm25_in_context=NUMBERS,
    parts=st.builds(Parts, **PARTS),
)
RECALLED = st.builds(
    RecalledMessage,
    message=st.builds(stored, drafts(), TIMES),
    rank=st.integers(0, 1000),
    found=st.none() | HITS,
    group_state=st.sampled_from(GroupState),
    text_cut=st.booleans(),
)


def explained(hit: Hit) -> recall_pb2.Explain:
    """The explanation built field by field."""
    return recall_pb2.Explain(
        cosine=hit.cosine,
        **{name: getattr(hit, name) for name in OWN},
        **{f"{name}_part": getattr(hit.parts, name) for name in PARTS},
    )


@given(found=st.lists(RECALLED, max_size=4), explain=st.booleans())
def test_an_answer_is_what_protobuf_makes_of_it(
    found: list[RecalledMessage], explain: bool
) -> None:
    expected = recall_pb2.RecallResponse(context_text="c")
    for recalled in found:
        target = expected.messages.add(
            group_state=int(recalled.group_state), text_cut=recalled.text_cut
        )
        target.message.MergeFromString(recalled.message.encoded)
        hit = recalled.found
        if hit is not None:
            target.hit, target.rank, target.relevance = True, recalled.rank, hit.relevance
            target.lexical_only = hit.cosine is None
            if hit.cosine is not None:
                target.score = hit.cosine
            if explain:
                target.explain.CopyFrom(explained(hit))
    rest = recall_pb2.RecallResponse(context_text="c").SerializeToString()
    answer = RecallAnswer(tuple(found), "c", RecallInfo(Scope.RESOURCE))
    spliced = recalled_bytes(answer, explain) + rest
    assert recall_pb2.RecallResponse.FromString(spliced) == expected


@given(found=st.lists(RECALLED, min_size=1, max_size=4))
def test_what_is_left_out_is_what_protobuf_makes_of_it(found: list[RecalledMessage]) -> None:
    excluded: list[Excluded] = []
    expected = recall_pb2.RecallResponse()
    for rank, recalled in enumerate(found, 2):
        hit = recalled.found
        if hit is None:
            continue
        reason = list(ExcludedReason)[rank % len(ExcludedReason)]
        excluded.append(Excluded(hit, reason, rank, message=recalled.message))
        expected.excluded.add(
            message_id=recalled.message.id,
            thread_id=recalled.message.thread_id,
            reason=int(reason),
            rank=rank,
            relevance=hit.relevance,
            explain=explained(hit),
        )
    answer = RecallAnswer((), "", RecallInfo(Scope.RESOURCE), tuple(excluded))
    assert recall_pb2.RecallResponse.FromString(excluded_bytes(answer)) == expected


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
