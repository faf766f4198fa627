"""Checksummed copies of partitions, so that a start need not read every vector from the record.

Derived data: what is missing or damaged here costs a slower start and nothing else.
`layout` is the format, `sealed_file` reads it, `new_file` writes it, `compaction` says which files
are merged, `file_store` is the port.
"""

from .file_store import FileSnapshotStore

__all__ = ["FileSnapshotStore"]
