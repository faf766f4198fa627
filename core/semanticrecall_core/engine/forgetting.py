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

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from semanticrecall_core.types.collections import VectorCollections
from semanticrecall_core.types.erasing import SavedSnapshots
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetCondition,
    ForgetOutcome,
    ForgetTarget,
)

SCANS_MAX = 3
SWEEPS_MAX = 3
NAMED_AT_ONCE = 250
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
        collections: vectors that callers bring themselves; None where none are kept.
    """

    embedders: tuple[Embedder, ...]
    images: Images | None = None
    saved: SavedSnapshots | None = None
    collections: VectorCollections | None = None


class Purged(Protocol):
    """What a purge did."""

    @property
    def snapshots_holding(self) -> tuple[str, ...]:
        """What may hold it still, by name; where there is none, no file does."""
        ...


class Purger(Protocol):
    """Makes what was forgotten leave the files (purging.py)."""

    def forgetting(self) -> AbstractContextManager[None]:
        """Something is forgotten inside; what is removed there counts once it has ended."""
        ...

    def forgotten(self) -> None:
        """Something was forgotten just now."""
        ...

    def purge(self, budget: CallBudget) -> Purged:
        """Purge all that was forgotten before this was called."""
        ...

    def erased_revision(self) -> int | None:
        """All that was removed up to there has left the files; None: all that ever was."""
        ...

    def before_each(self, work: Callable[[], None]) -> None:
        """Do this in every purge, before snapshots are rewritten; one that raises fails it."""
        ...

    def due_time_ns(self) -> int | None:
        """When it will have left them by itself, at the latest; None where that never happens."""
        ...


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """How much a Forget removed, per place.

    Attributes:
        vectors: of messages, and of collections.
        purged: nothing of it is left in the files of the data directory.
        purge_due_time_ns: when that will have been done by itself; None where `purged`, or never.
        snapshots_holding: saved snapshots whose files still hold what was removed, and what lies
            beside them and may hold it, by name.
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
    revision: int = 0
    in_snapshots: bool = False
    collected: int = 0

    def add(self, outcome: ForgetOutcome) -> None:
        self.messages += len(outcome.seqs)
        self.vectors += outcome.vectors
        self.threads += outcome.threads
        self.revision = max(self.revision, outcome.revision)
        self.in_snapshots = self.in_snapshots or bool(outcome.in_snapshots)


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
        self._untold: deque[tuple[tuple[int, ...], int]] = deque()
        self._telling = threading.Lock()
        if purger is not None:
            purger.before_each(self._tell_saved)

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
        asked = purge
        with self._noted():
            self._remove_all(resource_id, target, budget, removed)
            if removed.messages == 0:
                # Gone already, as after a call that was broken off: what it left is not known.
                self._forget_images(resource_id)
                dropped = self._forget_cached(resource_id, None)
                removed.cache_entries = dropped if target.everything else 0
            traces = self._traces()
            if target.everything and traces.collections is not None:
                removed.collected = traces.collections.forget_resource(resource_id)
            if traces.saved is not None:
                traces.saved.complete()
        if purge and self._purger is not None:
            purge = not self._purger.purge(budget).snapshots_holding
        # Who removed nothing must not learn whether others have.
        if removed.messages + removed.collected == 0 and not asked:
            return ForgetReport(0, 0, 0, removed.cache_entries, purged=False)
        return self._report(removed, purge)

    def forget_rows(self, resource_id: str, rows: tuple[tuple[int, int], ...]) -> int:
        """Remove messages by (seq, revision), as `__call__`; returns how many were there."""
        removed = _Removed()
        with self._noted():
            self._remove(resource_id, ForgetTarget(rows=rows), removed)
        return removed.messages

    # ---- inside ----

    @contextmanager
    def _noted(self) -> Generator[None]:
        """Let the purger know of a removal; one that fails may have removed a part."""
        if self._purger is None:
            yield
            return
        try:
            with self._purger.forgetting():
                yield
        finally:
            self._purger.forgotten()

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
        failure: SemanticRecallError | None = None
        parts = deque(_parts(target))
        while parts:
            outcome = self._store.forget(resource_id, parts[0])
            more = outcome.more
            if not more:
                parts.popleft()
            removed.add(outcome)
            if outcome.in_snapshots:
                self._untold.append((outcome.in_snapshots, outcome.revision))
            try:
                self._tell_saved()
            except SemanticRecallError as error:
                failure = error  # the record knows; it is told before the next purge, or start
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
        if failure is not None:
            raise failure
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

    def _tell_saved(self) -> None:
        """Write to the ledger of the saved snapshots what they may hold of what was removed."""
        saved = self._traces().saved
        with self._telling:
            while self._untold:
                if saved is not None:
                    saved.forgotten(*self._untold[0])
                self._untold.popleft()

    def _report(self, removed: _Removed, purged: bool) -> ForgetReport:
        due: int | None = None
        holding: tuple[str, ...] = ()
        if self._purger is not None and not purged:
            erased = self._purger.erased_revision()
            purged = erased is None or 0 < removed.revision <= erased
            purged = purged and not removed.collected
            if not purged:
                saved = self._traces().saved
                due = self._purger.due_time_ns()
                if saved is not None:
                    # Those that hold what others forgot are none of this caller's business.
                    names = saved.holding() if removed.in_snapshots else ()
                    holding = tuple(sorted({*names, *saved.left_out()}))
        return ForgetReport(
            messages=removed.messages,
            vectors=removed.vectors + removed.collected,
            threads=removed.threads,
            cache_entries=removed.cache_entries,
            purged=purged,
            purge_due_time_ns=due,
            snapshots_holding=tuple(holding[:HOLDING_NAMES_MAX]),
        )


def _parts(target: ForgetTarget) -> Iterator[ForgetTarget]:
    """A target that names many messages in parts, so that each is looked up once."""
    ids, rows = target.message_ids, target.rows
    if ids is not None:
        for start in range(0, max(1, len(ids)), NAMED_AT_ONCE):
            yield ForgetTarget(message_ids=ids[start : start + NAMED_AT_ONCE])
    elif rows is not None:
        for start in range(0, max(1, len(rows)), NAMED_AT_ONCE):
            yield ForgetTarget(rows=rows[start : start + NAMED_AT_ONCE])
    else:
        yield target
