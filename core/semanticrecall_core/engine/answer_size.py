"""How large an answer is once it is encoded, and what is left out of one that is too large."""

from __future__ import annotations

from dataclasses import replace

from semanticrecall_core.types.values import GroupState, RecalledMessage, StoredMessage

MESSAGE_FRAME_BYTES = 96
VALUE_FRAME_BYTES = 12
# A character is at most 4 bytes in the message and, escaped or indented, 20 in the context.
TEXT_CHARACTER_BYTES_MAX = 24
METADATA_CHARACTER_BYTES_MAX = 4 + VALUE_FRAME_BYTES
# Six names of at most 512 bytes, two of them once more in the context.
NAMES_BYTES_MAX = 10_000


def surely_fit(messages: tuple[RecalledMessage, ...], bytes_max: int) -> bool:
    """Whether messages and their context fit, whatever is in them; quick, and mostly true."""
    size = NAMES_BYTES_MAX * len(messages)
    for recalled in messages:
        message = recalled.message
        size += (
            TEXT_CHARACTER_BYTES_MAX * len(message.text)
            + len(message.payload)
            + METADATA_CHARACTER_BYTES_MAX * len(message.metadata_json)
        )
    return size <= bytes_max


def within_bytes(
    messages: tuple[RecalledMessage, ...], bytes_max: int
) -> tuple[RecalledMessage, ...]:
    """Drop neighbours, then the lowest hits, until the rest fits; the best hit stays."""
    if sum(bytes_of(recalled.message) for recalled in messages) <= bytes_max:
        return messages
    kept: set[int] = set()
    size = 0
    # Hits by rank first; neighbours (rank 0) last, in answer order.
    for recalled in sorted(messages, key=lambda m: m.rank or len(messages) + 1):
        size += bytes_of(recalled.message)
        if size > bytes_max and kept:
            break
        kept.add(recalled.message.seq)
    return _without_broken_groups(messages, kept)


def _without_broken_groups(
    messages: tuple[RecalledMessage, ...], kept: set[int]
) -> tuple[RecalledMessage, ...]:
    """The messages kept; of a group that lost one, only the hits."""
    broken = {
        (m.message.thread_id, m.message.group_id)
        for m in messages
        if m.group_state is GroupState.WHOLE and m.message.seq not in kept
    }
    answer: list[RecalledMessage] = []
    for recalled in messages:
        if recalled.message.seq not in kept:
            continue
        if (recalled.message.thread_id, recalled.message.group_id) not in broken:
            answer.append(recalled)
        elif recalled.found is not None:
            answer.append(replace(recalled, group_state=GroupState.HIT_ONLY))
    return tuple(answer)


def bytes_of(message: StoredMessage) -> int:
    """At least as many bytes as a message takes in an encoded answer."""
    names = (
        message.id,
        message.resource_id,
        message.thread_id,
        message.author,
        message.group_id,
        message.payload_type,
    )
    return (
        MESSAGE_FRAME_BYTES
        + utf8_bytes(message.text)
        + len(message.payload)
        + sum(map(utf8_bytes, names))
        + _metadata_bytes(message.metadata_json)
    )


def _metadata_bytes(metadata_json: str) -> int:
    """JSON grows when it is encoded field by field: `0,` is 2 bytes here and 11 there."""
    values = sum(map(metadata_json.count, ",:[{"))
    return utf8_bytes(metadata_json) + VALUE_FRAME_BYTES * values


def utf8_bytes(text: str) -> int:
    """Bytes of a text as it travels."""
    return len(text) if text.isascii() else len(text.encode())
