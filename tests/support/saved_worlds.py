"""A record and a folder of its snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots
from semanticrecall_core.types.saving import RestoreCounts, SavedSnapshot
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    Role,
    StoredMessage,
    VectorRecord,
)
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

WAIT_S = 60.0
GENERATION = "two numbers"
DATABASE, MANIFEST, LEDGER = "recall.db", "MANIFEST.json", "FORGOTTEN"


def budget(seconds: float = WAIT_S) -> CallBudget:
    return CallBudget.of_seconds(seconds)


def vector_of(seq: int) -> np.ndarray:
    """The vector that a message of this seq was given."""
    angle = float(seq)
    return np.array([[np.cos(angle), np.sin(angle)]], np.float32)


class SavedWorld:
    """A store in `home`/`name`, with its snapshots in `home`/saved."""

    def __init__(
        self,
        home: Path,
        name: str = "data",
        *,
        generation: str = GENERATION,
        vfs: str = "",
        saved: Path | None = None,
    ) -> None:
        self.folder = saved or home / "saved"
        self.store: SqliteMessageStore = open_store(
            home / name,
            generation=generation,
            analyser=WordAnalyser(),
            options=StoreOptions(vfs=vfs),
        )
        self.databases = SqliteSavedDatabases(vfs=vfs)
        self.saving = self.store.saving(self.databases)
        self.snapshots = SavedSnapshots(self.folder, self.databases, program_version="9.9")
        self.snapshots.start(self.saving)

    def add(self, resource: str, texts: Sequence[str], *, embedded: bool = True) -> list[int]:
        """Messages whose id is their text; returns their seqs."""
        drafts = [
            MessageDraft(text, "t", Role.USER, "Ann", f"about {text}", create_time_ns=i)
            for i, text in enumerate(texts)
        ]
        outcomes = self.store.append(resource, drafts, budget())
        if embedded:
            records = [
                VectorRecord(resource, each.seq, each.revision, vector_of(each.seq))
                for each in outcomes
            ]
            assert all(self.store.put_vectors(records))
        return [each.seq for each in outcomes]

    def forget(self, resource: str, *ids: str) -> None:
        """As the engine does it: the ledger knows before the caller is answered."""
        outcome = self.store.forget(resource, ForgetTarget(message_ids=ids))
        known = self.saving.forgotten()
        self.snapshots.forgotten(m for m in known if m.seq in outcome.seqs or m.revision > 2**62)

    def create(self) -> SavedSnapshot:
        return self.snapshots.create(self.saving, "two-numbers@1/2", budget())

    def restore(self, name: str) -> RestoreCounts:
        return self.snapshots.restore(name, self.saving, budget())

    def path(self, snapshot: SavedSnapshot, file: str = DATABASE) -> Path:
        return self.folder / snapshot.name / file

    def close(self) -> None:
        self.store.close()


def content(store: SqliteMessageStore) -> dict[str, list[StoredMessage]]:
    """Every message, by resource and in order."""
    return {
        resource: store.list_messages(ListQuery(resource, None, 10_000))
        for resource in store.recent_resources(10_000)
    }


def texts(store: SqliteMessageStore) -> dict[str, list[str]]:
    """The same as ids."""
    return {
        resource: sorted(message.id for message in messages)
        for resource, messages in content(store).items()
    }


def vectors(store: SqliteMessageStore, resource: str) -> list[bytes]:
    """A resource's vectors, in order of arrival."""
    return [row.tobytes() for row in store.load_partition(resource).vectors]
