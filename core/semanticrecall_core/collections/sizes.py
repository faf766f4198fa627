"""How large collections may grow, and how large they are in memory as far as that must be known.

Of their vectors the number says it. Bytes of ids and metadata are counted in the file once, when a
collection may be near the limit, and followed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ..types.collections import COLLECTION_FULL, CollectionLimits
from ..types.errors import LimitReachedError
from .loaded import StoredVector, bytes_when_read

if TYPE_CHECKING:
    from .storage import CollectionRow

_ID_BYTES_MAX: Final = 1_024


class Sizes:
    """Each collection is asked about and changed by one thread at a time: who holds its lock."""

    def __init__(self, limits: CollectionLimits) -> None:
        """Nothing is known yet."""
        self._vectors_max = limits.vectors_max
        self._bytes_max = limits.collection_bytes_max
        self._text_bytes_max = limits.metadata_bytes_max + _ID_BYTES_MAX
        self._known: dict[int, int] = {}

    def text_bytes(
        self, row: CollectionRow, added_max: int, count: Callable[[], int]
    ) -> int | None:
        """Bytes of ids and metadata; None where so many more vectors fit, whatever they hold.

        Args:
            row: the collection as it is.
            added_max: vectors that are to come.
            count: counts them in the file.
        """
        vectors = row.vectors + added_max
        if bytes_when_read(vectors, row.dimensions, vectors * self._text_bytes_max) <= (
            self._bytes_max
        ):
            self._known.pop(row.key, None)
            return None
        found = self._known.get(row.key)
        if found is None:
            found = self._known[row.key] = count()
        return found

    def require_room(
        self, row: CollectionRow, vectors: int, text_bytes: int | None, added: int
    ) -> None:
        """Take note of a change that is about to be committed.

        Args:
            row: the collection before it.
            vectors: how many there are after it.
            text_bytes: of ids and metadata before it, as `text_bytes` gave them.
            added: so many more there are after it.

        Raises:
            LimitReachedError: COLLECTION_FULL: it would become too large, and larger than it is.
        """
        if vectors > max(self._vectors_max, row.vectors):
            raise LimitReachedError(
                f"the collection would hold {vectors} vectors; at most {self._vectors_max} are "
                "allowed",
                reason=COLLECTION_FULL,
            )
        if text_bytes is None:
            return
        size = bytes_when_read(vectors, row.dimensions, text_bytes + added)
        if size > max(self._bytes_max, bytes_when_read(row.vectors, row.dimensions, text_bytes)):
            raise LimitReachedError(
                f"the collection would take {size} bytes of memory; at most {self._bytes_max} are "
                "allowed (--collections-bytes-max)",
                reason=COLLECTION_FULL,
            )
        self._known[row.key] = text_bytes + added

    def is_known(self, key: int) -> bool:
        """Whether bytes of ids and metadata are followed."""
        return key in self._known

    def removed(self, key: int, text_bytes: int) -> None:
        """Vectors with so many bytes of ids and metadata are removed."""
        if key in self._known:
            self._known[key] -= text_bytes

    def forget(self, key: int) -> None:
        """A collection is gone, or its change failed."""
        self._known.pop(key, None)


def text_bytes_of(vectors: Sequence[StoredVector]) -> int:
    """Bytes of their ids and metadata."""
    return sum(len(one.id.encode()) + len(one.metadata) for one in vectors)
