"""The named collections of vectors that an engine keeps."""

from __future__ import annotations

from semanticrecall_core.collections.file_format import FILE, CollectionsFile
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.encryption import Purpose
from semanticrecall_core.types.collections import CollectionLimits

from .config import Settings
from .encryption_keys import data_key
from .memory_limit import collections_bytes


def open_collections(settings: Settings) -> SqliteVectorCollections:
    """The collections of a data directory, which is claimed."""
    found = data_key(settings)
    file = CollectionsFile(
        settings.data_dir.absolute() / FILE,
        key=None if found is None else found.subkey(Purpose.COLLECTIONS),
    )
    limits = CollectionLimits(
        collections_max=settings.collections_max,
        vectors_max=settings.collection_vectors_max,
        metadata_bytes_max=settings.metadata_bytes_max,
        bytes_max=collections_bytes(settings),
    )
    return SqliteVectorCollections(file, limits)
