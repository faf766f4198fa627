"""Reads the files that `import` takes, one message after the other, and says where each stood.

Formats, told apart by their content: JSON Lines (one message a line, ours or a chat API's), a JSON
array of messages, and an object with such an array as `messages`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from ..errors import SemanticRecallError
from ..values import Message
from ..wire import message_to_wire
from .jsonlines import LineError, derived_id, message_from_json
from .openai_messages import Conversation, is_openai_message

LINE_BYTES_MAX = 8 * 1024 * 1024
DOCUMENT_BYTES_MAX = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """One message of a file, or why there is none.

    Attributes:
        place: "line 12" or "message 12", counted from 1.
        message: with id and thread set; None where `problem` says why.
        resource_id: whose.
        size_bytes: on the wire.
        offset: bytes of the file up to its end.
    """

    place: str
    message: Message | None = None
    resource_id: str = ""
    size_bytes: int = 0
    problem: str = ""
    offset: int = 0


class MessageReader:
    """Reads one file.

    Args:
        resource_id, thread_id: for messages that do not name their own; may be empty.
        default_thread_id: for chat exports, where `thread_id` is empty.
    """

    def __init__(self, resource_id: str, thread_id: str, *, default_thread_id: str) -> None:
        self._resource_id = resource_id
        self._thread_id = thread_id
        self._default_thread_id = default_thread_id
        self._conversations: dict[str, Conversation] = {}
        self._positions: dict[str, int] = {}

    def read(self, file: IO[bytes]) -> Iterator[Read]:
        """All messages of a file, good and bad, in order.

        Raises:
            LineError: the file as a whole is none of the formats.
        """
        first = file.readline(LINE_BYTES_MAX + 1)
        while first and not first.strip():
            first = file.readline(LINE_BYTES_MAX + 1)
        if first.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
            return self._document(first, file)
        if first.strip() in (b"{", b"") or _holds_messages(first):
            return self._document(first, file)
        return self._lines(first, file)

    def _lines(self, first: bytes, file: IO[bytes]) -> Iterator[Read]:
        done = 0
        line, number = first.removeprefix(b"\xef\xbb\xbf"), 1
        while line:
            done += len(line)
            if len(line) > LINE_BYTES_MAX:
                yield Read(f"line {number}", problem="is longer than 8 MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES_MAX)
                    done += len(line)
            elif line.strip():
                yield self._one(f"line {number}", _parsed(line), done)
            line, number = file.readline(LINE_BYTES_MAX + 1), number + 1

    def _document(self, first: bytes, file: IO[bytes]) -> Iterator[Read]:
        rest = file.read(DOCUMENT_BYTES_MAX)
        if len(rest) == DOCUMENT_BYTES_MAX:
            raise LineError("a JSON document above 512 MiB must be given as JSON Lines")
        document = _parsed(first + rest)
        if isinstance(document, dict):
            document = cast("dict[str, object]", document).get("messages")
        if not isinstance(document, list):
            raise LineError(
                "must be JSON Lines, a JSON array of messages, or an object with `messages`"
            )
        listed = cast("list[object]", document)
        size = len(first) + len(rest)
        for number, item in enumerate(listed, 1):
            yield self._one(f"message {number}", item, size * number // len(listed))

    def _one(self, place: str, item: object, offset: int) -> Read:
        try:
            if isinstance(item, LineError):
                raise item
            if not isinstance(item, dict):
                raise LineError("is no JSON object")
            line = cast("dict[str, Any]", item)
            message = self._message(line)
            resource_id = message.resource_id or self._resource_id
            if not resource_id:
                raise LineError("names no resource_id; give --resource")
            if not message.thread_id:
                raise LineError("names no thread_id; give --thread")
            # The request names the resource; what cannot be sent must not end the stream.
            message = replace(message, resource_id="")
            size_bytes = message_to_wire(message).ByteSize()
        except LineError as error:
            return Read(place, problem=str(error))
        except SemanticRecallError as error:
            return Read(place, problem=error.message)
        return Read(place, message, resource_id, size_bytes, offset=offset)

    def _message(self, line: Mapping[str, Any]) -> Message:
        if is_openai_message(line):
            thread_id = self._thread_id or self._default_thread_id
            if thread_id not in self._conversations:
                self._conversations[thread_id] = Conversation(thread_id)
            return self._conversations[thread_id].message(line)
        message = message_from_json(line)
        thread_id = message.thread_id or self._thread_id
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
    except (ValueError, RecursionError):
        return LineError("is no JSON")


def _holds_messages(line: bytes) -> bool:
    """Whether a first line is a whole object with a list `messages`, or begins one."""
    parsed = _parsed(line)
    if isinstance(parsed, dict):
        return isinstance(cast("dict[str, object]", parsed).get("messages"), list)
    return False


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
