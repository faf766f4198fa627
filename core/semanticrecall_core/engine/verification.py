"""Verify: comparing all that is kept of the messages, saying what does not agree, mending it.

The stages, in the order in which they build on each other: the record's file and rows (`database`,
`messages`, `vectors`, `words`, see messages/verifying.py for the kinds of findings), then what was
made from it:

  PARTITION_DIFFERS   a message's vectors in memory are not those on record.
  WORDS_DIFFER        the words in memory are of another revision of a message than the record's.
  IMAGE_DAMAGED       an image of a partition does not match its checksum, or its file is damaged.
  IMAGE_UNRECORDED    an image holds rows of messages that are not on record. Rows of edited
                      messages are no finding: they are never used, and go with the next image.
  SNAPSHOT_DAMAGED    a saved snapshot is not what its manifest says. Nothing can mend it.
  PAGE_DAMAGED, COLLECTION_DAMAGED, VECTOR_ROW_DAMAGED   in collections of vectors: see
                      collections/verifying.py. Nothing mends them.
  MESSAGE_LOST        a repair has removed a message that could not be read or did not match its
                      checksum. Never mended: only a saved snapshot or an export may have it.

What changes while it is read is looked at once more, and reported only if it still differs in the
same way. Between the two looks the indexes are told of all that was on record at the first one, so
that a change on its way to them is never taken for damage, however many there are. Nothing is
changed unless a repair is asked for. A repair mends stage by stage, so that
one that is killed has mended a part, and ends with recalls of stored messages by their own text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import structlog

from semanticrecall_core.engine.differences import Difference, by_seq, differences, digests
from semanticrecall_core.types.collections import VectorCollections
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FailedPreconditionError,
    NotFoundError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.lexical import LexicalIndex
from semanticrecall_core.types.ports import MessageStore, VectorIndex
from semanticrecall_core.types.recalling import Mode, RecallAnswer, RecallQuery
from semanticrecall_core.types.stored_message import StoredMessage
from semanticrecall_core.types.values import CallBudget, Finding
from semanticrecall_core.types.verifying import (
    ImageCheck,
    LostMessage,
    MendReport,
    RecordDamage,
    VerifyProgress,
    VerifyReport,
)

PROGRESS_SECONDS = 0.5
"""Progress is told as often at most."""

SELF_TEST_MESSAGES = 100
IMAGE_LOOKS_SECONDS = (0.1, 0.2, 0.4, 0.8)
"""Pauses before further looks at an image: it goes a while after the rows that it holds."""

REPAIR_RETRY_MS = 1_000
MENDED_AT_ONCE = 256
LOST_TOLD_MAX = 1_000
"""Lost messages that are named, each in a finding; one more says how many others there are."""

_FILE_KINDS = frozenset({"DATABASE_CORRUPT", "PAGE_DAMAGED"})
_DIMENSIONS = "VECTOR_DIMENSIONS"
_ROW_CORRUPT = "ROW_CORRUPT"
_SELF_TEST_COSINE = 0.999
_log = structlog.get_logger(__name__)

Event = Finding | VerifyProgress
VerifyEvent = Finding | VerifyProgress | VerifyReport
Recall = Callable[[RecallQuery, CallBudget], RecallAnswer]


class VerifiedImages(Protocol):
    """Images of partitions, as far as Verify needs them."""

    def examine(self, resource_id: str | None) -> Iterator[ImageCheck]:
        """Read every image that is on the disk, of one resource or of all."""
        ...

    def forget(self, resource_id: str) -> None:
        """Remove the images of a resource; another one is written when it is worth it."""
        ...

    def forget_damaged_files(self) -> None:
        """Remove files of which nothing can be read."""
        ...


class VerifiedSnapshots(Protocol):
    """Saved snapshots, as far as Verify needs them."""

    def names(self) -> Sequence[str]:
        """Those that are there, sound or not."""
        ...

    def verify(self, name: str, budget: CallBudget) -> object:
        """Read one whole. Raises CorruptDataError, NotFoundError."""
        ...


@dataclass(frozen=True, slots=True)
class VerifiedParts:
    """What is compared with the record, and the recalls that a repair ends with."""

    index: VectorIndex
    lexical: LexicalIndex | None
    images: VerifiedImages | None
    saved: VerifiedSnapshots | None
    dimensions: int
    recall: Recall
    take_up_pending: Callable[[], None]
    collections: VectorCollections | None = None


class Verification:
    """The use case Verify. Thread-safe; repairs go one at a time."""

    def __init__(self, store: MessageStore, parts: Callable[[], VerifiedParts]) -> None:
        """`parts`: those that serve now; asked at each look: another model may come meanwhile."""
        self._store = store
        self._parts = parts
        self._repairing = threading.Lock()

    def __call__(
        self, resource_id: str | None, budget: CallBudget | None, *, repair: bool = False
    ) -> Iterator[VerifyEvent]:
        """Findings and progress as they come, then the report. See Engine.verify.

        Raises UnavailableError (REPAIR_RUNNING) where another repair goes on.
        """
        budget = budget or CallBudget(float("inf"))
        if not repair:
            yield from _Run(self._store, self._parts, resource_id, budget, repair=False)()
            return
        # Never waited for: it may need the thread that would wait here to come to its end.
        if not self._repairing.acquire(blocking=False):
            raise UnavailableError(
                "another repair is under way; come back later",
                reason="REPAIR_RUNNING",
                retry_after_ms=REPAIR_RETRY_MS,
            )
        try:
            yield from _Run(self._store, self._parts, resource_id, budget, repair=True)()
        finally:
            self._repairing.release()


class _Run:
    """One call."""

    def __init__(
        self,
        store: MessageStore,
        parts: Callable[[], VerifiedParts],
        resource_id: str | None,
        budget: CallBudget,
        *,
        repair: bool,
    ) -> None:
        self._store = store
        self._serving = parts
        self._dimensions = parts().dimensions
        self._resource_id = resource_id
        self._budget = budget
        self._repair = repair
        self._done: dict[str, int] = {}
        self._findings = 0
        self._repaired = 0
        self._self_test_failures = 0
        self._told = time.monotonic()
        self._file_mended: bool | None = None
        self._lost: set[int] = set()

    @property
    def _parts(self) -> VerifiedParts:
        return self._serving()

    def __call__(self) -> Iterator[VerifyEvent]:
        stages = [self._record(), self._partitions(), self._images(), self._collections()]
        stages.append(self._saved())
        if self._repair:
            stages.append(self._self_test())
        for stage in stages:
            for event in stage:
                self._budget.check()
                if isinstance(event, Finding):
                    self._findings += 1
                    self._repaired += event.repaired
                    yield event
                elif self._is_time():
                    yield event
        done = self._done.get
        report = VerifyReport(
            messages=done("messages", 0),
            vectors=done("vectors", 0),
            findings=self._findings,
            repaired=self._repaired,
            analyses=done("words", 0),
            images=done("images", 0),
            snapshots=done("snapshots", 0),
            self_test_recalls=done("self-test", 0),
            self_test_failures=self._self_test_failures,
            lost=len(self._lost),
        )
        if self._repair:
            _log.info(
                "repair_ended",
                findings=report.findings,
                repaired=report.repaired,
                lost=report.lost,
                self_test_recalls=report.self_test_recalls,
                self_test_failures=report.self_test_failures,
            )
        yield report

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS:
            return False
        self._told = now
        return True

    def _progress(self, stage: str, done: int, total: int) -> VerifyProgress:
        self._done[stage] = done
        return VerifyProgress(stage, done, total)

    # ---- the record ----

    def _record(self) -> Iterator[Event]:
        waiting: list[RecordDamage] = []
        events = self._store.care.examine(self._resource_id, self._budget, self._dimensions)
        for event in events:
            if isinstance(event, RecordDamage):
                waiting.append(event)
                if len(waiting) < MENDED_AT_ONCE:
                    continue
            yield from self._mended(waiting)
            waiting = []
            if isinstance(event, VerifyProgress):
                yield self._progress(event.stage, event.done, event.total)
        yield from self._mended(waiting)
        if len(self._lost) > LOST_TOLD_MAX:
            others = f"{len(self._lost) - LOST_TOLD_MAX:,} more messages were removed"
            yield Finding("MESSAGE_LOST", "", "", others)

    def _mended(self, damages: list[RecordDamage]) -> Iterator[Finding]:
        """The findings, mended first where that is asked for."""
        if any(damage.finding.kind == _DIMENSIONS for damage in damages):
            self._store.care.caught_up(self._budget)
            if self._parts.dimensions != self._dimensions:  # of the model that served before
                damages = [d for d in damages if d.finding.kind != _DIMENSIONS]
        if not self._repair:
            yield from (damage.finding for damage in damages)
            return
        rows = [d for d in damages if d.finding.kind not in _FILE_KINDS]
        if len(rows) < len(damages) and self._file_mended is None:
            below = [d for d in damages if d.finding.kind in _FILE_KINDS]
            report = self._mend_file(below)
            self._file_mended = all(report.repaired)
            yield from self._told_lost(report.lost)
        for damage in damages:
            if damage.finding.kind in _FILE_KINDS:
                yield replace(damage.finding, repaired=bool(self._file_mended))
        if not rows:
            return
        report = self._store.care.mend(rows)
        self._forget_images({one.resource_id for one in report.lost})
        yield from self._told_lost(report.lost)
        for damage, repaired in zip(rows, report.repaired, strict=True):
            if damage.finding.kind != _ROW_CORRUPT or damage.seq not in self._lost:
                yield replace(damage.finding, repaired=repaired)

    def _told_lost(self, lost: Sequence[LostMessage]) -> Iterator[Finding]:
        for one in lost:
            self._lost.add(one.seq)
            if len(self._lost) <= LOST_TOLD_MAX:
                what = f"row {one.seq} was damaged and is removed"
                yield Finding("MESSAGE_LOST", one.resource_id, one.message_id, what)

    def _mend_file(self, damages: list[RecordDamage]) -> MendReport:
        care, parts = self._store.care, self._parts
        report = care.mend_file(damages)
        self._forget_images({one.resource_id for one in report.lost})
        for resource_id in self._resources_in_memory():
            care.drop_resource(resource_id)
        parts.take_up_pending()
        return report

    def _resources_in_memory(self) -> list[str]:
        loaded = set(self._parts.index.resources_loaded())
        if self._parts.lexical is not None:
            loaded.update(self._parts.lexical.resources_loaded())
        return sorted(loaded)

    def _forget_images(self, resource_ids: set[str]) -> None:
        """Images may hold vectors of messages that are no more on record."""
        if self._parts.images is not None:
            for resource_id in sorted(resource_ids - {""}):
                self._parts.images.forget(resource_id)

    # ---- partitions in memory ----

    def _partitions(self) -> Iterator[Event]:
        if self._resource_id is not None:
            names = [self._resource_id]
        else:
            names = self._resources_in_memory()
        for done, name in enumerate(names):
            self._budget.check()
            try:
                yield from self._partition(name)
            except CorruptDataError as error:
                yield _not_comparable(error, name)
            yield self._progress("partitions", done + 1, len(names))

    def _partition(self, resource_id: str) -> Iterator[Finding]:
        findings = [
            Finding(kind, resource_id, "", f"row {seq}", repaired=self._repair)
            for kind, look in (
                ("PARTITION_DIFFERS", self._vectors_that_differ),
                ("WORDS_DIFFER", self._words_that_differ),
            )
            for seq in self._still_differing(partial(look, resource_id))
        ]
        if findings and self._repair:
            self._store.care.drop_resource(resource_id)
        yield from findings

    def _still_differing(self, look: Callable[[], set[Difference]]) -> list[int]:
        """Messages that differ, and differ in the same way when they are looked at once more.

        A difference names a revision on record or in the index. The index has been told of all
        that was on record at the first look before the second one: who differs in the same way
        has not followed.
        """
        differing = look()
        if differing:
            self._store.care.caught_up(self._budget)
            differing &= look()
        return sorted({seq for seq, _, _ in differing})

    def _vectors_that_differ(self, resource_id: str) -> set[Difference]:
        record, corrupt = self._store.care.partition(resource_id)
        searched = digests(self._parts.index.partition_rows(resource_id))
        return differences(digests(record), searched, set(corrupt.tolist()))

    def _words_that_differ(self, resource_id: str) -> set[Difference]:
        if self._parts.lexical is None:
            return set()
        seqs, revisions = self._parts.lexical.partition_seqs(resource_id)
        recorded, recorded_revisions, corrupt = self._store.care.texts(resource_id)
        return differences(
            by_seq(recorded, recorded_revisions),
            by_seq(seqs, revisions),
            set(corrupt.tolist()),
        )

    # ---- images ----

    def _images(self) -> Iterator[Event]:
        images = self._parts.images
        if images is None:
            return
        doubtful: dict[str, set[int]] = {}
        for done, check in enumerate(images.examine(self._resource_id)):
            self._budget.check()
            try:
                doubtful[check.resource_id] = self._unrecorded(check)
            except CorruptDataError as error:
                yield _not_comparable(error, check.resource_id)
            if check.image is None:
                where = check.file or "the image does not match its checksum"
                yield self._bad_image("IMAGE_DAMAGED", check.resource_id, where)
            yield self._progress("images", done + 1, 0)
        yield from self._images_unrecorded(doubtful)

    def _images_unrecorded(self, doubtful: dict[str, set[int]]) -> Iterator[Finding]:
        """Images that go on holding rows of the same messages, which are not on record."""
        for pause_s in IMAGE_LOOKS_SECONDS:
            doubtful = {resource_id: seqs for resource_id, seqs in doubtful.items() if seqs}
            if not doubtful:
                return
            time.sleep(min(pause_s, max(0.0, self._budget.remaining())))
            self._budget.check()
            images = self._parts.images
            assert images is not None
            for resource_id, seqs in doubtful.items():
                again = [self._unrecorded(check) for check in images.examine(resource_id)]
                seqs.intersection_update(set().union(*again))
        for resource_id, seqs in doubtful.items():
            if seqs:
                what = f"rows of {len(seqs)} messages that are not on record"
                yield self._bad_image("IMAGE_UNRECORDED", resource_id, what)

    def _unrecorded(self, check: ImageCheck) -> set[int]:
        """Messages of an image that are not on record."""
        if check.image is None:
            return set()
        seqs = np.unique(check.image.rows.seqs)
        there = self._store.care.seqs_there(check.resource_id, seqs)
        return set(np.setdiff1d(seqs, there, assume_unique=True).tolist())

    def _bad_image(self, kind: str, resource_id: str, what: str) -> Finding:
        images = self._parts.images
        if self._repair and images is not None:
            if resource_id:
                images.forget(resource_id)
            else:
                images.forget_damaged_files()
        return Finding(kind, resource_id, "", what, repaired=self._repair)

    # ---- collections ----

    def _collections(self) -> Iterator[Event]:
        if self._parts.collections is not None:
            yield from self._parts.collections.verify(self._resource_id, self._budget)

    # ---- saved snapshots ----

    def _saved(self) -> Iterator[Event]:
        saved = self._parts.saved
        if saved is None or self._resource_id is not None:
            return
        names = saved.names()
        for done, name in enumerate(names):
            try:
                saved.verify(name, self._budget)
            except NotFoundError:
                continue  # deleted meanwhile
            except FailedPreconditionError as error:
                _log.warning("snapshot_not_verified", snapshot=name, reason=error.reason)
                continue  # a later version made it: it may be sound
            except CorruptDataError as error:
                yield Finding("SNAPSHOT_DAMAGED", "", "", f"{name}: {error.message}")
            yield self._progress("snapshots", done + 1, len(names))

    # ---- the end of a repair ----

    def _self_test(self) -> Iterator[Event]:
        """Recall stored messages by their own text: by vectors, and by vectors and words."""
        modes = [Mode.DENSE] if self._parts.lexical is None else [Mode.DENSE, Mode.HYBRID]
        sample = self._store.care.sample(self._resource_id, SELF_TEST_MESSAGES)
        for done, message in enumerate(sample):
            self._budget.check()
            try:
                came_first = all(self._comes_first(message, mode) for mode in modes)
            except CorruptDataError:
                came_first = False
            if not came_first:
                self._self_test_failures += 1
                _log.error("repair_self_test_failed", seq=message.seq)
            yield self._progress("self-test", done + 1, len(sample))

    def _comes_first(self, message: StoredMessage, mode: Mode) -> bool:
        query = RecallQuery(
            message.resource_id, message.text, top_k=1, before=0, after=0, mode=mode
        )
        try:
            answer = self._parts.recall(query, self._budget)
        except CorruptDataError:
            raise
        except SemanticRecallError as error:
            _log.warning("repair_self_test_not_run", reason=error.reason)
            raise
        best = [m for m in answer.messages if m.rank == 1]
        if not best:
            return False
        if best[0].message.seq == message.seq or best[0].message.text == message.text:
            return True
        found = best[0].found
        return found is not None and (found.cosine or 0.0) >= _SELF_TEST_COSINE


def _not_comparable(error: CorruptDataError, resource_id: str) -> Finding:
    """The record of a resource cannot be read: it is said where it was met."""
    kind = error.reason if error.reason in _FILE_KINDS else "DATABASE_CORRUPT"
    return Finding(kind, resource_id, "", "what is on record of it cannot be read")
