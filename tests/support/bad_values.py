"""The worst values of every field of every request, as the tests of bad input use them.

A case changes one field of a request that is otherwise good. `NO_BAD_VALUE` names the fields that
take every value of their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2

HUGE = 2**32 - 1
LONG_ID = "x" * 513
LONG_WIDE_ID = "é" * 257
CONTROL_IDS = {
    "newline": "a\nb",
    "nul": "a\x00b",
    "del": "a\x7fb",
    "c1": "a\x85b",
    "line separator": "a\u2028b",
    "escape": "\x1b[31m",
}
NO_BAD_VALUE = {
    "RecallRequest.explain",
    "RecallRequest.context_other_threads_only",
    "ListMessagesRequest.newest_first",
    "VerifyRequest.repair",
    "ExportRequest.with_vectors",
    "ForgetRequest.purge",
}

Change = Callable[[Any], None]


@dataclass(frozen=True)
class Case:
    """One bad value: which method, what is wrong, and the field that the answer must name."""

    method: str
    field: str
    label: str
    change: Change

    def __str__(self) -> str:
        return f"{self.method}-{self.field}-{self.label}"


def set_to(name: str, value: Any) -> Change:
    """Set a (dotted) field."""

    def change(request: Any) -> None:
        *path, last = name.split(".")
        for step in path:
            request = getattr(request, step)
        setattr(request, last, value)

    return change


def extend(name: str, values: list[Any]) -> Change:
    """Put other values into a repeated (dotted) field."""

    def change(request: Any) -> None:
        *path, last = name.split(".")
        for step in path:
            request = getattr(request, step)
        request.ClearField(last)
        getattr(request, last).extend(values)

    return change


def merge(text: dict[str, Any], name: str) -> Change:
    """Put an object into a Struct field."""
    return lambda request: getattr(request, name).update(text)


def good_requests() -> dict[str, Message]:
    """A request of every method that the server takes."""
    r, a = recall_pb2, admin_pb2
    return {
        "Recall": r.RecallRequest(resource_id="alice", query="turkey"),
        "Index": r.IndexRequest(
            resource_id="alice", thread_id="t", messages=[{"id": "m", "role": 1, "text": "x"}]
        ),
        "Forget": r.ForgetRequest(resource_id="alice", message_ids={"ids": ["m"]}),
        "ListMessages": r.ListMessagesRequest(resource_id="alice"),
        "GetMessages": r.GetMessagesRequest(resource_id="alice", message_ids=["m1"]),
        "ListThreads": r.ListThreadsRequest(resource_id="alice"),
        "TransferThread": r.TransferThreadRequest(
            resource_id="alice", thread_id="t", to_resource_id="bob"
        ),
        "Embed": r.EmbedRequest(texts=["turkey"]),
        "GetStats": a.GetStatsRequest(),
        "Verify": a.VerifyRequest(),
        "Export": a.ExportRequest(resource_id="alice"),
    }


def identifier(method: str, field: str, *, required: bool = True) -> Iterator[Case]:
    """Bad ids."""
    if required:
        yield Case(method, field, "missing", set_to(field, ""))
    yield Case(method, field, "too long", set_to(field, LONG_ID))
    yield Case(method, field, "too long in UTF-8", set_to(field, LONG_WIDE_ID))
    for label, value in CONTROL_IDS.items():
        yield Case(method, field, label, set_to(field, value))


def enum(method: str, field: str) -> Iterator[Case]:
    """Numbers that the enum does not have."""
    for value in (99, -1, 2**31 - 1):
        yield Case(method, field, f"unknown {value}", set_to(field, value))


def number(method: str, field: str, outside: list[float]) -> Iterator[Case]:
    """Numbers that are none, and numbers outside the range."""
    for value in [math.nan, math.inf, -math.inf, 3e38, *outside]:
        yield Case(method, field, str(value), set_to(field, value))


def count(method: str, field: str, outside: list[int]) -> Iterator[Case]:
    """Counts outside their range."""
    for value in [HUGE, *outside]:
        yield Case(method, field, str(value), set_to(field, value))


def times(method: str, field: str) -> Iterator[Case]:
    """Times outside the years 1678 to 2261, and nanoseconds that are none."""
    worst = {
        "1677": ("seconds", -9_214_560_001),
        "2262": ("seconds", 9_214_646_400),
        "least": ("seconds", -(2**63)),
        "most": ("seconds", 2**63 - 1),
        "negative nanos": ("nanos", -1),
        "huge nanos": ("nanos", 1_000_000_000),
        "least nanos": ("nanos", -(2**31)),
    }
    for label, (part, value) in worst.items():
        yield Case(method, field, label, set_to(f"{field}.{part}", value))


def role_list(method: str, path: str = "") -> Iterator[Case]:
    """Roles of a list, in a message that `path` (ending in a dot) leads to."""
    field = f"{path}roles"
    for value in (0, 99, -1):
        yield Case(method, f"{field}[1]", str(value), extend(field, [1, value]))
    yield Case(method, field, "too many", extend(field, [1] * 17))


def forget_conditions() -> Iterator[Case]:
    """What a Forget cannot look for."""
    field = "condition.authors"
    yield Case("Forget", "condition", "empty", lambda request: request.condition.SetInParent())
    yield from identifier("Forget", "condition.thread_id", required=False)
    yield from times("Forget", "condition.create_time_from")
    yield from times("Forget", "condition.create_time_to")
    yield from role_list("Forget", "condition.")
    yield Case("Forget", field, "too many", extend(field, ["x"] * 101))
    for label, value in {"empty": "", "long": LONG_ID, **CONTROL_IDS}.items():
        yield Case("Forget", f"{field}[1]", label, extend(field, ["Ann", value]))


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(levels - 1):
        value = {"$not": value}
    return value


def recall_cases() -> Iterator[Case]:
    """Fields of RecallRequest."""
    m = "Recall"
    yield from identifier(m, "request_id", required=False)
    yield from identifier(m, "resource_id")
    yield from identifier(m, "thread_id", required=False)
    yield Case(m, "thread_id", "missing for thread scope", set_to("scope", 2))
    yield from enum(m, "scope")
    yield Case(m, "query", "too long", set_to("query", "x" * 1_048_577))
    phrasings = ["x"] * 17
    yield Case(m, "alternative_queries", "too many", extend("alternative_queries", phrasings))
    for label, text in {"too long": "x" * 1_048_577, "wide": "é" * 524_289}.items():
        yield Case(m, "alternative_queries[1]", label, extend("alternative_queries", ["a", text]))
    for label, values in {
        "nan": [1.0, math.nan],
        "inf": [math.inf, 1.0],
        "zero": [0.0, 0.0],
        "huge": [1.0] * 65_537,
    }.items():
        yield Case(m, "query_embedding", label, extend("query_embedding", values))
    yield from count(m, "top_k", [0, 1_001])
    yield from count(m, "message_range.before", [51])
    yield from count(m, "message_range.after", [51])
    yield from number(m, "threshold", [-1.1, 1.1])
    filters: dict[str, dict[str, Any]] = {
        "unknown operator": {"a": {"$regex": "x"}},
        "operator at the top": {"$where": "x"},
        "nan": {"a": math.nan},
        "inf": {"a": {"$gt": math.inf}},
        "too deep": _deep(17),
        "too many": {"a": {"$in": ["x"] * 257}},
        "empty list": {"$or": []},
        "empty object": {"a": {}},
        "empty key": {"": 1},
        "control": {"a\nb": 1},
        "long key": {"k" * 513: 1},
        "wrong type": {"a": {"$gt": True}},
    }
    for label, value in filters.items():
        yield Case(m, "filter", label, merge(value, "filter"))
    yield from role_list(m)
    yield from times(m, "create_time_from")
    yield from times(m, "create_time_to")
    yield from interval(m)
    yield from ids(m, "exclude_message_ids", 10_001, may_be_empty=True)
    yield from enum(m, "ranking.mode")
    yield from number(m, "ranking.recency_weight", [-0.1, 1.1])
    yield from number(m, "ranking.diversity", [-0.1, 1.1])
    yield from number(m, "ranking.near_duplicate_cosine", [-0.1, 0.0, 1.1])
    yield from count(m, "max_tokens", [1_000_001])
    for label, part, bad in (
        ("negative", "seconds", -1),
        ("huge", "seconds", 36_500 * 86_400 + 1),
        ("zero", "seconds", 0),
        ("nanos", "nanos", -5),
        ("huge nanos", "nanos", 1_000_000_000),
        ("least", "seconds", -(2**63)),
        ("most", "seconds", 2**63 - 1),
    ):
        field = "ranking.recency_half_life"
        yield Case(m, field, label, _half_life(part, bad))
    yield from enum(m, "context_format")
    for zone in ("Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "x" * 65, "U\nC"):
        yield Case(m, "time_zone", repr(zone), set_to("time_zone", zone))
    yield Case(m, "read_token", "too long", set_to("read_token", "x" * 513))
    yield Case(m, "read_token", "control", set_to("read_token", "a\nb"))
    yield from count(m, "timeout_ms", [600_001])


def _half_life(part: str, value: int) -> Change:
    def change(request: Any) -> None:
        request.ranking.recency_half_life.SetInParent()
        setattr(request.ranking.recency_half_life, part, value)

    return change


def interval(method: str) -> Iterator[Case]:
    """Intervals that hold nothing."""

    def change(request: Any) -> None:
        request.create_time_from.seconds = 5
        request.create_time_to.seconds = 5

    yield Case(method, "create_time_to", "not after", change)


def ids(method: str, field: str, too_many: int, *, may_be_empty: bool = False) -> Iterator[Case]:
    """Lists of ids."""
    if not may_be_empty:
        yield Case(method, field, "none", extend(field, []))
    yield Case(method, field, "too many", extend(field, ["x"] * too_many))
    for label, value in {"empty": "", "long": LONG_ID, **CONTROL_IDS}.items():
        yield Case(method, f"{field}[1]", label, extend(field, ["m1", value]))


def other_cases() -> Iterator[Case]:
    """Fields of the other requests."""
    yield from identifier("Index", "resource_id")
    yield from identifier("Index", "thread_id", required=False)
    yield Case("Index", "messages", "none", extend("messages", []))
    yield Case("Index", "messages", "too many", _thousand_and_one)
    yield from enum("Index", "wait")
    yield Case("Index", "metadata", "nan", merge({"a": math.nan}, "metadata"))
    yield Case("Index", "metadata", "too long", merge({"a": "x" * 65_536}, "metadata"))
    for label, named in {"none": ["m9"], "empty": [""], "second": ["m", "m"]}.items():
        place = len(named) - 1
        given = [types_pb2.MessageVectors(message_id=name) for name in named]
        yield Case("Index", f"vectors[{place}].message_id", label, extend("vectors", given))
    yield from identifier("Forget", "resource_id")
    yield from ids("Forget", "message_ids.ids", 10_001)
    yield from identifier("Forget", "thread_id")
    yield Case("Forget", "everything", "false", set_to("everything", False))
    yield Case("Forget", "target", "missing", lambda request: request.ClearField("message_ids"))
    yield from times("Forget", "create_time_before")
    yield from forget_conditions()
    yield from identifier("ListMessages", "resource_id")
    yield from identifier("ListMessages", "thread_id", required=False)
    yield from count("ListMessages", "page_size", [1_001])
    yield from page_tokens("ListMessages")
    yield from times("ListMessages", "create_time_from")
    yield from times("ListMessages", "create_time_to")
    yield from interval("ListMessages")
    yield from role_list("ListMessages")
    yield from identifier("GetMessages", "resource_id")
    yield from ids("GetMessages", "message_ids", 1_001)
    yield from identifier("ListThreads", "resource_id")
    yield from count("ListThreads", "page_size", [1_001])
    yield from page_tokens("ListThreads")
    yield from identifier("TransferThread", "resource_id")
    yield from identifier("TransferThread", "thread_id")
    yield from identifier("TransferThread", "to_resource_id")
    yield Case("TransferThread", "to_resource_id", "the same", set_to("to_resource_id", "alice"))
    yield Case("Embed", "texts", "none", extend("texts", []))
    yield Case("Embed", "texts", "too many", extend("texts", ["x"] * 257))
    for label, value in {
        "empty": "",
        "blank": " \n\t",
        "zero width": "\u200b\ufeff",
        "too long": "x" * 262_145,
    }.items():
        yield Case("Embed", "texts[1]", label, extend("texts", ["x", value]))
    yield from enum("Embed", "role")
    yield from identifier("GetStats", "resource_id", required=False)
    yield from identifier("Verify", "resource_id", required=False)
    yield from identifier("Export", "resource_id")


def page_tokens(method: str) -> Iterator[Case]:
    """Tokens that no list gave out."""
    for label, value in {
        "garbage": "garbage",
        "not base64": "!!!!",
        "wide": "é" * 20,
        "too long": "A" * 513,
        "forged": "AQAAAAAAAAABAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAA",
        "nul": "A\x00B",
    }.items():
        yield Case(method, "page_token", label, set_to("page_token", value))


def _thousand_and_one(request: Any) -> None:
    request.messages.extend([request.messages[0]] * 1_000)


def message_cases() -> Iterator[Case]:
    """Fields of a message given to Index; each rejects that message alone."""
    m = "Index"
    yield from identifier(m, "id")
    yield from identifier(m, "thread_id", required=False)
    yield Case(m, "thread_id", "another", set_to("thread_id", "t2"))
    yield Case(m, "resource_id", "another", set_to("resource_id", "bob"))
    yield from enum(m, "role")
    yield Case(m, "role", "missing", set_to("role", 0))
    yield from identifier(m, "author", required=False)
    yield Case(m, "text", "too long", set_to("text", "x" * 262_145))
    yield Case(m, "text", "too long in UTF-8", set_to("text", "é" * 131_073))
    yield from times(m, "create_time")
    nested: Any = 1
    for _ in range(17):
        nested = {"a": nested}
    lists: Any = 1
    for _ in range(16):
        lists = [lists]
    for label, value in {
        "nan": {"a": math.nan},
        "inf": {"a": [1, -math.inf]},
        "too deep": nested,
        "lists too deep": {"a": lists},
        "too long": {"a": "x" * 65_536},
    }.items():
        yield Case(m, "metadata", label, merge(value, "metadata"))
    yield Case(m, "payload", "too long", set_to("payload", b"x" * 1_048_577))
    yield from identifier(m, "payload_type", required=False)
    yield from identifier(m, "group_id", required=False)
