"""The named collections of vectors that an engine keeps."""

from __future__ import annotations

from semanticrecall_core.collections.file_format import FILE, CollectionsFile
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.encryption import Purpose
from semanticrecall_core.messages.high_water_mark import HighWaterMark, Mark
from semanticrecall_core.types.collections import CollectionLimits

from .config import Settings
from .encryption_keys import data_key
from .memory_limit import collections_bytes

MARK_FILE = "MARK.collections"
"""In the data directory, once there are collections."""


def open_collections(settings: Settings) -> SqliteVectorCollections:
    """The collections of a data directory, which is claimed."""
    found = data_key(settings)
    file = CollectionsFile(
        settings.data_dir.absolute() / FILE,
        key=None if found is None else found.subkey(Purpose.COLLECTIONS),
    )
    bytes_max = collections_bytes(settings)
    limits = CollectionLimits(
        collections_max=settings.collections_max,
        vectors_max=settings.collection_vectors_max,
        metadata_bytes_max=settings.metadata_bytes_max,
        bytes_max=bytes_max,
        collection_bytes_max=bytes_max,
    )
    mark = settings.data_dir.absolute() / MARK_FILE
    return SqliteVectorCollections(
        file, limits, lambda: MarkFile(HighWaterMark(mark)), accept_loss=settings.accept_loss
    )


class MarkFile:
    """The record's high-water mark, of another file: see `CommitMark`."""

    def __init__(self, file: HighWaterMark) -> None:
        """Takes the file over."""
        self._file = file

    def last(self) -> tuple[str, int] | None:
        """See `CommitMark`."""
        found = self._file.read()
        return None if found is None else (found.store_id, found.revision)

    def start(self, identity: str, revision: int) -> None:
        """See `CommitMark`."""
        self._file.start(Mark(identity, revision))

    def move(self, identity: str, revision: int) -> None:
        """See `CommitMark`."""
        self._file.write(Mark(identity, revision))

    def sync(self) -> None:
        """See `CommitMark`."""
        self._file.sync()

    def close(self) -> None:
        """See `CommitMark`."""
        self._file.close()
