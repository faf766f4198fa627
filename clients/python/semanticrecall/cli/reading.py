"""Reads the files that `import` takes, one message after the other, and says where each stood.

Formats, told apart by their content: JSON Lines (one message or one conversation a line), a JSON
array of messages or conversations, and one conversation. A message is ours (`jsonlines`) or a chat
API's (`openai_messages`). A conversation is an object with a list `messages`; its `thread_id` or
`id` names its thread, else the threads are NAME, NAME-2, NAME-3 and so on.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from ..errors import SemanticRecallError
from ..values import Message, MessageVectors
from ..wire import message_to_wire, vectors_to_wire
from .jsonlines import LineError, derived_id, message_from_json, vectors_from_json
from .openai_messages import Conversation, is_openai_message

LINE_BYTES_MAX = 8 * 1024 * 1024
DOCUMENT_BYTES_MAX = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """One message of a file, or why there is none.

    Attributes:
        place: "line 12" or "message 12", counted from 1; "line 12, message 3" in a conversation.
        message: with id and thread set; None where `problem` says why.
        resource_id: whose.
        size_bytes: on the wire, with the vectors.
        offset: bytes of the file up to its end.
        vectors: of the message, where the file has them.
    """

    place: str
    message: Message | None = None
    resource_id: str = ""
    size_bytes: int = 0
    problem: str = ""
    offset: int = 0
    vectors: MessageVectors | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a message stands, and what its conversation says of it."""

    place: str
    offset: int
    resource_id: str = ""
    thread_id: str = ""


class MessageReader:
    """Reads one file.

    Args:
        resource_id: whose all messages become, whatever the file says; empty: as it says.
        thread_id: for messages that do not name their own; may be empty.
        default_thread_id: for chat exports, where `thread_id` is empty.
    """

    def __init__(self, resource_id: str, thread_id: str, *, default_thread_id: str) -> None:
        self._resource_id = resource_id
        self._thread_id = thread_id
        self._default_thread_id = default_thread_id
        self._conversations: dict[str, Conversation] = {}
        self._positions: dict[str, int] = {}
        self._unnamed = 0

    def read(self, file: IO[bytes]) -> Iterator[Read]:
        """All messages of a file, good and bad, in order; none of an empty file.

        Raises:
            LineError: the file as a whole is none of the formats.
        """
        first = file.readline(LINE_BYTES_MAX + 1)
        while first and not first.strip():
            first = file.readline(LINE_BYTES_MAX + 1)
        first = first.removeprefix(b"\xef\xbb\xbf")
        if not first or isinstance(_parsed(first), dict):
            return self._lines(first, file)
        # Not JSON Lines, or with a first line that is damaged: the whole file tells.
        content = first + file.read(DOCUMENT_BYTES_MAX)
        if len(content) > DOCUMENT_BYTES_MAX:
            raise LineError("a JSON document above 512 MiB must be given as JSON Lines")
        document = _parsed(content)
        if isinstance(document, list):
            return self._listed(cast("list[object]", document), len(content))
        if isinstance(document, dict):
            single = cast("dict[str, object]", document)
            if _messages_of(single) is None and "role" not in single:
                raise LineError(
                    "must be JSON Lines, a JSON array of messages, or an object with `messages`"
                )
            return self._listed([single], len(content))
        if first.lstrip()[:1] == b"[" or first.strip() == b"{":
            raise LineError(f"{document}: neither a JSON document nor JSON Lines")
        lines = io.BytesIO(content)
        return self._lines(lines.readline(LINE_BYTES_MAX + 1), lines)

    def _lines(self, first: bytes, file: IO[bytes]) -> Iterator[Read]:
        done = 0
        line, number = first, 1
        while line:
            done += len(line)
            if len(line) > LINE_BYTES_MAX:
                yield Read(f"line {number}", problem="is longer than 8 MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES_MAX)
                    done += len(line)
            elif line.strip():
                yield from self._item(f"line {number}", _parsed(line), done)
            line, number = file.readline(LINE_BYTES_MAX + 1), number + 1

    def _listed(self, document: list[object], size: int) -> Iterator[Read]:
        for number, item in enumerate(document, 1):
            kind = "message" if _messages_of(item) is None else "conversation"
            yield from self._item(f"{kind} {number}", item, size * number // len(document))

    def _item(self, place: str, item: object, offset: int) -> Iterator[Read]:
        messages = _messages_of(item)
        if messages is None:
            yield self._one(_Spot(place, offset), item)
            return
        conversation = cast("dict[str, object]", item)
        thread_id = _named(conversation, "thread_id") or _named(conversation, "id")
        if not thread_id:
            self._unnamed += 1
            thread_id = self._thread_id or self._default_thread_id
            if self._unnamed > 1:
                thread_id = f"{thread_id}-{self._unnamed}"
        for number, message in enumerate(messages, 1):
            inside = f"{place}, message {number}"
            resource_id = _named(conversation, "resource_id")
            yield self._one(_Spot(inside, offset, resource_id, thread_id), message)

    def _one(self, spot: _Spot, item: object) -> Read:
        try:
            if isinstance(item, LineError):
                raise item
            if not isinstance(item, dict):
                raise LineError("is not a JSON object")
            line = dict(cast("dict[str, Any]", item))
            with_vectors = line.pop("vectors", None)
            message = self._message(line, spot.thread_id)
            resource_id = self._resource_id or message.resource_id or spot.resource_id
            if not resource_id:
                raise LineError("names no resource_id; give --resource")
            if not message.thread_id:
                raise LineError("names no thread_id; give --thread")
            # The request names the resource; what cannot be sent must not end the stream.
            message = replace(message, resource_id="")
            size_bytes = message_to_wire(message).ByteSize()
            vectors = None
            if with_vectors is not None:
                vectors = vectors_from_json(with_vectors, message.id)
                size_bytes += vectors_to_wire(vectors).ByteSize()
        except LineError as error:
            return Read(spot.place, problem=str(error))
        except SemanticRecallError as error:
            return Read(spot.place, problem=error.message)
        return Read(
            spot.place, message, resource_id, size_bytes, offset=spot.offset, vectors=vectors
        )

    def _message(self, line: Mapping[str, Any], thread_id: str) -> Message:
        """A message; `thread_id` is its conversation's, if it has one."""
        if is_openai_message(line):
            thread_id = thread_id or self._thread_id or self._default_thread_id
            if thread_id not in self._conversations:
                self._conversations[thread_id] = Conversation(thread_id)
            return self._conversations[thread_id].message(line)
        message = message_from_json(line)
        thread_id = message.thread_id or thread_id or self._thread_id
        position = self._positions.get(thread_id, 0)
        self._positions[thread_id] = position + 1
        message_id = message.id or derived_id(thread_id, position, _canonical(line))
        return replace(message, thread_id=thread_id, id=message_id)


def _canonical(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        where = f" (line {error.lineno}, column {error.colno})" if error.lineno > 1 else ""
        return LineError(f"is not JSON{where}")
    except (ValueError, RecursionError):
        return LineError("is not JSON")


def _messages_of(item: object) -> list[object] | None:
    """The messages of a conversation; None for anything else."""
    if not isinstance(item, dict):
        return None
    messages = cast("dict[str, object]", item).get("messages")
    return cast("list[object]", messages) if isinstance(messages, list) else None


def _named(conversation: Mapping[str, object], field: str) -> str:
    value = conversation.get(field)
    return value if isinstance(value, str) else ""


def batches(items: Iterable[Read], *, messages_max: int, bytes_max: int) -> Iterator[list[Read]]:
    """Good messages in batches: one resource each, and within the limits of a request."""
    batch: list[Read] = []
    size = 0
    for item in items:
        full = len(batch) >= messages_max or size + item.size_bytes > bytes_max
        if batch and (full or item.resource_id != batch[0].resource_id):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size_bytes
    if batch:
        yield batch
