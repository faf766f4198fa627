"""Partitions by resource: loaded on first use, kept current by commits, evicted by size.

Commits arrive on one thread, in the record's order, and never wait for a load: changes of a
resource that is being read are queued and applied before its partition can be searched. A change
that the load has seen already is applied again, so it must be one that changes nothing then: a put
replaces all that was known of its messages. A partition that is read anew goes on to serve and to
be changed until the other takes its place. A resource that is not in memory needs no change: the
record has it. One without messages is not kept in memory, so that asking for names that do not
exist fills nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from semanticrecall_core.types.errors import UnavailableError

QUEUED_CHANGES_MAX = 4096
LOAD_ATTEMPTS_MAX = 10


class Searchable(Protocol):
    """What readers see of a partition."""

    @property
    def searchable(self) -> int:
        """Messages in it."""
        ...


class Resident(Protocol):
    """A partition in memory."""

    @property
    def view(self) -> Searchable:
        """Its present state."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes now."""
        ...


P = TypeVar("P", bound=Resident)

_DONE = threading.Event()
_DONE.set()


class _Slot(Generic[P]):
    """One resource: being read, at first while `partition` is None, as long as `loading`.

    What was read takes its place if no change made it `stale`.
    """

    __slots__ = ("done", "error", "loading", "nbytes", "partition", "queue", "stale")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.loading = True
        self.partition: P | None = None
        self.error: BaseException | None = None
        self.queue: list[Callable[[P], None]] = []
        self.stale = False
        self.nbytes = 0


class ResidentPartitions(Generic[P]):
    """Thread-safe; `change` and `drop` are for one thread at a time (the record's writer)."""

    def __init__(self, read: Callable[[str], P], bytes_max: int) -> None:
        """Nothing in memory yet.

        Args:
            read: makes the partition of a resource from the record. May raise.
            bytes_max: memory beyond which the least recently used are forgotten.
        """
        self._read = read
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, _Slot[P]] = OrderedDict()
        self._bytes = 0

    def get(self, resource_id: str) -> P:
        """The partition, read if it is not in memory.

        Raises:
            UnavailableError: it changed faster than it could be read.
            Exception: what reading raised, for all who waited for it too.
        """
        with self._lock:
            slot = self._slots.get(resource_id)
            mine = slot is None
            if slot is None:
                slot = self._slots[resource_id] = _Slot()
            else:
                self._slots.move_to_end(resource_id)
                if slot.partition is not None:
                    return slot.partition
        if mine:
            return self._load(resource_id, slot)
        slot.done.wait()
        if slot.partition is None:
            raise slot.error or UnavailableError("the partition could not be read; try again")
        return slot.partition

    def loaded(self, resource_id: str) -> P | None:
        """The partition if it is in memory; does not count as use."""
        with self._lock:
            slot = self._slots.get(resource_id)
            return None if slot is None else slot.partition

    def change(self, resource_id: str, change: Callable[[P], None]) -> None:
        """Apply a change now, or to what is being read before anyone sees it."""
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None:
                return
            partition = slot.partition
            if slot.loading:
                slot.queue.append(change)
                if len(slot.queue) > QUEUED_CHANGES_MAX:
                    slot.queue.clear()
                    slot.stale = True
            if partition is None:
                return
        change(partition)
        self.resized(resource_id, partition)

    def resized(self, resource_id: str, partition: P) -> None:
        """Take note of a partition's memory, unless another one has its place."""
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is not None and slot.partition is partition:
                self._account(slot, partition)
                self._evict(resource_id)

    def drop(self, resource_id: str) -> None:
        """Forget the partition; whoever asks next reads the record."""
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None:
                return
            if slot.partition is None:
                slot.stale = True
                slot.queue.clear()
            else:  # a reload in progress finds it gone
                self._forget(resource_id, slot)

    def reload(self, resource_id: str) -> bool:
        """Read a loaded partition anew, beside the one that serves until then; False if it was not.

        Not either if it was dropped or evicted meanwhile, or changed faster than it was read.

        Raises:
            Exception: what reading raises; the partition stays as it is.
        """
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None or slot.loading:
                return False
            slot.loading = True
        try:
            return self._published(resource_id, slot, self._read(resource_id))
        finally:
            with self._lock:
                slot.loading, slot.stale = False, False
                slot.queue.clear()

    def names(self) -> list[str]:
        """The resources that are in memory."""
        with self._lock:
            return [name for name, slot in self._slots.items() if slot.partition is not None]

    def count(self) -> int:
        """How many partitions are in memory."""
        with self._lock:
            return sum(slot.partition is not None for slot in self._slots.values())

    def nbytes(self) -> int:
        """Bytes of memory of all of them."""
        with self._lock:
            return self._bytes

    def _load(self, resource_id: str, slot: _Slot[P]) -> P:
        try:
            for _ in range(LOAD_ATTEMPTS_MAX):
                partition = self._read(resource_id)
                if self._published(resource_id, slot, partition):
                    return partition
            raise UnavailableError("the resource changed faster than it could be read; try again")
        except BaseException as error:
            with self._lock:
                del self._slots[resource_id]
                slot.error = error
            slot.done.set()
            raise

    def _published(self, resource_id: str, slot: _Slot[P], partition: P) -> bool:
        """Apply what was queued, then let everyone have the partition; False: read it anew."""
        while True:
            with self._lock:
                if slot.stale or self._slots.get(resource_id) is not slot:
                    slot.stale = False
                    return False
                changes, slot.queue = slot.queue, []
                if not changes:
                    slot.partition, slot.loading = partition, False
                    if partition.view.searchable:
                        self._account(slot, partition)
                        self._evict(resource_id)
                    else:  # those who wait have it from the slot; later ones read the record
                        self._forget(resource_id, slot)
                    slot.done.set()
                    slot.done = _DONE
                    return True
            for change in changes:
                change(partition)

    def _account(self, slot: _Slot[P], partition: P) -> None:
        nbytes = partition.nbytes
        self._bytes += nbytes - slot.nbytes
        slot.nbytes = nbytes

    def _forget(self, resource_id: str, slot: _Slot[P]) -> None:
        del self._slots[resource_id]
        self._bytes -= slot.nbytes

    def _evict(self, kept_id: str) -> None:
        """Forget the least recently used beyond the limit; never `kept_id`, nor what is loading."""
        if self._bytes <= self._bytes_max:
            return
        for resource_id, slot in list(self._slots.items()):
            if self._bytes <= self._bytes_max:
                break
            if slot.partition is not None and resource_id != kept_id:
                self._forget(resource_id, slot)
