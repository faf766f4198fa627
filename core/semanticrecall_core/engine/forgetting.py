"""Forget: messages leave every answer, and whatever was made from them.

Promises, when a call returns:
  - No message that was accepted before it returned, and that the target names, is left: the last
    thing it does is to look at the record once more, on the thread that writes it.
  - Nothing of them is in a recall's reach: vectors, words, answers that are given again (the
    record's writer told those who keep them), cached vectors of their texts, images of their
    partition. An image file that cannot be removed from the disk is not used, and tried again.
  - Whoever restores a saved snapshot will find them in its ledger of what was forgotten.

It works in batches, so that the record's writer is never held for long; one that is broken off has
removed a part, and is repeated by its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from semanticrecall_core.types.erasing import SavedSnapshots
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetCondition,
    ForgetOutcome,
    ForgetTarget,
)

SCANS_MAX = 3
SWEEPS_MAX = 3
HOLDING_NAMES_MAX = 1_000


class Images(Protocol):
    """Images of partitions, as far as a Forget needs them."""

    def forget(self, resource_id: str) -> None:
        """Remove the images of a resource from the disk. What fails is tried again."""
        ...


@dataclass(frozen=True, slots=True)
class Traces:
    """What holds something of messages, beside the record and those who listen to it.

    Attributes:
        embedders: all whose caches may hold vectors of texts.
        images: of partitions; None where none are kept.
        saved: saved snapshots; None where none are kept.
    """

    embedders: tuple[Embedder, ...]
    images: Images | None = None
    saved: SavedSnapshots | None = None


class Purger(Protocol):
    """Makes what was forgotten leave the files (purging.py)."""

    def forgotten(self) -> None:
        """Something was forgotten just now."""
        ...

    def purge(self, budget: CallBudget) -> object:
        """Purge all that was forgotten before this was called."""
        ...

    def pending(self) -> bool:
        """Whether anything forgotten is still in the files."""
        ...

    def due_time_ns(self) -> int | None:
        """When it will have left them by itself; None where that never happens."""
        ...


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """How much a Forget removed, per place.

    Attributes:
        purged: nothing of it is left in the files of the data directory.
        purge_due_time_ns: when that will have been done by itself; None where `purged`, or never.
        snapshots_holding: saved snapshots whose files still hold what was removed, by name.
    """

    messages: int
    vectors: int
    threads: int
    cache_entries: int
    purged: bool = True
    purge_due_time_ns: int | None = None
    snapshots_holding: tuple[str, ...] = ()


@dataclass(slots=True)
class _Removed:
    """What the batches of one call removed so far."""

    messages: int = 0
    vectors: int = 0
    threads: int = 0
    cache_entries: int = 0

    def add(self, outcome: ForgetOutcome) -> None:
        self.messages += len(outcome.seqs)
        self.vectors += outcome.vectors
        self.threads += outcome.threads


class Forgetting:
    """The use case. Thread-safe."""

    def __init__(
        self, store: MessageStore, traces: Callable[[], Traces], purger: Purger | None = None
    ) -> None:
        """Put it over a record.

        Args:
            store: the record.
            traces: what else holds something now; asked in every call.
            purger: None where nothing is ever purged.
        """
        self._store = store
        self._traces = traces
        self._purger = purger

    def __call__(
        self, resource_id: str, target: ForgetTarget, budget: CallBudget, *, purge: bool = False
    ) -> ForgetReport:
        """Remove what the target names.

        Args:
            resource_id: whose.
            target: see there.
            budget: breaks off the search for what a condition names, and the wait for a purge;
                never a removal.
            purge: return when nothing of it is left in the files either.
        """
        removed = _Removed()
        self._remove_all(resource_id, target, budget, removed)
        if removed.messages == 0:
            # Gone already, as after a call that was broken off: what it left is not known.
            self._forget_images(resource_id)
            dropped = self._forget_cached(resource_id, None)
            removed.cache_entries = dropped if target.everything else 0
        if removed.messages and self._purger is not None:
            self._purger.forgotten()
        if purge and self._purger is not None:
            self._purger.purge(budget)
        return self._report(removed)

    def forget_rows(self, resource_id: str, rows: tuple[tuple[int, int], ...]) -> int:
        """Remove messages by (seq, revision), as `__call__`; returns how many were there."""
        removed = _Removed()
        self._remove(resource_id, ForgetTarget(rows=rows), removed)
        if removed.messages and self._purger is not None:
            self._purger.forgotten()
        return removed.messages

    # ---- inside ----

    def _remove_all(
        self, resource_id: str, target: ForgetTarget, budget: CallBudget, removed: _Removed
    ) -> None:
        if target.condition is not None and target.condition.picks:
            changed_after = self._remove_found(resource_id, target.condition, budget, removed)
            target = ForgetTarget(condition=target.condition, changed_after=changed_after)
        self._remove(resource_id, target, removed)
        # What was stored since, while caches and images were seen to.
        for _ in range(SWEEPS_MAX):
            if not removed.messages or not self._remove(resource_id, target, removed):
                return

    def _remove_found(
        self,
        resource_id: str,
        condition: ForgetCondition,
        budget: CallBudget,
        removed: _Removed,
    ) -> int:
        """Remove what a search beside the writer finds.

        Returns the revision after which nothing was looked at.
        """
        changed_after = 0
        for _ in range(SCANS_MAX):
            first_revision: int | None = None
            found = False
            after: tuple[int, int] | None = None
            while True:
                page = self._store.rows_to_forget(
                    resource_id, condition, after, changed_after, budget
                )
                first_revision = page.revision if first_revision is None else first_revision
                if page.rows:
                    found = True
                    self._remove(resource_id, ForgetTarget(rows=page.rows), removed)
                if page.after is None:
                    break
                after = page.after
            changed_after = first_revision
            if not found:
                break
        return changed_after

    def _remove(self, resource_id: str, target: ForgetTarget, removed: _Removed) -> int:
        """Remove in batches until none is left; returns how many there were."""
        before = removed.messages
        texts: list[str] | None = None if target.everything else []
        more = True
        while more:
            outcome = self._store.forget(resource_id, target)
            more = outcome.more
            removed.add(outcome)
            self._tell_saved(outcome)
            if outcome.texts_left_out or more:
                if texts is not None:
                    # At once: who breaks off here must not leave what nobody can name any more.
                    removed.cache_entries += self._forget_cached(resource_id, None)
                texts = None
            elif texts is not None:
                texts.extend(outcome.texts)
        if removed.messages > before:
            self._forget_images(resource_id)
            removed.cache_entries += self._forget_cached(resource_id, texts)
        return removed.messages - before

    def _forget_images(self, resource_id: str) -> None:
        images = self._traces().images
        if images is not None:
            images.forget(resource_id)

    def _forget_cached(self, resource_id: str, texts: Sequence[str] | None) -> int:
        """Drop cached vectors of these texts, or all that a resource has; returns how many."""
        dropped = 0
        for embedder in self._traces().embedders:
            if texts is None:
                dropped += embedder.forget_owner(resource_id)
            else:
                dropped += embedder.forget_texts(texts, resource_id)
        return dropped

    def _tell_saved(self, outcome: ForgetOutcome) -> None:
        """Write to the ledger of the saved snapshots what they may hold of it."""
        saved = self._traces().saved
        if saved is not None and outcome.in_snapshots:
            saved.forgotten(outcome.in_snapshots, outcome.revision)

    def _report(self, removed: _Removed) -> ForgetReport:
        saved = self._traces().saved
        purged = self._purger is None or not self._purger.pending()
        due = None if purged or self._purger is None else self._purger.due_time_ns()
        holding = () if purged or saved is None else saved.holding()
        return ForgetReport(
            messages=removed.messages,
            vectors=removed.vectors,
            threads=removed.threads,
            cache_entries=removed.cache_entries,
            purged=purged,
            purge_due_time_ns=due,
            snapshots_holding=tuple(holding[:HOLDING_NAMES_MAX]),
        )
