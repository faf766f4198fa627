"""Requests of very many tiny fields are refused before memory is taken for each of them."""

from __future__ import annotations

import pytest

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_server.wire import ENTRIES_MAX, decode

R = recall_pb2


def entries(number: int, count: int, content: bytes = b"") -> bytes:
    """So many length-delimited fields."""
    return (bytes((number << 3 | 2, len(content))) + content) * count


@pytest.mark.parametrize(
    ("kind", "number", "field"),
    [
        (R.IndexRequest, 3, "messages"),
        (R.IndexRequest, 6, "vectors"),
        (R.RecallRequest, 15, "exclude_message_ids"),
        (R.RecallRequest, 6, "alternative_queries"),
        (R.GetMessagesRequest, 2, "message_ids"),
        (R.EmbedRequest, 1, "texts"),
        (R.EmbedRequest, 15, "EmbedRequest"),
    ],
)
def test_too_many_entries_name_their_field(
    kind: type[R.IndexRequest], number: int, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        decode(entries(number, ENTRIES_MAX + 1), kind)
    (violation,) = refused.value.violations
    assert violation.field == field
    assert violation.description == "makes more than 200000 fields of the request"


def test_as_many_as_are_allowed_are_read() -> None:
    raw = entries(2, ENTRIES_MAX, b"id-0")
    assert len(decode(raw, R.GetMessagesRequest).message_ids) == ENTRIES_MAX


def test_numbers_one_by_one_count_too() -> None:
    one = R.RecallRequest(query_embedding=[0.5]).SerializeToString()
    assert one[0] & 7 == 2
    unpacked = bytes((7 << 3 | 5,)) + one[2:]
    assert len(decode(unpacked * ENTRIES_MAX, R.RecallRequest).query_embedding) == ENTRIES_MAX
    with pytest.raises(InvalidArgumentError):
        decode(unpacked * (ENTRIES_MAX + 1), R.RecallRequest)


def test_few_and_large_fields_are_read() -> None:
    request = R.EmbedRequest(texts=["x" * 1_000_000, "y" * 1_000_000])
    assert decode(request.SerializeToString(), R.EmbedRequest) == request


@pytest.mark.parametrize("end", [b"\x0a", b"\x0a\xff", b"\x0c", b"\x08" + b"\xff" * 11])
def test_what_is_malformed_is_told_as_before(end: bytes) -> None:
    raw = R.EmbedRequest(texts=["x" * 500_000]).SerializeToString() + end
    with pytest.raises(InvalidArgumentError) as refused:
        decode(raw, R.EmbedRequest)
    assert "more than" not in str(refused.value.violations)
