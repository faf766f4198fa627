"""What is said about saved snapshots: copies of a whole store that can be restored elsewhere.

Not to be confused with the images of partitions (`SnapshotStore` in ports.py), which are derived
from the record and of no use without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from .values import CallBudget

SEQ_MAX = 2**63 - 1
"""As `record.snapshot_seq`: any message may be in a snapshot. As a revision: for ever."""


class ForgottenMessage(NamedTuple):
    """A message that is gone. `(store_id, seq)` names it for ever.

    Attributes:
        store_id: 32 hexadecimal digits.
        revision: that of its removal: snapshots of a lower revision may hold it.
    """

    store_id: str
    seq: int
    revision: int


class Origin(NamedTuple):
    """Where rows are from: seqs of this store are those of another, raised by `shift`.

    Attributes:
        store_id: of the other.
        first_seq, last_seq: in this store.
    """

    store_id: str
    first_seq: int
    last_seq: int
    shift: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a saved database says of itself.

    Attributes:
        store_id: of the store that it was made of.
        revision: it holds all changes up to this one, and none after.
        record_format: that of its tables.
        last_seq: no message in it has a higher seq.
        messages, vectors: rows.
        origins: of rows that its store took from snapshots of others.
        index_identity: of the model that its recalls are answered with, "" where that is not
            known. Not compared.
    """

    store_id: str
    revision: int
    record_format: int
    last_seq: int
    messages: int
    vectors: int
    origins: tuple[Origin, ...] = ()
    index_identity: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """A snapshot of the folder, as its manifest describes it.

    Attributes:
        name: that of its folder.
        create_time_ns: when it was made.
        state: what is in it.
        bytes: of its files.
        digest: SHA-256 of its database, in hexadecimal digits.
        index_identity: what made its vectors.
        program_version: of the program that made it.
        encrypted: its database can be read with a key only.
        forgotten: messages in its database that were forgotten since; see ForgottenMessage.
    """

    name: str
    create_time_ns: int
    state: SavedState
    bytes: int
    digest: str
    index_identity: str
    program_version: str
    encrypted: bool
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class RestoreCounts:
    """What a restore took.

    Attributes:
        messages, vectors: in the store now.
        forgotten: messages of the snapshot that were left out.
        without_ledger: no ledger lay beside the snapshot: what was forgotten since it was made may
            have come back.
    """

    messages: int
    vectors: int
    forgotten: int
    without_ledger: bool = False


class SavedDatabases(Protocol):
    """Saved databases as those see them who know what is in one (`messages`). Thread-safe.

    Files are of one name each and nobody else has them open. Raises CorruptDataError for what is
    damaged, ResourceExhaustedError (DISK_FULL), UnavailableError, FailedPreconditionError for what
    another program, another version or another key wrote; and what the budget's check raises.
    """

    def state(self, database: Path) -> SavedState:
        """What is in one."""
        ...

    def check(self, database: Path, budget: CallBudget, *, rows: bool = True) -> None:
        """Have SQLite check its pages, and compare the checksum of every row.

        Args:
            database: where it is.
            budget: ends it.
            rows: also the rows; one that was damaged when it was saved is no reason for a refusal.

        Raises CorruptDataError where something does not agree.
        """
        ...

    def count_of(self, database: Path, seqs: Sequence[int]) -> int:
        """How many of these messages are in it."""
        ...

    def rewrite(
        self, database: Path, target: Path, seqs: Sequence[int], budget: CallBudget
    ) -> SavedState:
        """Write it anew without these messages; no byte of them is in the new file."""
        ...


class SavableStore(Protocol):
    """A store that can be written to a file, and filled from one."""

    @property
    def store_id(self) -> str:
        """Identity of the data directory."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of its database, about."""
        ...

    def expect_snapshot(self) -> int:
        """From now on, and until `snapshot_made`, remember whatever is forgotten.

        Returns:
            What to give `snapshot_made` where no snapshot was made.
        """
        ...

    def give_up_snapshot(self) -> None:
        """After a start: nobody makes a snapshot, whatever the last process was about to do."""
        ...

    def save(self, target: Path, budget: CallBudget) -> None:
        """Write everything, as it is at one revision, to a file that is not there yet.

        Calls go on meanwhile. Broken off soon after the budget is over; the caller removes what
        was written.
        """
        ...

    def snapshot_made(self, last_seq: int) -> None:
        """A snapshot holds messages up to this seq; 0: there is none."""
        ...

    def forgotten(self) -> list[ForgottenMessage]:
        """What was forgotten of this store since a snapshot of it, or of its origins, was made."""
        ...

    def forgotten_of(self, seqs: Sequence[int], revision: int) -> list[ForgottenMessage]:
        """The same of these messages, which a change of this revision removed."""
        ...

    def require_empty(self) -> None:
        """Raise FailedPreconditionError (STORE_NOT_EMPTY) where there is a message."""
        ...

    def restore(self, database: Path, left_out: Sequence[int], budget: CallBudget) -> RestoreCounts:
        """Fill the store, which must be empty, with a saved database; all or nothing.

        Messages get seqs of this store. Vectors of another generation than the serving one are not
        taken: their messages wait to be embedded. Nor are rows that were damaged when they were
        saved; they are logged.

        Args:
            database: checked before.
            left_out: its messages that are not taken.
            budget: checked until the end; nothing is taken where it is over.

        Raises:
            FailedPreconditionError: STORE_NOT_EMPTY, CODEC_UNKNOWN or FORMAT_UNKNOWN.
        """
        ...
