"""Every method of the contract, read from the descriptors: a new one is tried without being named.

`Rpc.call` sends bytes as they are; `valid` gives requests that handlers accept, where one is known,
and `filled` gives requests in which every field is set, one for each way through their oneofs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct

from semanticrecall.v1 import admin_pb2, recall_pb2, vectors_pb2
from support.bad_values import good_requests
from support.bad_vectors import good_vector_requests

CALL_SECONDS = 30.0
NOON_S = 1_700_000_000
DEPTH_MAX = 6
Texts = Callable[[str], str]
"""What to put into the string field of this path."""


@dataclass(frozen=True)
class Rpc:
    """One method."""

    service: str
    name: str
    request: type[Message]
    answer: type[Message]
    sends_many: bool
    answers_many: bool

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        """As HTTP/2 has it."""
        return f"/{self.service}/{self.name}"

    def call(
        self,
        channel: grpc.Channel,
        *requests: bytes,
        metadata: Any = None,
        timeout: float = CALL_SECONDS,
    ) -> list[bytes]:
        """Send requests (one, but for streams) as bytes; all answers as bytes."""
        if self.sends_many:
            many = channel.stream_stream(self.path)
            return list(many(iter(requests), timeout=timeout, metadata=metadata))
        (request,) = requests or (b"",)
        if self.answers_many:
            streamed = channel.unary_stream(self.path)
            return list(streamed(request, timeout=timeout, metadata=metadata))
        return [channel.unary_unary(self.path)(request, timeout=timeout, metadata=metadata)]


def every_rpc() -> list[Rpc]:
    """All methods of all services of the contract."""
    return [
        Rpc(
            service.full_name,
            method.name,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for file in (recall_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR, vectors_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    ]


def valid(rpc: Rpc) -> Message:
    """A request that is accepted, where one is known; else an empty one."""
    good = {**good_requests(), **good_vector_requests()}
    streamed = {"RecallStream": "Recall", "IndexStream": "Index"}
    request = good.get(streamed.get(rpc.name, rpc.name), rpc.request())
    if rpc.name == "RecallStream":
        request.request_id = "r"  # type: ignore[attr-defined]
    return request


def filled(kind: type[Message], texts: Texts) -> Iterator[Message]:
    """Requests with every field set; one for each member of the largest oneof."""
    widest = max((len(one.fields) for one in kind.DESCRIPTOR.oneofs), default=1)
    for way in range(widest):
        message = kind()
        fill(message, texts, way)
        yield message


def fill(message: Message, texts: Texts, way: int = 0, path: str = "", depth: int = 0) -> None:
    """Set every field; of a oneof the member `way`."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        one = field.containing_oneof
        if one is not None and len(one.fields) > 1 and one.fields[way % len(one.fields)] != field:
            continue
        _set(message, field, texts, (way, f"{path}{field.name}", depth))


def _set(message: Any, field: FieldDescriptor, texts: Texts, at: tuple[int, str, int]) -> None:
    way, path, depth = at
    if field.message_type is None:
        value = _scalar(field, texts, path)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
        return
    part = getattr(message, field.name)
    part = part.add() if field.is_repeated else part
    if isinstance(part, Struct):
        part.update({texts(f"{path}.key"): texts(f"{path}.value"), "list": [texts(f"{path}.list")]})
    elif field.message_type.full_name == "google.protobuf.Timestamp":
        part.seconds = NOON_S + len(path)
    elif depth < DEPTH_MAX:
        fill(part, texts, way, f"{path}.", depth + 1)


def _scalar(field: FieldDescriptor, texts: Texts, path: str) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return texts(path)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return texts(path).encode("utf-8", "replace")
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return 0.5
    return True if field.type == FieldDescriptor.TYPE_BOOL else 1


def string_paths(kind: type[Message]) -> list[str]:
    """Paths of all string and bytes fields, in any of the ways through the oneofs."""
    found: dict[str, None] = {}

    def note(path: str) -> str:
        found[path] = None
        return "x"

    for _ in filled(kind, note):
        pass
    return list(found)


def with_text(request: Message, path: str, text: str) -> Message:
    """A copy of a request with this text in the field of a path of `string_paths`."""
    changed = type(request)()
    changed.CopyFrom(request)
    target: Any = changed
    *steps, last = path.split(".")
    for step in steps:
        part = getattr(target, step)
        if isinstance(part, Struct):
            part.update({text: 1} if last == "key" else {"key": text})
            return changed
        if hasattr(part, "add"):
            part = part[0] if len(part) else part.add()
        target = part
    field = target.DESCRIPTOR.fields_by_name[last]
    value = text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.is_repeated:
        getattr(target, last).append(value)
    else:
        setattr(target, last, value)
    return changed


# ---- bytes that are almost a request ----

_BORDERS = (0, 1, 127, 128, 255, 2**14, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def mutated(raw: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    """A request with one to four things wrong with its bytes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.choice((0, 0x7F, 0x80, 0xFF, 0x0A, 0x12))
        elif kind == 2:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 4:
            begin = rng.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + rng.randint(1, 32)]
        elif kind == 5:
            data[at:at] = _varint(rng.randrange(1, 32) << 3) + _varint(rng.choice(_BORDERS))
        elif kind == 6:
            other = rng.choice(corpus)
            data[at:] = other[rng.randrange(len(other) + 1) :]
        else:
            del data[at:]
    return bytes(data)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
