"""A data directory of format 2: what is in it, and how it was made.

`tests/fixtures/format-2.tar.xz` was written by the last version that wrote this format (commit
5125df5); a later one writes another. To make it again, run from the root of a checkout of that
commit, with this file put into its tests/support:
    PYTHONPATH=tests python -m support.format_2
"""

from __future__ import annotations

import tarfile
import tempfile
from itertools import count
from pathlib import Path

import numpy as np

from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    MessageDraft,
    Role,
    VectorRecord,
)
from support.stored_messages import open_store

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "format-2.tar.xz"
GENERATION = "two numbers"
FIRST_TIME_NS = 1_700_000_000_000_000_000
FORGOTTEN = MessageDraft("forgotten", "travel", Role.USER, "Ann", "Nobody may find this again.")
BEFORE_EDIT = MessageDraft("edited", "travel", Role.ASSISTANT, "", "The ferry leaves at six.")

# What each resource has, oldest first; the time of each is FIRST_TIME_NS and its place in seconds.
CONTENT = {
    "alice": (
        MessageDraft("first", "travel", Role.USER, "Ann", "I lost my passport in Lisbon, ZX-8841."),
        MessageDraft("edited", "travel", Role.ASSISTANT, "", "The ferry leaves at seven."),
        MessageDraft(
            "tool",
            "travel",
            Role.TOOL,
            "timetable",
            "06:00 07:00",
            group_id="call 1",
            payload=b"\x00\xffbytes",
            payload_type="text/plain",
            embeddable=False,
        ),
        MessageDraft("world", "travel", Role.USER, "Zoë", "東京の天気は晴れです. Straße, ΣΊΣΥΦΟΣ"),
        MessageDraft(
            "tagged", "work", Role.USER, "Ann", "The budget is due.", metadata_json='{"k":1}'
        ),
        MessageDraft("waits", "work", Role.USER, "Ann", "This one had no vector yet."),
    ),
    "bob": (MessageDraft("first", "travel", Role.USER, "Bob", "My passport is in the drawer."),),
}
WAITING = ("alice", "waits")


def fill(store: SqliteMessageStore) -> None:
    """The history that ends in CONTENT, an edit and a deletion among it."""
    budget = CallBudget.of_seconds(60)
    for resource, drafts in CONTENT.items():
        for draft in drafts:
            given = BEFORE_EDIT if draft.id == BEFORE_EDIT.id else draft
            (outcome,) = store.append(resource, [given], budget)
            if outcome.pending and (resource, draft.id) != WAITING:
                _embed(store, resource, outcome.seq, outcome.revision)
    store.append("alice", [FORGOTTEN], budget)
    store.forget("alice", ForgetTarget(message_ids=(FORGOTTEN.id,)))
    (edited,) = [draft for draft in CONTENT["alice"] if draft.id == BEFORE_EDIT.id]
    (outcome,) = store.append("alice", [edited], budget)
    _embed(store, "alice", outcome.seq, outcome.revision)


def _embed(store: SqliteMessageStore, resource: str, seq: int, revision: int) -> None:
    vector = np.array([[1.0, seq]], np.float32)
    assert store.put_vectors([VectorRecord(resource, seq, revision, vector)]) == [True]


def unpacked(into: Path) -> Path:
    """The data directory, ready to be opened."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    return into / "data"


def make() -> None:
    """Write the archive."""
    seconds = count(FIRST_TIME_NS, 1_000_000_000)
    options = StoreOptions(clock=lambda: next(seconds))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "data"
        store = open_store(home, generation=GENERATION, options=options)
        fill(store)
        store.close()
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for name in ("LOCK", "MARK", "recall.db"):
                archive.add(home / name, f"data/{name}", filter=_nobodys)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    make()
