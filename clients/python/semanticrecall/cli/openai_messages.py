"""Messages as chat APIs keep them (`role`, `content`, `tool_calls`) to messages to index.

What is searched is the text: a string, or the text parts of a list. The whole original travels as
`payload` (canonical JSON), so that nothing is lost. An assistant's tool calls and the results that
name them (`tool_call_id`) form one group, parallel calls too; a call without words is a TOOL
message, so that its arguments are shown but never searched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ..values import Message, Role
from .jsonlines import LineError, derived_id

PAYLOAD_TYPE = "application/vnd.openai.chat-message+json"
PAYLOAD_BYTES_MAX = 1_048_576
CALL_CHARS_MAX = 20_000

_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


def is_openai_message(line: Mapping[str, Any]) -> bool:
    """Whether an object is a message of a chat API, and not one of ours."""
    return "content" in line or "tool_calls" in line or "function_call" in line


class Conversation:
    """Reads the messages of one thread, in order; remembers which call belongs to which group."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._position = 0
        self._groups: dict[str, str] = {}

    def message(self, line: Mapping[str, Any]) -> Message:
        """The next message.

        Raises:
            LineError: it is none.
        """
        role = _ROLES.get(str(line.get("role")))
        if role is None:
            raise LineError(f"role must be one of {', '.join(_ROLES)}")
        original = json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        payload = original.encode("utf-8", "surrogatepass")
        given_id = line.get("id")
        message_id = given_id if isinstance(given_id, str) and given_id else ""
        message_id = message_id or derived_id(self._thread_id, self._position, payload)
        self._position += 1
        text, calls = _text(line.get("content")), _calls(line)
        if calls and not text:
            role, text = Role.TOOL, "\n".join(map(_call_shown, calls))
        fits = len(payload) <= PAYLOAD_BYTES_MAX
        return Message(
            role,
            text,
            id=message_id,
            author=_author(line),
            create_time=_time(line.get("created_at", line.get("create_time"))),
            payload=payload if fits else b"",
            payload_type=PAYLOAD_TYPE if fits else "",
            group_id=self._group(line, calls, message_id),
            thread_id=self._thread_id,
        )

    def _group(self, line: Mapping[str, Any], calls: list[dict[str, Any]], message_id: str) -> str:
        if calls:
            # Call ids repeat in some exports; the id of the message that calls does not.
            group = f"call-{message_id}"
            for call in calls:
                self._groups[str(call.get("id", ""))] = group
            return group
        if "tool_call_id" in line or line.get("role") in ("tool", "function"):
            return self._groups.get(str(line.get("tool_call_id", "")), "")
        return ""


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise LineError("content must be a string or a list of parts")
    texts: list[str] = []
    for part in cast("list[object]", content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            said = cast("dict[str, object]", part).get("text")
            if isinstance(said, str):
                texts.append(said)
        else:
            raise LineError("a part of content must be an object")
    return "\n".join(texts)


def _calls(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = line.get("tool_calls") or []
    legacy = line.get("function_call")
    if legacy:
        calls = [{"id": "", "function": legacy}]
    if not isinstance(calls, list):
        raise LineError("tool_calls must be a list of objects")
    listed = cast("list[object]", calls)
    if not all(isinstance(call, dict) for call in listed):
        raise LineError("tool_calls must be a list of objects")
    return cast("list[dict[str, Any]]", listed)


def _call_shown(call: dict[str, Any]) -> str:
    function = call.get("function")
    if not isinstance(function, dict):
        return "(tool call)"
    named = cast("dict[str, Any]", function)
    arguments = named.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{named.get('name', 'tool')}({arguments})"[:CALL_CHARS_MAX]


def _author(line: Mapping[str, Any]) -> str:
    name = line.get("name")
    return name if isinstance(name, str) else ""


def _time(value: object) -> datetime | None:
    """Seconds since 1970, or ISO 8601 with a zone; anything else is no time."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError, OSError):
        raise LineError("created_at is not a time") from None
    return None
