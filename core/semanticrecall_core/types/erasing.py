"""What Forget, purge and retention need of a record, and of the snapshots that were saved of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .values import (
    CallBudget,
    ForgetCondition,
    ForgetOutcome,
    ForgetTarget,
    PurgeState,
    RowsToForget,
)


class ErasableStore(Protocol):
    """Part of `MessageStore`; see there for what all its methods promise."""

    def forget(self, resource_id: str, target: ForgetTarget) -> ForgetOutcome:
        """Remove messages, their vectors and threads that are empty then.

        As many as one transaction takes without holding up others; where the outcome says that
        there may be more, the caller comes again. Saved snapshots may hold those of `in_snapshots`:
        that is remembered in the same transaction.
        """
        ...

    def rows_to_forget(
        self,
        resource_id: str,
        condition: ForgetCondition,
        after: tuple[int, int] | None,
        changed_after: int,
        budget: CallBudget,
    ) -> RowsToForget:
        """One page of the messages that meet a condition and changed after a revision.

        A message whose author cannot be read is not by any author. Raises DeadlineExceededError or
        CancelledError soon after the budget is over.
        """
        ...

    def purge_state(self) -> PurgeState:
        """How far the files have been freed of what was forgotten."""
        ...

    def erase(self, budget: CallBudget) -> int:
        """Free the record's files of all that was forgotten before this was called.

        Log and free pages included. Returns the revision up to which that is true. Others read and
        write meanwhile. Raises DeadlineExceededError or CancelledError where the budget is over
        first: a part has been done.
        """
        ...

    def erased(self, revision: int) -> None:
        """All that was forgotten up to this revision has left all files."""
        ...

    def resources_older_than(
        self, before_ns: int, after: str, limit: int
    ) -> tuple[list[str], str | None]:
        """Resources with a message created before this time, in pages.

        Args:
            before_ns: exclusive.
            after: "" at first, then what the last page gave.
            limit: resources looked at, not resources found.

        Returns:
            Their ids, and where the next page begins; None after the last.
        """
        ...

    def oldest_rows(
        self, resource_id: str, before_ns: int | None, messages_max: int, limit: int
    ) -> tuple[tuple[int, int], ...]:
        """(seq, revision) of what a resource is to lose, the oldest first by (create_time, seq).

        Args:
            resource_id: whose.
            before_ns: messages created before this; None for none.
            messages_max: and all but the newest so many; 0 for none.
            limit: of the rows given.
        """
        ...

    def retention_time_ns(self) -> int:
        """How far the clock of the retention had come when that was last kept; 0 before."""
        ...

    def keep_retention_time(self, time_ns: int) -> None:
        """Keep how far it has come."""
        ...


class SavedSnapshots(Protocol):
    """Saved snapshots of the whole store, as far as a Forget and a purge need them. Thread-safe.

    Raises ResourceExhaustedError (DISK_FULL) or UnavailableError where the disk fails; what was not
    written to the ledger is on record, and is written at the next start.
    """

    def forgotten(self, seqs: Sequence[int], revision: int) -> None:
        """Write to the ledger beside the snapshots that these are gone; synced on return.

        Args:
            seqs: messages that snapshots may hold.
            revision: that of their removal: snapshots of a lower one may hold them.
        """
        ...

    def complete(self) -> None:
        """Write to the ledger what a former process could not, where that is not done yet."""
        ...

    def holding(self) -> tuple[str, ...]:
        """Names of the snapshots whose files hold what was forgotten since they were made."""
        ...

    def left_out(self) -> tuple[str, ...]:
        """Names of what lies beside the snapshots, is none that can be read, and may hold it."""
        ...

    def rewrite(self, budget: CallBudget) -> tuple[str, ...]:
        """Write those anew without it, each in one step; returns their names.

        Raises DeadlineExceededError or CancelledError soon after the budget is over: some may have
        been written, each other is as it was.
        """
        ...
