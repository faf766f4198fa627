"""How large an answer is once it is encoded, and what is left out of one that is too large."""

from __future__ import annotations

from collections.abc import Sequence, Set

from semanticrecall_core.types.recalling import GroupState, RecalledMessage
from semanticrecall_core.types.values import StoredMessage

MESSAGE_FRAME_BYTES = 96
"""At least what a message takes in an answer beside its encoded form: lengths, score, rank."""


def within_bytes(
    messages: Sequence[RecalledMessage], bytes_max: int
) -> tuple[RecalledMessage, ...]:
    """Drop neighbours, then the lowest hits, until the rest fits; the best hit stays."""
    if bytes_of_all(messages) <= bytes_max:
        return tuple(messages)
    kept: set[int] = set()
    size = 0
    # Hits by rank first; neighbours (rank 0) last, in answer order.
    for recalled in sorted(messages, key=lambda m: m.rank or len(messages) + 1):
        size += bytes_of(recalled.message)
        if size > bytes_max and kept:
            break
        kept.add(recalled.message.seq)
    return only(messages, kept)


def only(messages: Sequence[RecalledMessage], kept: Set[int]) -> tuple[RecalledMessage, ...]:
    """The messages whose seq is kept; of a group that lost one, only the hits."""
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
            answer.append(recalled._replace(group_state=GroupState.HIT_ONLY))
    return tuple(answer)


def bytes_of(message: StoredMessage) -> int:
    """At least as many bytes as a message takes in an encoded answer."""
    return MESSAGE_FRAME_BYTES + len(message.encoded)


def bytes_of_all(messages: Sequence[RecalledMessage]) -> int:
    """The same of all messages of an answer."""
    sizes = [len(recalled.message.encoded) for recalled in messages]
    return sum(sizes) + MESSAGE_FRAME_BYTES * len(sizes)


def utf8_bytes(text: str) -> int:
    """Bytes of a text as it travels."""
    return len(text) if text.isascii() else len(text.encode())
