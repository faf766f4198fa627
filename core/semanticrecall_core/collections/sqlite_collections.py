"""Named collections of vectors: the port `VectorCollections` over a file and memory.

A change holds the lock of its collection from reading what it depends on until what is in memory
has followed it; the file's own lock is taken inside, for the transaction alone. A search takes
neither once its collection is in memory. Reading a collection into memory holds its lock too, so
that no change of it can be missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from ..types.collections import (
    COLLECTION_NOT_FOUND,
    TOO_MANY_COLLECTIONS,
    VECTOR_NOT_FOUND,
    CollectionCounts,
    CollectionInfo,
    CollectionLimits,
    Metric,
    UpsertCounts,
    VectorChange,
    VectorEntry,
    VectorMatch,
    VectorQuery,
    VectorSelection,
)
from ..types.errors import (
    CorruptDataError,
    InvalidArgumentError,
    LimitReachedError,
    NotFoundError,
    UnavailableError,
)
from ..types.values import CallBudget, Finding
from . import changing
from .acknowledged import CommitMark
from .file_format import CollectionsFile
from .filter_parsing import parse_filter
from .given import as_metadata, as_stored, as_vector, require_same, selected
from .loaded import LoadedCollection, StoredVector
from .removing import PAUSE_S, Remover
from .residents import Name, Residents
from .sizes import Sizes, text_bytes_of
from .storage import CollectionRow, CollectionStorage
from .verifying import findings

if TYPE_CHECKING:
    import apsw

_LOCKS: Final = 64
_WAIT_S: Final = 0.1
_ROWS_BETWEEN_CHECKS: Final = 1_000
_ROW_BYTES: Final = 500  # of a vector in memory beside its numbers, before it is read
_log = structlog.get_logger(__name__)


class SqliteVectorCollections:
    """See `VectorCollections` in types/collections.py for what each method promises."""

    def __init__(
        self,
        file: CollectionsFile,
        limits: CollectionLimits | None = None,
        mark: Callable[[], CommitMark] | None = None,
        *,
        accept_loss: bool = False,
    ) -> None:
        """Open the file if there is one; it is made with the first collection.

        A file that is damaged is none to be started without: calls that need it say so.

        Args:
            file: where it is; nobody else opens it meanwhile.
            limits: how large collections may grow.
            mark: opens what the file is held against, so that a lost change is noticed; None holds
                it against nothing.
            accept_loss: go on with a file that has lost acknowledged changes.

        Raises:
            FailedPreconditionError: FORMAT_UNKNOWN or FOREIGN_DATABASE: the file is of a newer
                version, or of another program.
            UnavailableError: the disk failed.
        """
        self._file = file
        self._mark = mark
        self._accept_loss = accept_loss
        self._limits = limits or CollectionLimits()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._opening = threading.Lock()
        self._residents = Residents(self._limits.bytes_max)
        self._sizes = Sizes(self._limits)
        self._remover: Remover | None = None
        self._tell_removed: Callable[[], None] = lambda: None
        self._closed = False
        self._storage: CollectionStorage | None = None
        self._fault: CorruptDataError | None = None
        if file.path.exists():
            try:
                self._storage = self._open()
            except CorruptDataError as error:
                self._fault = error
                _log.error("collections_not_opened", reason=error.reason)

    # ---- collections ----

    def create(
        self, resource_id: str, name: str, dimensions: int, metric: Metric
    ) -> tuple[CollectionInfo, bool]:
        """Make a collection; see the port."""
        storage = self._opened() or self._made()
        with self._held((resource_id, name), None):
            with storage.read() as connection:
                row = storage.find(connection, resource_id, name)
            if row is not None:
                require_same(row, dimensions, metric)
                return row.info, False
            with storage.change() as connection:
                count = len(changing.names_of(connection, resource_id))
                if count >= self._limits.collections_max:
                    raise LimitReachedError(
                        f"the resource has {count} collections, as many as are allowed",
                        reason=TOO_MANY_COLLECTIONS,
                    )
                changing.insert_collection(connection, resource_id, name, dimensions, metric)
        return CollectionInfo(name, dimensions, metric, 0), True

    def list(self, resource_id: str) -> Sequence[CollectionInfo]:
        """The collections of a resource, by name."""
        storage = self._opened()
        if storage is None:
            return []
        with storage.read() as connection:
            return [row.info for row in storage.of_resource(connection, resource_id)]

    def describe(self, resource_id: str, name: str) -> CollectionInfo:
        """One collection."""
        return self._row((resource_id, name)).info

    def delete(self, resource_id: str, name: str, budget: CallBudget | None = None) -> int | None:
        """Remove a collection; see the port."""
        storage = self._opened()
        if storage is None:
            return None
        with self._held((resource_id, name), budget):
            try:
                with storage.change(budget) as connection:
                    dropped = changing.drop_collection(connection, resource_id, name)
            finally:
                self._residents.drop((resource_id, name))
        if dropped is None:
            return None
        key, vectors = dropped
        self._sizes.forget(key)
        if self._remover is not None:
            self._remover.start()
        self._tell_removed()
        return vectors

    def forget_resource(self, resource_id: str) -> int:
        """Remove all collections of a resource; see the port."""
        storage = self._opened()
        if storage is None:
            return 0
        with storage.read() as connection:
            names = changing.names_of(connection, resource_id)
        return sum(self.delete(resource_id, name) or 0 for name in names)

    # ---- vectors ----

    def upsert(
        self,
        resource_id: str,
        name: str,
        entries: Sequence[VectorEntry],
        delete_filter: Mapping[str, object] | None,
        budget: CallBudget,
    ) -> UpsertCounts:
        """Add vectors or replace those of the same ids; see the port."""
        condition = parse_filter(delete_filter, "delete_filter")
        place = (resource_id, name)
        with self._held(place, budget):
            row = self._row(place, budget)
            put = as_stored(entries, row.dimensions, row.metric, self._limits.metadata_bytes_max)
            loaded = self._residents.get(place)
            removed: Sequence[str] = ()
            if condition is not None:
                loaded = loaded or self._read_in(place, budget)
                removed = loaded.ids_matching(condition, budget)
            text_bytes = self._text_bytes(row, len(put), budget)
            with self._changing(place, row, budget) as connection:
                gone = changing.text_bytes_going(connection, row.key, removed, text_bytes)
                deleted = changing.remove_known(connection, row.key, removed)
                ids = [one.id for one in put]
                replaced = changing.count_there(connection, row.key, ids)
                vectors = row.vectors - deleted + len(put) - replaced
                gone += changing.text_bytes_going(connection, row.key, ids, text_bytes)
                added = text_bytes_of(put) - gone
                self._sizes.require_room(row, vectors, text_bytes, added)
                changing.put_vectors(connection, row.key, put)
                changing.set_vectors(connection, row.key, vectors)
                if deleted:
                    changing.note_removed(connection)
            self._follow(place, loaded, removed, put)
        if deleted:
            self._tell_removed()
        return UpsertCounts(len(put) - replaced, replaced, deleted)

    def query(
        self, resource_id: str, name: str, query: VectorQuery, budget: CallBudget
    ) -> Sequence[VectorMatch]:
        """The nearest vectors among those that match; see the port."""
        condition = parse_filter(query.filter, "filter")
        if query.values is None and condition is None:
            raise InvalidArgumentError.of("filter", "is required where there are no values")
        loaded = self._loaded((resource_id, name), budget)
        values = (
            None
            if query.values is None
            else as_vector(query.values, loaded.dimensions, loaded.metric, "values")
        )
        try:
            return loaded.search(query, values, condition, budget)
        finally:
            if condition is not None:
                self._residents.measure((resource_id, name))

    def update(
        self,
        resource_id: str,
        name: str,
        selection: VectorSelection,
        change: VectorChange,
        budget: CallBudget,
    ) -> int:
        """Change the vectors chosen; see the port."""
        condition = selected(selection)
        place = (resource_id, name)
        with self._held(place, budget):
            row = self._row(place, budget)
            values = (
                None
                if change.values is None
                else as_vector(change.values, row.dimensions, row.metric, "values")
            )
            loaded = self._residents.get(place) or self._read_in(place, budget)
            if condition is not None:
                ids: Sequence[str] = loaded.ids_matching(condition, budget)
            else:
                ids = list(dict.fromkeys(selection.ids or ()))
            put = []
            for done, id in enumerate(ids):
                if done % _ROWS_BETWEEN_CHECKS == 0:
                    budget.check()
                before = loaded.stored(id)
                if before is None:
                    raise NotFoundError(
                        "selection.ids: not all of them are in the collection",
                        reason=VECTOR_NOT_FOUND,
                    )
                after = before.values if values is None else values
                put.append(StoredVector(id, after, self._merged(before, change.metadata)))
            if put:
                text_bytes = self._text_bytes(row, 0, budget)
                with self._changing(place, row, budget) as connection:
                    gone = changing.text_bytes_going(connection, row.key, ids, text_bytes)
                    added = text_bytes_of(put) - gone
                    self._sizes.require_room(row, row.vectors, text_bytes, added)
                    changing.put_vectors(connection, row.key, put)
                    changing.set_vectors(connection, row.key, row.vectors)
                self._follow(place, loaded, (), put)
        return len(put)

    def _merged(self, before: StoredVector, fields: Mapping[str, object] | None) -> bytes:
        if fields is None:
            return before.metadata
        merged = {**orjson.loads(before.metadata), **fields}
        return as_metadata(merged, self._limits.metadata_bytes_max, "metadata")

    def delete_vectors(
        self, resource_id: str, name: str, selection: VectorSelection, budget: CallBudget
    ) -> int:
        """Remove the vectors chosen; see the port."""
        condition = selected(selection)
        place = (resource_id, name)
        deleted = 0
        try:
            with self._held(place, budget):
                row = self._row(place, budget)
                loaded = self._residents.get(place)
                if condition is not None:
                    loaded = loaded or self._read_in(place, budget)
                    ids: Sequence[str] = loaded.ids_matching(condition, budget)
                else:
                    ids = list(dict.fromkeys(selection.ids or ()))
                for start in range(0, len(ids), changing.REMOVED_AT_ONCE):
                    if start:
                        time.sleep(PAUSE_S)  # who waits for the file comes in between
                    some = ids[start : start + changing.REMOVED_AT_ONCE]
                    found = self._remove_some(place, row, deleted, some, budget)
                    deleted += found
                    if found:
                        self._follow(place, loaded, some, ())
        finally:
            if deleted:
                self._tell_removed()
        return deleted

    def _remove_some(
        self, place: Name, row: CollectionRow, before: int, ids: Sequence[str], budget: CallBudget
    ) -> int:
        """Remove vectors in one transaction; `before`: how many are removed since `row`."""
        with self._changing(place, row, budget) as connection:
            gone = 0
            if self._sizes.is_known(row.key):
                gone = changing.text_bytes_there(connection, row.key, ids)
            deleted = changing.remove_vectors(connection, row.key, ids)
            if deleted:
                changing.set_vectors(connection, row.key, row.vectors - before - deleted)
                changing.note_removed(connection)
                self._sizes.removed(row.key, gone)
        return deleted

    # ---- for the people who run it ----

    def purge(self, budget: CallBudget) -> None:
        """Leave nothing of what was removed in the file; see the port."""
        storage = self._opened()
        if storage is not None:
            storage.purge(budget)

    def purge_pending(self) -> bool:
        """Whether something that was removed may still be in the file."""
        storage = self._opened()
        return storage is not None and storage.purge_pending()

    def tell_removed(self, told: Callable[[], None]) -> None:
        """Call this after each change that removed something."""
        self._tell_removed = told

    def damaged(self) -> int:
        """Rows and pages that were found damaged since the start."""
        found = 0 if self._storage is None else self._storage.damaged
        return found + (self._fault is not None)

    def verify(self, resource_id: str | None, budget: CallBudget) -> Iterator[Finding]:
        """Read everything and give what does not agree; see the port."""
        try:
            storage = self._opened()
        except CorruptDataError as error:
            yield Finding("PAGE_DAMAGED", "", "", error.message)
            return
        if storage is not None:
            yield from findings(storage, resource_id, budget)

    def counts(self) -> CollectionCounts:
        """State, and counters since the start."""
        loaded, memory_bytes = self._residents.state()
        storage = self._storage
        if storage is None:
            return CollectionCounts(damaged=self.damaged())
        with storage.read() as connection:
            collections, vectors = changing.totals(connection)
        return CollectionCounts(
            collections=collections,
            vectors=vectors,
            disk_bytes=storage.disk_bytes(),
            loaded=loaded,
            memory_bytes=memory_bytes,
            loads=self._residents.loads,
            evictions=self._residents.evictions,
            damaged=self.damaged(),
        )

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        with self._opening:
            self._closed = True
            self._residents.clear()
            if self._remover is not None:
                self._remover.close()
            if self._storage is not None:
                self._storage.close()

    # ---- inside ----

    def _opened(self) -> CollectionStorage | None:
        if self._closed:
            raise UnavailableError("the store is closed")
        if self._fault is not None:
            raise CorruptDataError(self._fault.message, reason=self._fault.reason)
        return self._storage

    def _open(self) -> CollectionStorage:
        storage = CollectionStorage(self._file, self._mark, accept_loss=self._accept_loss)
        self._remover = Remover(storage.remove_dropped)
        if storage.has_dropped():
            self._remover.start()  # what was removed shortly before the last end
        return storage

    def _made(self) -> CollectionStorage:
        with self._opening:
            found = self._opened()
            if found is None:
                found = self._storage = self._open()
            return found

    @contextmanager
    def _held(self, place: Name, budget: CallBudget | None) -> Generator[None]:
        """Nobody else changes the collection, or reads it into memory."""
        lock = self._locks[hash(place) % _LOCKS]
        while not lock.acquire(timeout=_WAIT_S):
            if budget is not None:
                budget.check()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _changing(
        self, place: Name, row: CollectionRow, budget: CallBudget
    ) -> Generator[apsw.Connection]:
        """A transaction; where it fails the file is asked anew what there is."""
        storage = self._opened()
        assert storage is not None  # its row was found
        budget.check()
        try:
            with storage.change(budget) as connection:
                yield connection
        except BaseException:
            self._residents.drop(place)
            self._sizes.forget(row.key)
            raise

    def _text_bytes(self, row: CollectionRow, added_max: int, budget: CallBudget) -> int | None:
        """See `Sizes.text_bytes`; counted beside others that write."""
        storage = self._opened()
        assert storage is not None  # its row was found

        def count() -> int:
            with storage.read(budget) as connection:
                return changing.text_bytes_of_all(connection, row.key)

        return self._sizes.text_bytes(row, added_max, count)

    def _follow(
        self,
        place: Name,
        loaded: LoadedCollection | None,
        removed: Sequence[str],
        put: Sequence[StoredVector],
    ) -> None:
        """Have memory follow a change that is on disk."""
        if loaded is None:
            return
        try:
            loaded.apply(removed, put)
        except MemoryError:
            self._residents.drop(place)  # the change stands; who asks next reads the file
        self._residents.measure(place)

    def _row(self, place: Name, budget: CallBudget | None = None) -> CollectionRow:
        storage = self._opened()
        if storage is not None:
            with storage.read(budget) as connection:
                found = storage.find(connection, *place)
            if found is not None:
                return found
        raise NotFoundError(
            "the resource has no collection of this name", reason=COLLECTION_NOT_FOUND
        )

    def _loaded(self, place: Name, budget: CallBudget) -> LoadedCollection:
        self._opened()
        found = self._residents.get(place)
        if found is not None:
            return found
        with self._held(place, budget):
            return self._residents.get(place) or self._read_in(place, budget)

    def _read_in(self, place: Name, budget: CallBudget) -> LoadedCollection:
        """Read a collection into memory; its lock is held."""
        row = self._row(place, budget)
        storage = self._opened()
        assert storage is not None
        self._residents.make_room(row.vectors * (4 * row.dimensions + _ROW_BYTES))
        with storage.read(budget) as connection:
            loaded = storage.load(connection, row, budget)
        self._residents.put(place, loaded)
        return loaded
