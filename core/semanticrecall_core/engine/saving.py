"""Saving the whole store, and what a restore changes for those that follow the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semanticrecall_core.saving import SavedSnapshots
from semanticrecall_core.types.saving import RestoreCounts, SavableStore, SavedSnapshot
from semanticrecall_core.types.values import CallBudget


class Saving:
    """The use cases of saved snapshots. Thread-safe.

    Raises what `SavedSnapshots` does.
    """

    def __init__(
        self,
        store: SavableStore,
        snapshots: SavedSnapshots,
        *,
        index_identity: Callable[[], str],
        take_up_pending: Callable[[], None],
    ) -> None:
        """Put the parts together.

        Args:
            store: the record.
            snapshots: the folder.
            index_identity: of the vectors that are searched now.
            take_up_pending: has embedded what waits for it after a restore.
        """
        self._store = store
        self._snapshots = snapshots
        self._index_identity = index_identity
        self._take_up_pending = take_up_pending

    def start(self) -> None:
        """Remove what the last process left half made, and complete the ledger."""
        self._snapshots.start(self._store)

    def create(self, budget: CallBudget) -> SavedSnapshot:
        """Save the store as it is at one revision, while calls go on."""
        return self._snapshots.create(self._store, self._index_identity(), budget)

    def snapshots(self) -> tuple[SavedSnapshot, ...]:
        """Those in the folder, newest first."""
        return self._snapshots.snapshots()

    def names(self) -> tuple[str, ...]:
        """Those that should be in the folder, sound or not."""
        return self._snapshots.names()

    def damaged(self) -> dict[str, int]:
        """How many were found damaged since the start; see `SavedSnapshots.damaged`."""
        return self._snapshots.damaged()

    def verify(self, name: str, budget: CallBudget) -> SavedSnapshot:
        """Read all of one; CorruptDataError where something does not agree."""
        return self._snapshots.verify(name, budget)

    def delete(self, name: str, budget: CallBudget) -> None:
        """Remove one; NotFoundError where there is none of this name."""
        self._snapshots.delete(name, budget)

    def restore(self, name: str, budget: CallBudget) -> RestoreCounts:
        """Fill the store, which must be empty, with one; all or nothing.

        The commit listeners are told of every resource; what has no vectors of the model that
        serves is embedded in the background.
        """
        counts = self._snapshots.restore(name, self._store, budget)
        self._take_up_pending()
        return counts

    def forgotten(self, seqs: Sequence[int], revision: int) -> None:
        """A change of this revision removed messages that snapshots may hold.

        On disk when this returns, so that no restore brings them back.
        """
        self._snapshots.forgotten(self._store.forgotten_of(seqs, revision))

    def complete(self) -> None:
        """Make up for a start at which the folder could not be used.

        Whoever repeats a Forget that failed then is answered when the ledger knows.
        """
        self._snapshots.complete(self._store)

    def holding(self) -> tuple[str, ...]:
        """Names of snapshots whose files still hold what was forgotten, sorted."""
        self.complete()
        return self._snapshots.holding()

    def left_out(self) -> tuple[str, ...]:
        """What lies in the folder, is no snapshot that is listed, and may hold messages of ours."""
        return self._snapshots.left_out(self._store)

    def rewrite(self, budget: CallBudget) -> tuple[str, ...]:
        """Write those anew without it; returns their names."""
        return self._snapshots.rewrite(self._store, budget)
