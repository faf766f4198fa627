"""Giant and malformed messages: refused by name or answered, never held, never logged.

The sizes go from nothing to 100 MiB, plain and compressed; the texts from NUL to four million
letters without a space. The server's memory has a bound, and it serves the next call.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from semanticrecall.v1 import recall_pb2, types_pb2
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import size
from support.isolation_ids import canaries_in, canary
from support.process_gauges import Watched

MIB = 1024 * 1024
CALL_SECONDS = 120.0
GROWTH_BYTES_MAX = 192 * MIB
MARK = canary(0xBEEF)

OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED

TEXTS = {
    "empty": "",
    "blank": " \t\n\u00a0\u3000",
    "nul": f"a\x00b {MARK}",
    "controls": "".join(map(chr, range(32))) + MARK,
    "right to left": f"\u202e{MARK}\u202d\u2066abc\u2069 \u05e9\u05dc\u05d5\u05dd",
    "zero width": "\u200b\u200c\u200d\ufeff\u2060" * 50,
    "zero width between": "\u200b".join(MARK * 20),
    "combining": "e" + "\u0301" * 20_000,
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 3_000,
    "surrogate pairs": "\U0010ffff" * 10_000,
    "private use": "\ue000\uf8ff" * 10_000,
    "no space": MARK * 15_000,
    "spaces": " " * 200_000 + MARK,
    "line ends": "\n" * 100_000 + MARK,
    "one word each line": f"{MARK}\n" * 10_000,
    "quotes": '"' * 100_000 + MARK,
    "backslashes": "\\" * 100_000 + MARK,
    "markup": "<a>" * 50_000 + MARK,
    "cjk": "\u6771\u4eac\u90fd" * 20_000,
    "thai": "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22" * 5_000,
    "digits": "1234567890" * 20_000,
    "longest": MARK * (262_144 // len(MARK)),
}
"""All of at most 262,144 bytes, which a message may have."""

TOO_LONG = {
    "a message too long": "x" * 262_145,
    "4 MiB": "x" * 4 * MIB,
    "4 million letters": "\u00e9" * 3_999_999,
}


@dataclass(frozen=True)
class Sent:
    """A request as bytes, and the codes that it may end with."""

    label: str
    method: str
    raw: bytes
    codes: tuple[grpc.StatusCode, ...]
    compressed: bool = False


def index(text: str, **fields: object) -> bytes:
    """An Index request of one message."""
    message = types_pb2.Message(id="m", role=types_pb2.ROLE_USER, text=text, **fields)  # type: ignore[arg-type]
    request = recall_pb2.IndexRequest(resource_id="r", thread_id="t", messages=[message])
    return request.SerializeToString()


def recall(query: str) -> bytes:
    return recall_pb2.RecallRequest(resource_id="r", query=query).SerializeToString()


def field(number: int, content: bytes) -> bytes:
    """One length-delimited field."""
    length, rest = b"", len(content)
    while rest > 127:
        length += bytes((rest & 127 | 128,))
        rest >>= 7
    return bytes((number << 3 | 2,)) + length + bytes((rest,)) + content


def texts() -> Iterator[Sent]:
    for label, text in TEXTS.items():
        yield Sent(f"recall {label}", "Recall", recall(text), (OK,))
        yield Sent(f"index {label}", "Index", index(text), (OK,))
    for label, text in TOO_LONG.items():
        # One message is rejected by itself; a query has a limit of its own.
        yield Sent(f"index {label}", "Index", index(text), (OK, FULL))
        codes = (OK,) if len(text.encode()) <= MIB else (INVALID, FULL)
        yield Sent(f"recall {label}", "Recall", recall(text), codes)
        embed = recall_pb2.EmbedRequest(texts=[text]).SerializeToString()
        yield Sent(f"embed {label}", "Embed", embed, (INVALID, FULL))


def bytes_that_are_wrong() -> Iterator[Sent]:
    surrogate = b"\xed\xa0\x80" + MARK.encode()
    for label, raw in {
        "lone surrogate": surrogate,
        "overlong slash": b"\xc0\xaf",
        "beyond unicode": b"\xf4\x90\x80\x80",
        "cut off": MARK.encode() + b"\xe2\x82",
        "latin-1": b"caf\xe9",
    }.items():
        yield Sent(f"query {label}", "Recall", field(2, b"r") + field(5, raw), (INVALID,))
        yield Sent(f"id {label}", "GetMessages", field(1, b"r") + field(2, raw), (INVALID,))
    million = 1_000_000
    yield Sent(
        "a million ids", "GetMessages", field(1, b"r") + field(2, b"m") * million, (INVALID,)
    )
    excluded = field(2, b"r") + field(5, b"q") + b"\x7a\x01m" * million
    yield Sent("a million exclusions", "Recall", excluded, (INVALID,))
    yield Sent("a million messages", "Index", field(1, b"r") + field(3, b"") * million, (INVALID,))
    numbers = field(2, b"r") + field(7, b"\x00\x00\x80\x3f" * million)
    yield Sent("a million numbers", "Recall", numbers, (INVALID,))
    unknown = b"\xf2\x3f\x01x" * million + field(2, b"r")
    yield Sent("a million unknown fields", "Recall", unknown, (INVALID,))
    twice = field(2, b"a") * million + field(2, b"r")
    yield Sent("one field a million times", "Recall", twice, (INVALID,))


def giants() -> Iterator[Sent]:
    for size_bytes in (8 * MIB, 100 * MIB):
        yield Sent(f"{size_bytes} bytes", "Recall", field(5, b"x" * size_bytes), (FULL,))
    bomb = field(5, bytes(100 * MIB))
    assert len(gzip.compress(bomb, 1)) < MIB
    yield Sent("bomb", "Recall", bomb, (FULL,), compressed=True)
    yield Sent("bomb to Index", "Index", bomb, (FULL,), compressed=True)


def send(sidecar: FaultSidecar, sent: Sent) -> grpc.StatusCode:
    """How it ends; what is said must not repeat what was sent."""
    call = sidecar.stubs.channel.unary_unary(f"/semanticrecall.v1.RecallService/{sent.method}")
    compression = grpc.Compression.Gzip if sent.compressed else None
    try:
        call(sent.raw, timeout=CALL_SECONDS, compression=compression)
    except grpc.RpcError as error:
        said = (error.details() or "").encode()  # type: ignore[attr-defined]
        for _, value in error.trailing_metadata() or ():  # type: ignore[attr-defined]
            said += value if isinstance(value, bytes) else value.encode()
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return grpc.StatusCode.DATA_LOSS if canaries_in(said) else code
    return OK


def test_giant_and_hostile_messages_are_refused_or_answered(tmp_path: Path) -> None:
    sidecar = FaultSidecar(tmp_path)
    with (
        seeded("F19 messages", sidecar.data) as run,
        sidecar,
        Watched(sidecar.pid) as watched,
    ):
        assert send(sidecar, Sent("", "Index", index("rex eats turkey"), (OK,))) is OK
        for sent in itertools.chain(texts(), bytes_that_are_wrong(), giants()):
            code = send(sidecar, sent)
            assert code in sent.codes, (sent.label, code)
            run.count(code.name)
        for method in ("Recall", "Index", "Forget", "GetMessages", "Embed"):
            assert send(sidecar, Sent("empty", method, b"", (INVALID,))) is INVALID
        assert send(sidecar, Sent("", "Recall", recall("turkey"), (OK,))) is OK
        run.count("KiB of memory more", watched.growth_bytes() // 1024)
        assert watched.growth_bytes() < GROWTH_BYTES_MAX
        said = "\n".join(sidecar.said)
        assert canaries_in(said.encode()) == set()
        assert max(map(len, sidecar.said)) < 2_000
        assert all(json.loads(line) for line in sidecar.said)
        assert not sidecar.logged("internal_error")
    assert sum(run.counts[code.name] for code in (OK, INVALID, FULL)) >= size(
        "F19_MESSAGES", "quick"
    )
