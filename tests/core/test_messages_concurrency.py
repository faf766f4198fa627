"""Many writers and readers at once: every answer is whole, and the listener follows the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    PartitionRows,
    Role,
    VectorRecord,
)
from semanticrecall_core.types.windows import WindowQuery
from support.stored_messages import open_store

WRITERS, READERS, TURNS = 8, 3, 25


class Follower:
    """A partition kept by what the listener is told alone: seq -> first number of its vectors."""

    def __init__(self) -> None:
        self.vectors: dict[int, float] = {}
        self._at_once = threading.Lock()

    def vectors_put(self, _resource_id: str, rows: PartitionRows) -> None:
        with self._alone():
            for seq, vector in zip(rows.seqs.tolist(), rows.vectors.tolist(), strict=True):
                self.vectors[seq] = vector[0]

    def vectors_removed(self, _resource_id: str, seqs: np.ndarray) -> None:
        with self._alone():
            for seq in seqs.tolist():
                self.vectors.pop(seq, None)

    def resource_dropped(self, _resource_id: str) -> None:
        self.vectors.clear()

    def resource_changed(self, _resource_id: str) -> None:
        assert not self._at_once.locked()

    def _alone(self) -> threading.Lock:
        assert not self._at_once.locked()  # one call at a time
        return self._at_once


def _write(store: MessageStore, name: int) -> int:
    """Turns of append, embed, edit and forget; returns how many messages are left."""
    for turn in range(TURNS):
        pair = [f"{name}-{turn}-{part}" for part in "ab"]
        drafts = [MessageDraft(i, f"t{name}", Role.USER, text=i) for i in pair]
        outcomes = store.append("u", drafts, CallBudget.of_seconds(60))
        records = [
            VectorRecord("u", o.seq, o.revision, np.full((1, 4), o.seq, np.float32))
            for o in outcomes
        ]
        assert store.put_vectors(records) == [True, True]
        if turn % 5 == 1:
            edited = MessageDraft(pair[0], f"t{name}", Role.USER, text="edited")
            store.append("u", [edited], CallBudget.of_seconds(60))
        if turn % 5 == 2:
            forgotten = store.forget("u", ForgetTarget(message_ids=(pair[1],)))
            assert forgotten.seqs == (outcomes[1].seq,)
        # What was acknowledged is there for the one who was told.
        expected = pair[:1] if turn % 5 == 2 else pair
        assert [m.id for m in store.get("u", pair)] == expected
    return store.stats("u").messages


def _read(store: MessageStore, writing: Callable[[], bool]) -> int:
    """Answers are whole whatever is written beside them."""
    answers = 0
    while writing():
        page = store.list_messages(ListQuery("u", None, limit=1000))
        places = [(m.create_time_ns, m.seq) for m in page]
        assert places == sorted(places)
        if page:
            middle = page[len(page) // 2]
            hit = (middle.seq, middle.revision)
            window = store.windows(WindowQuery("u", (hit,), 2, 2, 10**9)).messages
            assert len({m.thread_id for m in window}) <= 1
        rows = store.load_partition("u")
        assert (rows.vectors[:, 0] == rows.seqs).all() if rows.seqs.size else True
        answers += 1
    return answers


def test_writers_and_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    # Fewer connections than threads: readers wait for each other, never for the writer.
    store = open_store(tmp_path / "data", generation="g", options=StoreOptions(readers_max=4))
    follower = Follower()
    store.subscribe(follower)
    done = threading.Event()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        reading = [pool.submit(_read, store, lambda: not done.is_set()) for _ in range(READERS)]
        writing = [pool.submit(_write, store, name) for name in range(WRITERS)]
        try:
            for writer in writing:
                writer.result(60)
        finally:
            done.set()
        assert all(reader.result(60) > 0 for reader in reading)
    left = WRITERS * (2 * TURNS - TURNS // 5)
    assert store.stats("u").messages == left
    rows = store.load_partition("u")
    assert rows.seqs.size == left - WRITERS * (TURNS // 5)  # the edited ones wait
    assert follower.vectors == dict(
        zip(rows.seqs.tolist(), rows.vectors[:, 0].tolist(), strict=True)
    )
    assert list(store.verify(None)) == []
    store.close()
