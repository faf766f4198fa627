"""A message of the dictionary model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from semanticrecall_core.types.values import MessageDraft, StoredMessage
from support.stored_messages import stored


@dataclass
class Row:
    """One message."""

    seq: int
    resource_id: str
    draft: MessageDraft
    time_ns: int
    revision: int
    made: dict[str, np.ndarray] = field(default_factory=dict)
    """Vectors by their generation."""

    @property
    def place(self) -> tuple[int, int]:
        return (self.time_ns, self.seq)


def same_to_embed(old: MessageDraft, new: MessageDraft) -> bool:
    return old.embeddable and new.embeddable and old.text == new.text


def replaced_text(old: Row | None, new: Row) -> str | None:
    if old is None or not old.draft.embeddable or same_to_embed(old.draft, new.draft):
        return None
    return old.draft.text


def size_bytes(row: Row) -> int:
    return len(stored_row(row).encoded)


def stored_row(row: Row) -> StoredMessage:
    return stored(
        row.draft, row.time_ns, seq=row.seq, resource=row.resource_id, revision=row.revision
    )
