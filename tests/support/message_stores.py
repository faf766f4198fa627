"""Short ways to say what a message store is given and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    AppendOutcome,
    CallBudget,
    ListQuery,
    MessageDraft,
    Role,
    StoredMessage,
    VectorRecord,
)
from semanticrecall_core.types.windows import WindowQuery

FIRST_TICK = 1_000_000
BYTES_MAX = 10**9


def ticking_clock() -> Callable[[], int]:
    """A clock that ticks once a reading: FIRST_TICK, FIRST_TICK + 1, ..."""
    ticks = count(FIRST_TICK)
    return lambda: next(ticks)


def draft(
    message_id: str, *, thread: str = "t", text: str = "text", **more: object
) -> MessageDraft:
    return replace(MessageDraft(message_id, thread, Role.USER, text=text), **more)


def append(store: MessageStore, *drafts: MessageDraft, resource: str = "u") -> list[AppendOutcome]:
    return store.append(resource, drafts, CallBudget.of_seconds(30))


def embed(store: MessageStore, outcome: AppendOutcome, *rows: Sequence[float]) -> bool:
    vectors = np.array(rows, np.float32)
    return store.put_vectors([VectorRecord("u", outcome.seq, outcome.revision, vectors)])[0]


def ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.id for message in messages]


def window(store: MessageStore, hits: Sequence[int], **more: object) -> list[str]:
    """Ids of the windows of these seqs, as they are now."""
    now = {m.seq: m.revision for m in store.list_messages(ListQuery("u", None, limit=1000))}
    pairs = tuple((seq, now.get(seq, 1)) for seq in hits)
    query = replace(WindowQuery("u", pairs, before=1, after=1, bytes_max=BYTES_MAX), **more)
    return ids(store.windows(query).messages)
